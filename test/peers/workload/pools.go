// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"runtime"
	"testing"
)

// Beside is one item allocated and given back, while so many others stay
// allocated. An allocator that is slow to fill need not be filled for it.
func Beside[T any](b *testing.B, p Pool[T], others int) {
	for range others {
		if _, err := p.Next(); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	b.ReportAllocs()
	defer reportProcessor(b)()
	for b.Loop() {
		x, err := p.Next()
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Free(x); err != nil {
			b.Fatal(err)
		}
	}
}

// Prefixes names one /24 of 10.0.0.0/8 after the other, 10.0.0.0/24 never. When
// it has named all, it begins again behind the first few, which Beside keeps
// allocated for ever: no name is one of them, so no two pools overlap.
func Prefixes(others int) func() string {
	const all = 1 << 16
	n := 0
	return func() string {
		if n++; n == all {
			n = others + 1
		}
		return fmt.Sprintf("10.%d.%d.0/24", n>>8, n&0xff)
	}
}
