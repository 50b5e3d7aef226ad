// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"testing"

	"github.com/cadastre/cadastre/test/peers/workload"
)

// sizes are a /24 and a /16.
func sizes() map[string]int { return map[string]int{"24": 1 << 8, "16": 1 << 16} }

func each(b *testing.B, f func(b *testing.B, n int)) {
	for _, name := range []string{"24", "16"} {
		b.Run(name, func(b *testing.B) { f(b, sizes()[name]) })
	}
}

func tree(n int) workload.Pool[int] {
	t := NewTree(n)
	return workload.Pool[int]{
		Cap: n,
		Next: func() (int, error) {
			if k, ok := t.Get(); ok {
				return k, nil
			}
			return 0, ErrFull
		},
		Free: func(k int) error { t.Put(k); return nil },
		Take: func(k int) error {
			if t.Take(k) {
				return nil
			}
			return ErrFull
		},
	}
}

func locked(n int) workload.Pool[int] {
	l := &Locked{tree: NewTree(n)}
	return workload.Pool[int]{Cap: n, Next: l.Get, Free: l.Put, Take: l.Take}
}

func nextFit(n int) workload.Pool[int] {
	l := &Locked{tree: NewTree(n)}
	return workload.Pool[int]{Cap: n, Next: l.Next, Free: l.Put}
}

// An allocator of addresses or prefixes hands out more than an integer, and the
// list of what is allocated is larger for it. These are of the size of a
// netip.Addr and a netip.Prefix, so that the list weighs the same.
type (
	addrSized   struct{ k, _, _ int }
	prefixSized struct{ k, _, _, _ int }
)

func sized[T any](n int, next func() (int, error), free func(int) error, wrap func(int) T, unwrap func(T) int) workload.Pool[T] {
	return workload.Pool[T]{
		Cap: n,
		Next: func() (T, error) {
			k, err := next()
			return wrap(k), err
		},
		Free: func(x T) error { return free(unwrap(x)) },
	}
}

func addrs(n int, next func() (int, error), free func(int) error) workload.Pool[addrSized] {
	return sized(n, next, free, func(k int) addrSized { return addrSized{k: k} }, func(x addrSized) int { return x.k })
}

func prefixes(n int, next func() (int, error), free func(int) error) workload.Pool[prefixSized] {
	return sized(n, next, free, func(k int) prefixSized { return prefixSized{k: k} }, func(x prefixSized) int { return x.k })
}

// BenchmarkWide is the limit of what is larger than a /16: 2^16 addresses of a
// /64, 2^16 and 2^19 prefixes.
func BenchmarkWide(b *testing.B) {
	const small, large = 1 << 16, 1 << 19
	b.Run("lowest/64", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[addrSized] { l := &Locked{tree: NewTree(small)}; return addrs(small, l.Get, l.Put) })
	})
	b.Run("next/64", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[addrSized] {
			l := &Locked{tree: NewTree(small)}
			return addrs(small, l.Next, l.Put)
		})
	})
	b.Run("lowest/8in24", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[prefixSized] {
			l := &Locked{tree: NewTree(small)}
			return prefixes(small, l.Get, l.Put)
		})
	})
	b.Run("next/8in24", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[prefixSized] {
			l := &Locked{tree: NewTree(small)}
			return prefixes(small, l.Next, l.Put)
		})
	})
	b.Run("lowest/8in27", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[prefixSized] { f := NewForest(large); return prefixes(large, f.Get, f.Put) })
	})
	b.Run("next/8in27", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[prefixSized] { f := NewForest(large); return prefixes(large, f.Next, f.Put) })
	})
}

func owned(n int) workload.Pool[uint64] {
	o := NewOwned(n)
	return workload.Pool[uint64]{Cap: n, Next: o.Claim, Free: o.Release}
}

func BenchmarkTree(b *testing.B) {
	each(b, func(b *testing.B, n int) { workload.Suite(b, func() workload.Pool[int] { return tree(n) }) })
}

func BenchmarkLocked(b *testing.B) {
	each(b, func(b *testing.B, n int) { workload.Suite(b, func() workload.Pool[int] { return locked(n) }) })
}

func BenchmarkNextFit(b *testing.B) {
	each(b, func(b *testing.B, n int) { workload.Levels(b, func() workload.Pool[int] { return nextFit(n) }) })
}

func BenchmarkOwned(b *testing.B) {
	each(b, func(b *testing.B, n int) { workload.Suite(b, func() workload.Pool[uint64] { return owned(n) }) })
}

func BenchmarkParallel(b *testing.B) {
	b.Run("locked/50", func(b *testing.B) { workload.Parallel(b, locked(1<<16), .5) })
	b.Run("locked/99", func(b *testing.B) { workload.Parallel(b, locked(1<<16), .99) })
	b.Run("owned/50", func(b *testing.B) { workload.Parallel(b, owned(1<<16), .5) })
	b.Run("owned/99", func(b *testing.B) { workload.Parallel(b, owned(1<<16), .99) })
}

func BenchmarkMemory(b *testing.B) {
	b.Run("tree", func(b *testing.B) { workload.Memory(b, func() workload.Pool[int] { return tree(1 << 18) }, 1<<18) })
	b.Run("owned", func(b *testing.B) {
		workload.Memory(b, func() workload.Pool[uint64] { return owned(1 << 16) }, 50_000)
	})
}

// The yardstick itself must be right: From against a plain search.
func TestFromAgainstSearch(t *testing.T) {
	const n = 10_000
	tree, free := NewTree(n), make([]bool, n)
	for i := range free {
		free[i] = true
	}
	from, r := 0, uint32(1)
	for range 200_000 {
		r = r*1664525 + 1013904223
		if r>>31 == 0 { // give one back, if it is taken
			if k := int(r>>4) % n; !free[k] {
				tree.Put(k)
				free[k] = true
			}
			continue
		}
		want := -1
		for i := range n {
			if k := (from + i) % n; free[k] {
				want = k
				break
			}
		}
		k, ok := tree.From(from)
		if ok != (want >= 0) || ok && k != want {
			t.Fatalf("From(%d) = %d, %v; want %d", from, k, ok, want)
		}
		if ok {
			free[k], from = false, (k+1)%n
		}
	}
}

// A Forest takes every item once, and finds one that is given back.
func TestForest(t *testing.T) {
	const n = 2 * treeSize
	for name, take := range map[string]func(*Forest) (int, error){"lowest": (*Forest).Get, "next": (*Forest).Next} {
		f, taken := NewForest(n), make([]bool, n)
		for range n {
			k, err := take(f)
			if err != nil || taken[k] {
				t.Fatalf("%s: %d, %v; taken: %v", name, k, err, taken[k])
			}
			taken[k] = true
		}
		if _, err := take(f); err == nil {
			t.Fatalf("%s: a full one gave an item", name)
		}
		for _, k := range []int{0, treeSize - 1, treeSize, n - 1, 77} {
			if err := f.Put(k); err != nil {
				t.Fatal(err)
			}
			if got, err := take(f); err != nil || got != k {
				t.Fatalf("%s: %d, %v; want %d", name, got, err, k)
			}
		}
	}
}
