// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

var (
	// errOtherSession is returned while another process beats with this node's identity.
	errOtherSession = errors.New("another agent runs with this node's identity")
	// errMaybeTwin is returned at a start, until it is known whether the process
	// that wrote the last beat goes on.
	errMaybeTwin = errors.New("another agent may run with this node's identity")
	// errMoved is the kind of problem of a disk that was last confirmed elsewhere.
	errMoved = errors.New("this node's disk is of another machine")
)

// twins tells the beats of this process from those of a twin. A twin is another process
// that has this node's instance, because the disk was copied. Or it has this process's
// session too, because a snapshot of the machine's memory was resumed.
//
// A beat is of this process if this process wrote it at that revision, or tried to.
// It is of an earlier run if the disk names its session and it names this machine.
// Every other beat is a twin's until the twin has stopped, or has not beaten for as
// long as a beat is fresh. That time counts from when this process first saw that
// beat: this process trusts no clock of another machine for that.
//
// It belongs to the goroutine that confirms the node ID.
type twins struct {
	who      Identity
	earlier  []string // sessions that the disk names: the one confirmed last, and one that was about to beat
	moved    uint32   // the ID that the disk remembers, if it is of another machine; else 0
	announce func(replaces string) error

	written  int64     // revision of the newest beat known to be of this process; 0: none yet
	last     writing   // of that beat
	tried    []writing // since then, with an outcome that is unknown
	replaces string    // session of the earlier run whose beat the first one of this run replaces
	watched  map[uint32]watched
}

// writing identifies one write of a beat by a session: no process writes twice in
// one nanosecond. Other fields do not count, because a store may not know them:
// the API server drops those that an older definition lacks.
type writing struct {
	id         uint32
	generation uint64
	at         int64
}

func writingOf(beat *kv.NodeBeat) writing { return writing{beat.Id, beat.Generation, beat.At} }

// watched is a twin's beat under an ID.
type watched struct {
	revision int64
	since    time.Time // when this process first saw it at this revision
	alive    bool      // it was seen to change
}

// twinError says that a beat under this node's ID is a twin's. Its text says what to do.
type twinError struct {
	kind  error
	text  string
	seen  string    // the beat, for the log: its session and machine
	until time.Time // when the twin counts as stopped if it does not beat again
}

func (e *twinError) Error() string { return e.text }
func (e *twinError) Unwrap() error { return e.kind }

// newTwins returns the record of a process that has written nothing. It calls
// announce before the first beat is written, with the session that this replaces.
func newTwins(who Identity, saved remembered, announce func(replaces string) error) *twins {
	t := &twins{who: who, announce: announce, watched: map[uint32]watched{}}
	for _, session := range []string{saved.Session, saved.Pending} {
		if session != "" {
			t.earlier = append(t.earlier, session)
		}
	}
	if saved.ID != 0 && !who.Machine.Same(saved.Machine) {
		t.moved = saved.ID
	}
	return t
}

// look returns a twinError if the beat that was found under id is a twin's. beat
// is nil for a value that cannot be read, and, with revision 0, for none. addresses holds
// those of the node in the store.
func (t *twins) look(id uint32, addresses []string, last lastBeat, now time.Time) error {
	beat, revision := last.beat, last.revision
	if t == nil {
		return nil
	}
	w, seen := t.watched[id]
	lost := seen && beat == nil && revision == 0 // by the store: the twin is no less alive for that
	if !lost && !t.strange(id, beat, revision) || !seen && !t.maybeAlive(beat, revision, now) {
		delete(t.watched, id)
		return nil
	}
	if !seen || w.revision != revision {
		w = watched{revision: revision, since: now, alive: seen || t.written != 0}
		t.watched[id] = w
	}
	until := w.since.Add(t.who.Fresh)
	if !now.Before(until) {
		return nil
	}
	return t.describe(id, addresses, beat, w, until)
}

