// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/ledger"
)

// Reason returns the failure of an ADD as one sentence for people, without a full stop;
// "" if the text of the error says as much. pool is the pool of the request.
func Reason(n *Node, pool string, err error) string {
	var full *ledger.Exhausted
	switch {
	case errors.As(err, &full):
		return fullText(n, full.Pool, full.Family)
	case errors.Is(err, ledger.ErrSuspended) && n.Suspended != "":
		return fmt.Sprintf("node %s allocates no new address: %s", n.Name, n.Suspended)
	case errors.Is(err, ledger.ErrNoBlock):
		text := fmt.Sprintf("pool %s has no active block on node %s", pool, n.Name)
		for _, c := range n.Claims {
			if !c.Held {
				return text + ": " + n.claimText(c)
			}
		}
		return text
	case errors.Is(err, ledger.ErrNoPool):
		return fmt.Sprintf("node %s has no pool %q: its pools are %s", n.Name, pool, orNone(n.poolNames()))
	}
	return ""
}
