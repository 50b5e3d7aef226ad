// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/kvdb"
)

// Prefixes are the prefixes of a List in order and without those that another one
// covers. So their keys, one prefix after the other, are in order and each is there
// once.
func Prefixes(prefixes []string) ([]string, error) {
	if len(prefixes) > kvdb.MaxOps {
		return nil, fmt.Errorf("%d prefixes: %w", len(prefixes), kvdb.ErrTooManyOps)
	}
	var out []string
	for _, p := range slices.Sorted(slices.Values(prefixes)) {
		if len(out) == 0 || !strings.HasPrefix(p, out[len(out)-1]) {
			out = append(out, p)
		}
	}
	return out, nil
}
