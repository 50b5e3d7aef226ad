// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestJudge(t *testing.T) {
	const boot = "this boot"
	one, two := identity{1}, identity{2} // lineages
	at := func(n uint64, branch byte) identity { return identity{branch, byte(n)} }
	db := func(lineage identity, n uint64, branch, before byte) commitID {
		c := commitID{lineage: lineage, sequence: n, id: at(n, branch)}
		if n > 1 {
			c.previous = at(n-1, before)
		}
		return c
	}
	noted := func(count uint64, lineage identity, n uint64, where string) note {
		x := note{Count: count, Lineage: lineage, Sequence: n, Boot: where}
		if n > 0 {
			x.ID = at(n, 1)
		}
		return x
	}
	doubted := func(n note, why doubt) note { n.Doubt = why; return n }
	// returned is the note of a database in doubt that lacks the commit 9 of lineage one.
	returned := doubted(noted(12, one, 14, boot), doubtOlder)
	returned.ID, returned.Known = at(14, 2), &known{Lineage: one, Sequence: 9, ID: at(9, 1)}
	var empty commitID
	for _, c := range []struct {
		what  string
		notes []note
		db    commitID
		want  doubt
	}{
		{"a new node", nil, empty, ""},
		{"both notes lost", nil, db(one, 5, 1, 1), doubtNoNote},
		{"the first commit was not reached", []note{noted(1, one, 0, boot)}, empty, ""},
		{"a crash between the first commit and its note", []note{noted(1, one, 0, boot)}, db(one, 1, 1, 1), ""},
		{"another database, and a note of no commit", []note{noted(1, one, 0, boot)}, db(two, 1, 1, 1), doubtNoNote},
		{"the database removed", []note{noted(9, one, 5, boot)}, empty, doubtEmpty},
		{"the database removed, and a reboot", []note{noted(9, one, 5, "before")}, empty, doubtEmpty},
		{"a restart", []note{noted(9, one, 5, boot)}, db(one, 5, 1, 1), ""},
		{"a crash between commit and note", []note{noted(9, one, 5, boot)}, db(one, 6, 1, 1), ""},
		{"ahead by one of another branch", []note{noted(9, one, 5, boot)}, db(one, 6, 2, 2), doubtForked},
		{"ahead by two", []note{noted(9, one, 5, boot)}, db(one, 7, 1, 1), doubtAhead},
		{"the same number of another branch", []note{noted(9, one, 5, boot)}, db(one, 5, 2, 1), doubtForked},
		{"an older copy", []note{noted(9, one, 5, boot)}, db(one, 4, 1, 1), doubtOlder},
		{"another database", []note{noted(9, one, 5, boot)}, db(two, 5, 1, 1), doubtLineage},
		{"another database that has more", []note{noted(9, one, 5, boot)}, db(two, 50, 1, 1), doubtLineage},
		{"a reboot", []note{noted(9, one, 5, "before")}, db(one, 5, 1, 1), ""},
		{"a loss of power that took the last notes", []note{noted(9, one, 5, "before")}, db(one, 50, 1, 1), ""},
		{"an older copy and a reboot", []note{noted(9, one, 5, "before")}, db(one, 4, 1, 1), doubtOlder},
		{"another branch and a reboot", []note{noted(9, one, 5, "before")}, db(one, 5, 2, 1), doubtForked},
		{"another database and a reboot", []note{noted(9, one, 5, "before")}, db(two, 5, 1, 1), doubtLineage},
		{"a doubt stands", []note{doubted(noted(9, one, 5, boot), doubtOlder)}, db(one, 5, 1, 1), doubtOlder},
		{"the newest copy comes back", []note{returned}, db(one, 9, 1, 1), ""},
		{"the newest copy, one commit ahead of its note", []note{returned}, db(one, 10, 1, 1), ""},
		{"the newest copy but one", []note{returned}, db(one, 8, 1, 1), doubtOlder},
		{"the copy in doubt goes on", []note{returned}, db(one, 14, 2, 2), doubtOlder},
		{"the copy in doubt, with as many commits", []note{returned}, db(one, 9, 2, 2), doubtOlder},
		{"the copy in doubt, with one commit more", []note{returned}, db(one, 10, 2, 2), doubtOlder},
		{"another database with as many commits", []note{returned}, db(two, 9, 1, 1), doubtOlder},
		{"a doubt stands after a reboot", []note{doubted(noted(9, one, 5, "before"), doubtEmpty)}, db(one, 6, 1, 1), doubtEmpty},
		{"a doubt stands before the first commit", []note{doubted(noted(9, one, 0, boot), doubtEmpty)}, empty, doubtEmpty},
		{"one of two notes is old", []note{noted(8, one, 4, boot), noted(9, one, 5, boot)}, db(one, 5, 1, 1), ""},
		{"one of two notes is old, in the other order", []note{noted(9, one, 5, boot), noted(8, one, 4, boot)}, db(one, 4, 1, 1), doubtOlder},
		{"the whole state directory was set back", []note{noted(9, one, 5, boot), noted(7, one, 3, boot)}, db(one, 3, 1, 1), doubtOlder},
		{"the state directory of another node", []note{noted(9, one, 5, boot), noted(700, two, 300, boot)}, db(two, 300, 1, 1), doubtLineage},
		{"a run directory that was not emptied, of another state directory", []note{noted(9, one, 5, "before"), noted(700, two, 300, boot)}, db(two, 300, 1, 1), ""},
		{"a reboot, and only the older note is left", []note{noted(3, one, 2, "before")}, db(one, 5, 1, 1), ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			why, _ := judge(c.notes, c.db, boot)
			NewWithT(t).Expect(why).To(Equal(c.want))
		})
	}
}
