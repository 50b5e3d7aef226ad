// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"fmt"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

func transactionChecks() []Check {
	return []Check{
		{"raise the revision by one with each transaction", revisionByOne},
		{"stamp one revision on all keys of a transaction", oneRevision},
		{"change nothing without operations", emptyTransaction},
		{"delete", deleteKeys},
		{"change nothing by deleting what is not stored", deleteMissing},
		{"take as many operations as promised", maxOps},
		{"refuse bad keys", badKeys},
	}
}

func revisionByOne(x *suite) {
	rev := x.put("a", "1")
	x.Expect(rev).To(BeNumerically(">=", 1))
	x.Expect(x.put("a", "1")).To(Equal(rev+1), "the same value again is a change")
	x.Expect(x.write(puts("a=2", "b=2", "c=2")...)).To(Equal(rev + 2))
	x.Expect(x.write(kvdb.Delete("a"))).To(Equal(rev + 3))
	x.Expect(x.try([]kvdb.Cond{kvdb.AtRevision("b", rev)}, kvdb.Delete("b"))).To(MatchError(kvdb.ErrConditions))
	_, now := x.list("")
	x.Expect(now).To(Equal(rev+3), "a transaction that fails takes no revision")
	x.Expect(x.put("a", "3")).To(Equal(rev + 4))
}

func oneRevision(x *suite) {
	before := x.write(puts("c=1", "d=1")...)
	rev := x.write(kvdb.Put("b", nil), kvdb.Delete("c"), kvdb.Put("a", nil), kvdb.Put("d", nil))
	x.Expect(rev).To(BeNumerically(">", before))
	kvs, _ := x.list("")
	x.Expect(kvs).To(HaveLen(3))
	for _, kv := range kvs {
		x.Expect(kv.ModRevision).To(Equal(rev), "%q", kv.Key)
	}
}

func emptyTransaction(x *suite) {
	_, start := x.list("")
	got, err := x.store.Txn(x.ctx, nil, nil)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(got).To(Equal(start), "on an empty store")

	rev := x.put("a", "1")
	got, err = x.store.Txn(x.ctx, []kvdb.Cond{kvdb.AtRevision("a", rev), kvdb.Absent("b")}, nil)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(got).To(Equal(rev))
	x.Expect(x.try([]kvdb.Cond{kvdb.Absent("a")})).To(MatchError(kvdb.ErrConditions))
	_, now := x.list("")
	x.Expect(now).To(Equal(rev))
}

func deleteKeys(x *suite) {
	x.write(puts("a=1", "a/b=1", "b=1", "c=1")...)
	x.write(kvdb.Delete("a"))
	x.expectStored("", "a/b=1", "b=1", "c=1")
	x.write(
		kvdb.Delete("c"),
		kvdb.Delete("none"),
		kvdb.Put("d", []byte("1")),
		kvdb.Op{Key: "b", Value: []byte("2"), Delete: true},
	)
	x.expectStored("", "a/b=1", "d=1")
	_, found, err := x.store.Get(x.ctx, "b")
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(found).To(BeFalse())
}

func deleteMissing(x *suite) {
	w := x.watch("", 0)
	rev := x.put("a", "1")
	x.Expect(x.write(kvdb.Delete("b"), kvdb.Delete("a/"))).To(Equal(rev))
	gone := x.write(kvdb.Delete("a"), kvdb.Delete("b"))
	x.Expect(x.write(kvdb.Delete("a"))).To(Equal(gone), "a second time")
	last := x.put("end", "")
	x.expectNext(w, stored("a", "1", rev))
	x.expectNext(w, deleted("a", gone))
	x.expectNext(w, stored("end", "", last))
}

func maxOps(x *suite) {
	var ops []kvdb.Op
	var conds []kvdb.Cond
	for i := range kvdb.MaxOps + 1 {
		ops = append(ops, kvdb.Put(fmt.Sprintf("%03d", i), nil))
		conds = append(conds, kvdb.Absent(fmt.Sprintf("%03d", i)))
	}
	x.Expect(x.try(nil, ops...)).To(MatchError(kvdb.ErrTooManyOps))
	x.Expect(x.try(conds, ops[:1]...)).To(MatchError(kvdb.ErrTooManyOps))
	x.expectStored("")
	x.Expect(x.try(conds[:kvdb.MaxOps], ops[:kvdb.MaxOps]...)).To(Succeed())
	kvs, _ := x.list("")
	x.Expect(kvs).To(HaveLen(kvdb.MaxOps))
	for i := range ops {
		ops[i].Delete = true
	}
	x.Expect(x.try(nil, ops...)).To(MatchError(kvdb.ErrTooManyOps))
	x.Expect(x.try(nil, ops[:kvdb.MaxOps]...)).To(Succeed())
	x.expectStored("")
}

func badKeys(x *suite) {
	rev := x.put("a", "1")
	put := func(key string) kvdb.Op { return kvdb.Put(key, []byte("2")) }
	for name, ops := range map[string][]kvdb.Op{
		"two puts":      {put("a"), put("b"), put("a")},
		"two deletes":   {kvdb.Delete("a"), kvdb.Delete("a")},
		"put, delete":   {put("a"), kvdb.Delete("a")},
		"delete, put":   {kvdb.Delete("a"), put("a")},
		"missing twice": {kvdb.Delete("b"), put("a"), kvdb.Delete("b")},
		"empty put":     {put("b"), put("")},
		"empty delete":  {kvdb.Delete(""), put("b")},
	} {
		x.Expect(x.try(nil, ops...)).To(MatchError(kvdb.ErrKey), name)
	}
	x.Expect(x.try([]kvdb.Cond{kvdb.Absent("")}, put("b"))).To(MatchError(kvdb.ErrKey), "empty condition")
	x.expectStored("", "a=1")
	_, now := x.list("")
	x.Expect(now).To(Equal(rev))
}