// strange reports whether a beat is neither of this process nor of an earlier
// run, and its agent has not said that it stops.
func (t *twins) strange(id uint32, beat *kv.NodeBeat, revision int64) bool {
	switch {
	case beat == nil && revision == 0:
		// The store was wiped, or is another one: a twin that this disk is a copy of
		// may not have beaten there yet.
		return id == t.moved && t.written == 0
	case beat == nil:
		return true
	case beat.Instance != t.who.Instance || beat.Stopped || signed(beat, t.who.Name) == nil:
		return false
	}
	return !t.own(beat, revision) && !t.restarted(beat, revision)
}

// maybeAlive reports whether a twin's beat tells that the twin may be alive: it
// is fresh, or came after a beat of this process, whatever clock it was written by.
func (t *twins) maybeAlive(beat *kv.NodeBeat, revision int64, now time.Time) bool {
	return beat == nil || t.written != 0 && revision > t.written || now.Sub(time.Unix(0, beat.At)) < t.who.Fresh
}

// own reports whether this process wrote the beat that was found at revision,
// and notes that its outcome is known.
func (t *twins) own(beat *kv.NodeBeat, revision int64) bool {
	if beat.Session != t.who.Session {
		return false
	}
	w := writingOf(beat)
	if revision == t.written || w == t.last {
		return true
	}
	if slices.Contains(t.tried, w) {
		t.wrote(beat, revision)
		return true
	}
	return revision < t.written && w.at <= t.last.at // a store that came back older
}

// restarted reports whether an earlier run of this node on this machine wrote
// the beat. After the first beat of this process that can be so only in a store
// that came back older.
func (t *twins) restarted(beat *kv.NodeBeat, revision int64) bool {
	is := slices.Contains(t.earlier, beat.Session) && t.who.Machine.Same(machineOf(beat)) &&
		(t.written == 0 || revision < t.written)
	if is {
		t.replaces = beat.Session
	}
	return is
}

// try notes a beat that is about to be written. It fails if the disk cannot
// remember the session: a crash after the write would look like a clone.
func (t *twins) try(beat *kv.NodeBeat) error {
	if t == nil {
		return nil
	}
	if err := t.announce(t.replaces); err != nil {
		return err
	}
	t.tried = append(t.tried, writingOf(beat))
	return nil
}

// wrote notes that a beat of this process is at revision. Earlier tries were
// conditional on what that beat has replaced.
func (t *twins) wrote(beat *kv.NodeBeat, revision int64) {
	if t == nil {
		return
	}
	t.written, t.last, t.tried = revision, writingOf(beat), nil
}

func (t *twins) describe(id uint32, addresses []string, beat *kv.NodeBeat, w watched, until time.Time) error {
	e := &twinError{kind: errMaybeTwin, until: until}
	switch {
	case beat == nil && w.revision == 0:
		e.seen = fmt.Sprintf(
			"the store has lost the beat of node ID %d, and the agent that wrote it may not have come back",
			id,
		)
	case beat == nil:
		e.seen = fmt.Sprintf("the beat of node ID %d cannot be read", id)
	default:
		e.seen = fmt.Sprintf(
			"node ID %d beat at %s, session %s, machine: %s; this machine: %s",
			id,
			at(beat),
			cmp.Or(beat.Session, "unknown"),
			machineOf(beat),
			t.who.Machine,
		)
	}
	where := ""
	if len(addresses) > 0 {
		where = ", at " + strings.Join(addresses, " and ") + " according to the cluster store"
	}
	why := "was its disk copied, or a snapshot of its memory resumed?"
	if beat == nil {
		why = e.seen + "."
	}
	if w.alive {
		e.kind = errOtherSession
		e.text = fmt.Sprintf("%v%s: %s Stop one of the two, and remove its state directory", e.kind, where, why)
		return e
	}
	e.text = fmt.Sprintf("%v%s: %s If that one does not beat again until %s, this agent goes on",
		e.kind, where, why, until.UTC().Format(time.RFC3339))
	return e
}

func machineOf(beat *kv.NodeBeat) Machine {
	return Machine{ProductUUID: beat.GetProductUuid(), BootID: beat.GetBootId()}
}
