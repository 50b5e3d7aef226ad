// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// Commit identifies a state of a database to people.
type Commit struct {
	Lineage  string
	Sequence uint64 // 0: not known
	At       time.Time
}

// Cures says what a person does about a database that is in doubt, in the order of preference.
// The first two are safe while pods run.
const Cures = "stop the agent and bring the newest copy back (cadastre restore FILE), " +
	"or else make a database from what runs (cadastre rebuild); both are safe while pods run; " +
	"or else, if nothing that it lacks is in use, cadastre accept"

// Doubt says why a database may not know all that this node has leased. New
// addresses must not be allocated from it before a person has accepted it.
type Doubt struct {
	Reason string // a sentence
	Known  Commit // the newest commit that was noted
	Opened Commit // the last commit of the database when the doubt began; Sequence 0: it was empty
}

// trust compares an open database with its notes. It belongs to
// the committing goroutine, but for OpenFile.
type trust struct {
	notes     *notes
	last      commitID  // that the file has
	attempted *commitID // that it may have instead, after a commit that failed
	why       doubt
	known     *known
	opened    *known // with a doubt: the last commit when the doubt began
	accepting bool   // the transaction under way begins a new lineage, and ends the doubt
}

// assess reads the notes and compares the database with them, before anything
// is written.
func (f *File) assess(empty bool) (err error) {
	found := readNotes(f.opt.Notes)
	t := &f.trust
	if err := f.view(func(tx *bbolt.Tx) (err error) { t.last, err = readCommit(tx); return err }); err != nil {
		return err
	}
	if !empty && t.last.sequence == 0 {
		return damaged(fmt.Errorf("it has no record %q", commitKey))
	}
	var against *note
	if len(f.opt.Notes) > 0 {
		t.why, against = judge(found, t.last, f.opt.BootID)
	}
	if t.why != "" && against != nil {
		if t.known = against.Known; t.known == nil {
			t.known = &known{Lineage: against.Lineage, Sequence: against.Sequence, At: against.At}
			if against.Doubt == "" { // a note of a doubt is about the database that is in doubt
				t.known.ID = against.ID
			}
		}
	}
	if t.why != "" {
		t.opened = &known{Lineage: t.last.lineage, Sequence: t.last.sequence, At: t.last.at}
		if against != nil && against.Opened != nil {
			t.opened = against.Opened // the doubt is older than this process, which has committed too
		}
	}
	if t.last.sequence == 0 {
		t.last = commitID{lineage: f.opt.random()}
	}
	if t.notes, err = openNotes(f.opt.Notes, found); err != nil {
		return err
	}
	f.publish(t.last, t.last)
	return f.note() // a doubt must survive before anything is committed
}

// note writes what is known of the database to the note files.
func (f *File) note() error {
	t := &f.trust
	f.doubted.Store(t.doubt())
	return t.notes.write(note{
		Lineage:  t.last.lineage,
		Sequence: t.last.sequence,
		ID:       t.last.id,
		At:       t.last.at,
		Boot:     f.opt.BootID,
		Doubt:    t.why,
		Known:    t.known,
		Opened:   t.opened,
	})
}

// Doubt returns why the database is in doubt, nil if it is not.
func (f *File) Doubt() *Doubt { return f.doubted.Load() }

// Last returns the last commit.
func (f *File) Last() Commit {
	c := f.recent.Load()[0]
	return Commit{c.lineage.String(), c.sequence, c.time()}
}

// Accept makes the database as it is one that is trusted. It begins a new lineage:
// a database with the commits that are given up here is another one from now on.
func (f *File) Accept(ctx context.Context) error {
	err := f.commits.commit(ctx, func(*bbolt.Tx) (bool, error) {
		return f.accept(), nil
	})
	if err != nil {
		return fmt.Errorf("accept database %s: %w", f.path, err)
	}
	return nil
}

// acceptKey is the key of an op of the journal that accepts the database.
const acceptKey = "accept"

// accept makes the transaction under way end the doubt, if there is one.
func (f *File) accept() (doubted bool) {
	f.trust.accepting = f.trust.why != ""
	return f.trust.accepting
}

func (t *trust) doubt() *Doubt {
	if t.why == "" {
		return nil
	}
	d := &Doubt{}
	d.Known, d.Opened = t.known.commit(), t.opened.commit()
	d.Reason = t.why.sentence(d.Known)
	return d
}

// commit returns the commit for people, the zero Commit for nil.
func (k *known) commit() Commit {
	if k == nil {
		return Commit{}
	}
	return Commit{k.Lineage.String(), k.Sequence, time.Unix(0, k.At).UTC()}
}

// sentence says what is wrong. It names no commit of the database itself, because
// that goes on while the doubt lasts.
func (d doubt) sentence(known Commit) string {
	noted := fmt.Sprintf("commit %d of %s", known.Sequence, known.At.Format(time.RFC3339))
	switch d {
	case doubtNoNote:
		return "the database is not empty, and neither of its notes is readable, so it may be an older copy"
	case doubtEmpty:
		return "the database was empty, and " + noted + " was noted: it was removed"
	case doubtOlder:
		return "the database came back older than it was: " + noted + " was noted, and is not in it"
	case doubtForked, doubtAhead:
		return "the database is not the one that was noted: " + noted + " is not its last but one"
	case doubtLineage:
		return "the database is another one than the one that was noted, whose last commit was " + noted
	}
	return fmt.Sprintf("the database is in doubt (%s)", string(d))
}
