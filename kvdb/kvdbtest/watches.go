// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"fmt"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

func watchChecks() []Check {
	return []Check{
		{"watch from now on", watchNow},
		{"watch from a revision of the past", watchPast},
		{"watch from where a list ends", watchFromList},
		{"watch from a revision to come", watchFuture},
		{"watch a prefix", watchPrefix},
		{"deliver a transaction as one batch in order of keys", watchBatch},
		{"deliver only what was applied", watchApplied},
		{"let a slow watch hold up no other", watchSlow},
	}
}

func watchNow(x *suite) {
	x.put("a", "before")
	w := x.watch("", 0)
	rev := x.put("a", "after")
	x.expectNext(w, stored("a", "after", rev))
	rev = x.put("b", "after")
	x.expectNext(w, stored("b", "after", rev))
	rev = x.write(kvdb.Delete("a"))
	x.expectNext(w, deleted("a", rev))
	x.Expect(w.Err()).NotTo(HaveOccurred())
}

func watchPast(x *suite) {
	var revs []int64
	for i := range 10 {
		revs = append(revs, x.put("a", fmt.Sprint(i)))
	}
	for from, rev := range revs {
		w := x.watch("", rev)
		for i := from; i < len(revs); i++ {
			x.expectNext(w, stored("a", fmt.Sprint(i), revs[i]))
		}
	}
	w := x.watch("", revs[9])
	x.expectNext(w, stored("a", "9", revs[9]))
	rev := x.put("a", "live")
	x.expectNext(w, stored("a", "live", rev))
}

func watchFromList(x *suite) {
	_, rev := x.list("")
	fresh := x.watch("", rev+1)
	first := x.put("a", "1")
	_, rev = x.list("")
	w := x.watch("", rev+1)
	second := x.put("a", "2")
	x.expectNext(w, stored("a", "2", second))
	x.expectNext(fresh, stored("a", "1", first))
	x.expectNext(fresh, stored("a", "2", second))
}

func watchFuture(x *suite) {
	rev := x.put("a", "1")
	w := x.watch("", rev+2)
	x.put("a", "2")
	last := x.put("a", "3")
	x.expectNext(w, stored("a", "3", last))
}

func watchPrefix(x *suite) {
	_, rev := x.list("")
	slash, bytes, none := x.watch("a/", 0), x.watch("p\xff", rev+1), x.watch("x", 0)
	rev = x.write(puts("a=1", "a/=1", "a/b=1", "a0=1", "p=1", "p\xff=1", "p\xff\xff=1", "q=1")...)
	x.expectNext(slash, stored("a/", "1", rev), stored("a/b", "1", rev))
	x.expectNext(bytes, stored("p\xff", "1", rev), stored("p\xff\xff", "1", rev))
	x.write(puts("a=2", "a0=2", "p\xfe=2", "q=2")...)
	x.write(kvdb.Delete("a"), kvdb.Delete("p"))
	rev = x.write(kvdb.Delete("a/b"), kvdb.Delete("p\xff"), kvdb.Put("x", nil), kvdb.Delete("a0"))
	x.expectNext(slash, deleted("a/b", rev))
	x.expectNext(bytes, deleted("p\xff", rev))
	x.expectNext(none, stored("x", "", rev))
}

func watchBatch(x *suite) {
	w := x.watch("", 0)
	rev := x.write(puts("c=1", "a=1", "d=1", "b=1")...)
	x.expectNext(w, stored("a", "1", rev), stored("b", "1", rev), stored("c", "1", rev), stored("d", "1", rev))
	second := x.write(kvdb.Put("e", []byte("2")), kvdb.Delete("c"), kvdb.Put("b", []byte("2")), kvdb.Delete("a"))
	third := x.put("f", "3")
	x.expectNext(w, deleted("a", second), stored("b", "2", second), deleted("c", second), stored("e", "2", second))
	x.expectNext(w, stored("f", "3", third))

	ops := make([]kvdb.Op, kvdb.MaxOps)
	for i := range ops {
		ops[i] = kvdb.Put(fmt.Sprintf("many/%03d", len(ops)-i), nil)
	}
	rev = x.write(ops...)
	batch := x.next(w)
	x.Expect(batch).To(HaveLen(kvdb.MaxOps))
	for i, e := range batch {
		x.Expect(describe(batch[i:i+1])).To(Equal([]string{stored(fmt.Sprintf("many/%03d", i+1), "", rev)}), e.Key)
	}
}

func watchApplied(x *suite) {
	w := x.watch("", 0)
	rev := x.put("a", "1")
	x.Expect(x.try([]kvdb.Cond{kvdb.Absent("a")}, puts("a=2", "b=2")...)).To(MatchError(kvdb.ErrConditions))
	x.Expect(x.try(nil, puts("b=2", "b=3")...)).To(MatchError(kvdb.ErrKey))
	x.write()
	same := x.put("a", "1")
	x.expectNext(w, stored("a", "1", rev))
	x.expectNext(w, stored("a", "1", same))
}

func watchSlow(x *suite) {
	slow, fast := x.watch("", 0), x.watch("", 0)
	var want []string
	for i := range 50 {
		want = append(want, stored("a", fmt.Sprint(i), x.put("a", fmt.Sprint(i))))
		x.expectNext(fast, want[i])
	}
	for _, event := range want {
		x.expectNext(slow, event)
	}
}
