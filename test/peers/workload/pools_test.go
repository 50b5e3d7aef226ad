// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"testing"
)

// However often a pool is asked for, it is none that others keep.
func TestPrefixesNeverNameWhatIsKept(t *testing.T) {
	for _, others := range []int{0, 1, 10, 10_000} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			next, kept := Prefixes(others), map[string]bool{}
			for range others {
				kept[next()] = true
			}
			if len(kept) != others {
				t.Fatalf("%d different names, %d would be right", len(kept), others)
			}
			last := ""
			for i := range 3 << 16 {
				p := next()
				if kept[p] || p == last {
					t.Fatalf("call %d names %s, which is kept, or was named just now", i, p)
				}
				last = p
			}
		})
	}
}
