// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

func conditionChecks() []Check {
	return []Check{
		{"apply a transaction only if its conditions hold", conditions},
		{"see deletions and rewrites in conditions", conditionsFollow},
	}
}

func conditions(x *suite) {
	a := x.write(puts("a=1", "a2=1")...)
	b := x.put("b", "1")
	at, absent := kvdb.AtRevision, kvdb.Absent
	for _, c := range []struct {
		name  string
		conds []kvdb.Cond
		holds bool
	}{
		{"absent", []kvdb.Cond{absent("none")}, true},
		{"absent below a stored key", []kvdb.Cond{absent("a/")}, true},
		{"absent, but stored", []kvdb.Cond{absent("a")}, false},
		{"at revision", []kvdb.Cond{at("a", a)}, true},
		{"at revision 0 is absent", []kvdb.Cond{at("none", 0)}, true},
		{"at the revision of another", []kvdb.Cond{at("a", b)}, false},
		{"at an earlier revision", []kvdb.Cond{at("b", a)}, false},
		{"at a revision to come", []kvdb.Cond{at("b", b+1)}, false},
		{"at revision, but not stored", []kvdb.Cond{at("none", b)}, false},
		{"all of several", []kvdb.Cond{at("a", a), at("a2", a), at("b", b), absent("c")}, true},
		{"the same twice", []kvdb.Cond{at("a", a), at("a", a)}, true},
		{"contradiction", []kvdb.Cond{at("a", a), absent("a")}, false},
		{"first of several", []kvdb.Cond{absent("a"), at("b", b), absent("c")}, false},
		{"last of several", []kvdb.Cond{at("a", a), at("b", b), absent("b")}, false},
	} {
		_, before := x.list("")
		err := x.try(c.conds, kvdb.Put("w/1", []byte(c.name)), kvdb.Put("w/2", []byte(c.name)), kvdb.Delete("w/3"))
		if c.holds {
			x.Expect(err).NotTo(HaveOccurred(), c.name)
			x.expectStored("w/", "w/1="+c.name, "w/2="+c.name)
			x.write(kvdb.Delete("w/1"), kvdb.Delete("w/2"))
			continue
		}
		x.Expect(err).To(MatchError(kvdb.ErrConditions), c.name)
		x.expectStored("w/")
		_, after := x.list("")
		x.Expect(after).To(Equal(before), c.name)
	}
}

func conditionsFollow(x *suite) {
	first := x.put("a", "1")
	atFirst := []kvdb.Cond{kvdb.AtRevision("a", first)}
	second := x.put("a", "1")
	x.Expect(x.try(atFirst, puts("a=2")...)).To(MatchError(kvdb.ErrConditions), "rewritten")
	x.Expect(x.try([]kvdb.Cond{kvdb.AtRevision("a", second)}, kvdb.Delete("a"))).To(Succeed())
	x.Expect(
		x.try([]kvdb.Cond{kvdb.AtRevision("a", second)}, puts("a=2")...),
	).To(
		MatchError(kvdb.ErrConditions),
		"deleted",
	)
	x.Expect(x.try([]kvdb.Cond{kvdb.Absent("a")}, puts("a=3")...)).To(Succeed())
	x.Expect(x.try([]kvdb.Cond{kvdb.Absent("a")}, puts("a=4")...)).To(MatchError(kvdb.ErrConditions), "stored again")
	x.Expect(x.try(atFirst, puts("a=4")...)).To(MatchError(kvdb.ErrConditions), "its first revision does not come back")
	x.expectStored("", "a=3")
}
