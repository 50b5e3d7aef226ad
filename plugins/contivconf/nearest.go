// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"reflect"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

func knownKeys() []yamldoc.Key { return yamldoc.Keys(reflect.TypeFor[rawConfig]()) }

// nearest returns the known key that is most likely meant by key below parent. The
// right key in the wrong section is nearer than any other.
func nearest(parent, key string) string {
	best, least := "", 0
	for _, k := range knownKeys() {
		above, last := "", k.Path
		if i := strings.LastIndex(k.Path, "."); i >= 0 {
			above, last = k.Path[:i], k.Path[i+1:]
		}
		cost := 2 * editDistance(strings.ToLower(key), strings.ToLower(last))
		if above != parent {
			cost++
		}
		if best == "" || cost < least {
			best, least = k.Path, cost
		}
	}
	return best
}

// editDistance returns the number of bytes to insert, remove or replace between a
// and b. It compares only the first 64 bytes.
func editDistance(a, b string) int {
	const limit = 64
	a, b = a[:min(len(a), limit)], b[:min(len(b), limit)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
