// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

// doubt explains why a database may not know all that this node has leased.
type doubt string

// Doubts.
const (
	doubtNoNote  doubt = "no-note" // the database is not empty, and no note is readable
	doubtEmpty   doubt = "empty"   // the database is empty, and a note says that it was not
	doubtOlder   doubt = "older"   // commits that were noted are missing
	doubtForked  doubt = "forked"  // another commit is in the place of one that was noted
	doubtAhead   doubt = "ahead"   // more than one commit was not noted
	doubtLineage doubt = "lineage" // it is another database
)

// judge compares a database with the notes that are readable. A commit is noted
// before it is answered, so the database equals the newest note of this boot, or
// is one commit ahead of it. A note of an earlier boot may lag: a loss of power
// takes back what was not synced. against is the note that counts, nil for none.
func judge(found []note, db commitID, boot string) (why doubt, against *note) {
	for i := range found {
		n := &found[i]
		if n.about(db) && (against == nil || n.Count > against.Count) {
			against = n
		}
	}
	if against == nil {
		if db.sequence == 0 {
			return "", nil
		}
		return doubtNoNote, nil
	}
	for i := range found { // another database of this boot: its notes are not counted together with these
		n := &found[i]
		if n.about(db) && n.Boot == boot && n.Lineage != against.Lineage && against.Doubt == "" &&
			against.Lineage == db.lineage {
			against = n
		}
	}
	switch n := against; {
	case n.Doubt != "" && n.Known.is(db):
		return "", n // the newest copy came back: nothing new was allocated during the doubt
	case n.Doubt != "":
		return n.Doubt, n
	case db.sequence == 0:
		return doubtEmpty, n
	case db.lineage != n.Lineage:
		return doubtLineage, n
	case db.sequence < n.Sequence:
		return doubtOlder, n
	case db.sequence == n.Sequence && db.id != n.ID:
		return doubtForked, n
	case db.sequence == n.Sequence || n.Boot != boot:
		return "", n
	case db.sequence > n.Sequence+1:
		return doubtAhead, n
	case db.previous != n.ID:
		return doubtForked, n
	}
	return "", against
}
