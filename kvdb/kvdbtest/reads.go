// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"fmt"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

func readChecks() []Check {
	return []Check{
		{"get a key that is stored", getStored},
		{"get a key that is not stored", getMissing},
		{"list an empty store", listEmpty},
		{"list in order of bytes", listOrder},
		{"list by prefix", listPrefix},
		{"list values as of one revision", listValues},
		{"list several prefixes in order, each key once", listSeveral},
		{"list nothing for no prefix", listNoPrefix},
		{"take as many prefixes as promised", maxPrefixes},
		{"keep empty values apart from none", emptyValues},
		{"copy what the caller passes", copyInput},
	}
}

func getStored(x *suite) {
	first := x.put("a", "1")
	x.put("b", "\x00\xff\x80")
	kv, found, err := x.store.Get(x.ctx, "a")
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(found).To(BeTrue())
	x.Expect(kv).To(Equal(kvdb.KeyValue{Key: "a", Value: []byte("1"), ModRevision: first}))

	kv, _, err = x.store.Get(x.ctx, "b")
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(kv.Value).To(Equal([]byte("\x00\xff\x80")))

	second := x.put("a", "2")
	kv, _, err = x.store.Get(x.ctx, "a")
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(kv).To(Equal(kvdb.KeyValue{Key: "a", Value: []byte("2"), ModRevision: second}))
}

func getMissing(x *suite) {
	x.put("a/b", "1")
	for _, key := range []string{"a", "a/", "a/b/", "a/c"} {
		_, found, err := x.store.Get(x.ctx, key)
		x.Expect(err).NotTo(HaveOccurred())
		x.Expect(found).To(BeFalse(), "%q", key)
	}
	_, _, err := x.store.Get(x.ctx, "")
	x.Expect(err).To(MatchError(kvdb.ErrKey))
}

func listEmpty(x *suite) {
	x.expectStored("")
	x.expectStored("a/")
}

func listOrder(x *suite) {
	x.write(puts("b=", "\xff=", "B=", "a=")...)
	x.write(puts("a/b=", "a0=", "\xff\xff=", "A=", "a/=")...)
	x.write(puts("\x00=", "ab=", "é=")...)
	x.expectStored("", "\x00=", "A=", "B=", "a=", "a/=", "a/b=", "a0=", "ab=", "b=", "é=", "\xff=", "\xff\xff=")
}

func listPrefix(x *suite) {
	x.write(puts("a=", "a/=", "a/b=", "a/b/c=", "a0=", "b=",
		"p=", "p\xfe=", "p\xff=", "p\xffq=", "p\xff\xff=", "q=", "\xff=", "\xff\xff=", "\xff\xff\x01=")...)
	x.expectStored("a", "a=", "a/=", "a/b=", "a/b/c=", "a0=")
	x.expectStored("a/", "a/=", "a/b=", "a/b/c=")
	x.expectStored("a/b", "a/b=", "a/b/c=")
	x.expectStored("a/c")
	x.expectStored("p\xff", "p\xff=", "p\xffq=", "p\xff\xff=")
	x.expectStored("\xff", "\xff=", "\xff\xff=", "\xff\xff\x01=")
	x.expectStored("\xff\xff", "\xff\xff=", "\xff\xff\x01=")
	x.expectStored("\xff\xff\xff")
	all, _ := x.list("")
	x.Expect(all).To(HaveLen(15))
}

func listValues(x *suite) {
	first := x.write(puts("a=1", "b=1")...)
	second := x.put("b", "2")
	last := x.write(kvdb.Delete("a"), kvdb.Put("c", []byte("3")))
	kvs, rev := x.list("")
	x.Expect(kvs).To(Equal([]kvdb.KeyValue{
		{Key: "b", Value: []byte("2"), ModRevision: second},
		{Key: "c", Value: []byte("3"), ModRevision: last},
	}))
	x.Expect(first).To(BeNumerically(">=", 1))
	x.Expect(rev).To(BeNumerically(">=", last))
	_, elsewhere := x.list("nothing is here")
	x.Expect(elsewhere).To(BeNumerically(">=", last), "the revision is the store's, not that of the keys listed")
}

func emptyValues(x *suite) {
	w := x.watch("", 0)
	rev := x.write(kvdb.Put("a", nil), kvdb.Put("b", []byte{}))
	x.expectStored("", "a=", "b=")
	x.Expect(x.try([]kvdb.Cond{kvdb.Absent("a")}, kvdb.Put("a", []byte("1")))).To(MatchError(kvdb.ErrConditions))
	x.expectNext(w, stored("a", "", rev), stored("b", "", rev))
}

func copyInput(x *suite) {
	w := x.watch("", 0)
	value := []byte("before")
	ops := []kvdb.Op{kvdb.Put("a", value), kvdb.Put("b", []byte("b"))}
	conds := []kvdb.Cond{kvdb.Absent("a")}
	rev, err := x.store.Txn(x.ctx, conds, ops)
	x.Expect(err).NotTo(HaveOccurred())
	copy(value, "after!")
	ops[1] = kvdb.Delete("a")
	conds[0].Key = "b"
	x.expectStored("", "a=before", "b=b")
	x.expectNext(w, stored("a", "before", rev), stored("b", "b", rev))
}

func listSeveral(x *suite) {
	x.write(puts("a=", "a/=", "a/1=", "a/2=", "a0=", "b/1=", "c/1=", "c/2=", "\xff1=")...)
	for _, c := range []struct{ prefixes, want []string }{
		{[]string{"a/", "c/"}, []string{"a/=", "a/1=", "a/2=", "c/1=", "c/2="}},
		{[]string{"c/", "a/"}, []string{"a/=", "a/1=", "a/2=", "c/1=", "c/2="}},
		{[]string{"c/", "c/"}, []string{"c/1=", "c/2="}},
		{[]string{"a/1", "a/", "a/2"}, []string{"a/=", "a/1=", "a/2="}},
		{[]string{"a0", "a"}, []string{"a=", "a/=", "a/1=", "a/2=", "a0="}},
		{[]string{"none", "b/1", "\xff"}, []string{"b/1=", "\xff1="}},
		{[]string{"none", "neither"}, nil},
		{[]string{"b/", "", "a/"}, []string{"a=", "a/=", "a/1=", "a/2=", "a0=", "b/1=", "c/1=", "c/2=", "\xff1="}},
	} {
		given := append([]string{}, c.prefixes...)
		x.Expect(x.listed(c.prefixes...)).To(Equal(append([]string{}, c.want...)), "stored below %q", c.prefixes)
		x.Expect(c.prefixes).To(Equal(given), "they are the caller's")
	}
}

func listNoPrefix(x *suite) {
	rev := x.put("a", "1")
	x.Expect(x.listed()).To(BeEmpty())
	_, now, err := x.store.List(x.ctx)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(now).To(Equal(rev))
}

func maxPrefixes(x *suite) {
	x.write(puts("000=", "050=", "099=", "100=")...)
	var prefixes []string
	for i := range kvdb.MaxOps + 1 {
		prefixes = append(prefixes, fmt.Sprintf("%03d", i))
	}
	x.Expect(x.listed(prefixes[:kvdb.MaxOps]...)).To(Equal([]string{"000=", "050=", "099="}))
	_, _, err := x.store.List(x.ctx, prefixes...)
	x.Expect(err).To(MatchError(kvdb.ErrTooManyOps))
}
