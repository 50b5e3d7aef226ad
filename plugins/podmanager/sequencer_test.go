// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
)

func attachment(container string) ledger.Key {
	return ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}
}

// sequence is a sequencer of requests that begin as soon as they are accepted.
type sequence struct{ *sequencer }

func newSequence() sequence {
	return sequence{newSequencer(func() time.Duration { return 0 }, &ticketOfLease{})}
}

// ticketOfLease is that of the newest ADD that is answered with a lease.
type ticketOfLease struct{ accepted time.Duration }

func (a *ticketOfLease) Answered(_ ledger.Key, accepted time.Duration) (before time.Duration) {
	before, a.accepted = a.accepted, max(a.accepted, accepted)
	return before
}

func (a *ticketOfLease) Unanswered(_ ledger.Key, accepted, newest time.Duration) {
	if a.accepted == accepted {
		a.accepted = newest
	}
}

func (a *ticketOfLease) AnsweredAfter(_ ledger.Key, accepted time.Duration) bool {
	return a.accepted > accepted
}

func (s sequence) add(k ledger.Key) time.Duration {
	ticket := s.accept()
	s.beginAdd(k)
	s.leave(ticket)
	return ticket
}

func (s sequence) del(k ledger.Key) {
	ticket := s.accept()
	s.beginDel(k, ticket)
	s.leave(ticket)
}

func TestADelCancelsTheAddsBeforeIt(t *testing.T) {
	g := NewWithT(t)
	s, k := newSequence(), attachment("c1")
	first, second := s.add(k), s.add(k)
	g.Expect(s.cancelled(k, first)).To(BeFalse())
	s.del(attachment("c2"))
	g.Expect(s.cancelled(k, first)).To(BeFalse(), "another attachment's")
	s.del(k)
	later := s.add(k)
	g.Expect(s.cancelled(k, first)).To(BeTrue())
	g.Expect(s.cancelled(k, second)).To(BeTrue())
	g.Expect(s.cancelled(k, later)).To(BeFalse(), "it is a new attachment")
}

// What is not under way is forgotten.
func TestTheSequencerRemembersNothingForLong(t *testing.T) {
	g := NewWithT(t)
	s, k := newSequence(), attachment("c1")
	s.del(k)
	s.delDone(k)
	g.Expect(s.keys).To(BeEmpty(), "nothing waits for it")
	a, b := s.add(k), s.add(k)
	g.Expect(s.addDone(k, a, true, true)).To(BeFalse())
	s.delivered(k, a)
	g.Expect(s.addDone(k, b, false, false)).To(BeFalse())
	g.Expect(s.keys).To(BeEmpty())
}

// A DEL that is done cancels an ADD that was accepted before it and has not begun yet. It is
// remembered as long as such an ADD may come.
func TestADelThatIsDoneCancelsAnOlderAdd(t *testing.T) {
	g := NewWithT(t)
	s, k := newSequence(), attachment("c1")
	add, other := s.accept(), s.accept()
	s.del(k)
	s.delDone(k)
	s.leave(other)
	s.beginAdd(k)
	g.Expect(s.cancelled(k, add)).To(BeTrue())
	g.Expect(s.addDone(k, add, false, false)).To(BeFalse())
	g.Expect(s.keys).NotTo(BeEmpty(), "its caller is not done with")
	later := s.accept()
	s.leave(add)
	g.Expect(s.keys).To(BeEmpty(), "those that still wait came after the DEL")
	g.Expect(s.deleted).To(BeEmpty())
	s.leave(later)
	g.Expect(s.waiting).To(BeEmpty())
}

// addDone reports whether the caller must release the lease of an ADD.
func TestAddDoneReportsAnOrphanedLease(t *testing.T) {
	const claimed, not, received, gone = true, false, true, false
	for _, c := range []struct {
		name string
		do   func(s sequence, k ledger.Key) bool
		want bool
	}{
		{"its caller received it", func(s sequence, k ledger.Key) bool { return s.addDone(k, s.add(k), claimed, received) }, false},
		{"the ADD itself", func(s sequence, k ledger.Key) bool { return s.addDone(k, s.add(k), claimed, gone) }, true},
		{"it claimed nothing", func(s sequence, k ledger.Key) bool { return s.addDone(k, s.add(k), not, gone) }, false},
		{"a newer ADD wants it", func(s sequence, k ledger.Key) bool {
			a := s.add(k)
			s.add(k)
			return s.addDone(k, a, claimed, gone)
		}, false},
		{"the newer ADD, when it is gone, too", func(s sequence, k ledger.Key) bool {
			a, b := s.add(k), s.add(k)
			s.addDone(k, a, claimed, gone)
			return s.addDone(k, b, not, gone)
		}, true},
		{"the caller of the newer ADD received it", func(s sequence, k ledger.Key) bool {
			a, b, c := s.add(k), s.add(k), s.add(k)
			s.addDone(k, a, claimed, gone)
			s.addDone(k, b, not, received)
			return s.addDone(k, c, not, gone)
		}, false},
		{"a DEL that came later", func(s sequence, k ledger.Key) bool {
			a := s.add(k)
			s.del(k)
			return s.addDone(k, a, claimed, gone)
		}, false},
	} {
		g := NewWithT(t)
		g.Expect(c.do(newSequence(), attachment("c1"))).To(Equal(c.want), c.name)
	}
}

// A release that waits for the loop is void as soon as an ADD wants the lease, or a DEL frees it.
func TestAReleaseThatIsNotNeededAnyMore(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(s sequence, k ledger.Key)
		may       bool
	}{
		"nothing happens": {func(sequence, ledger.Key) {}, true},
		"a newer ADD":     {func(s sequence, k ledger.Key) { s.add(k) }, false},
		"a DEL":           {func(s sequence, k ledger.Key) { s.del(k) }, false},
		"another's ADD":   {func(s sequence, _ ledger.Key) { s.add(attachment("c2")) }, true},
	} {
		g := NewWithT(t)
		s, k := newSequence(), attachment("c1")
		a := s.add(k)
		g.Expect(s.addDone(k, a, true, false)).To(BeTrue())
		c.meanwhile(s, k)
		g.Expect(s.mayRelease(k)).To(Equal(c.may), name)
	}
}

// world is one attachment, its lease, and what is under way for it; it does
// with a sequencer what the plugin, the ledger and the runtime do.
type world struct {
	s        *sequencer
	k        ledger.Key
	claims   int
	lease    int            // number of the claim, 0: none
	answered *ticketOfLease // of the lease
	lastDel  time.Duration
	callers  []*op // accepted, their requests are not here yet
	queue    []*op // begun, on the way to the loop
	sent     []*op // ADDs whose answers are on their way
	received []*op
	script   []string
}

// op is one request.
type op struct {
	kind   string // ADD, DEL, release
	ticket time.Duration
	gone   bool // its caller
	took   bool
	claim  int
	ok     bool
}

func newWorld() *world {
	w := &world{s: newSequence().sequencer, k: attachment("c1")}
	w.answered = w.s.answers.(*ticketOfLease)
	return w
}

func (w *world) note(format string, args ...any) {
	w.script = append(w.script, fmt.Sprintf(format, args...))
}

// accept accepts a caller.
func (w *world) accept(kind string) {
	o := &op{kind: kind, ticket: w.s.accept()}
	if kind == "DEL" {
		w.lastDel = o.ticket
	}
	w.callers = append(w.callers, o)
	w.note("%s %d", kind, o.ticket)
}

// begin reads the request of caller number i.
func (w *world) begin(i int) {
	o := w.callers[i]
	w.callers = slices.Delete(w.callers, i, i+1)
	w.note("read: %s %d", o.kind, o.ticket)
	if o.kind == "ADD" {
		w.s.beginAdd(w.k)
	} else {
		w.s.beginDel(w.k, o.ticket)
	}
	w.s.leave(o.ticket)
	w.queue = append(w.queue, o)
}

// process lets the loop come to number i of what is on the way: those who wait
// for room may overtake each other. An ADD may fail.
func (w *world) process(i int, fails bool) {
	o := w.queue[i]
	w.queue = slices.Delete(w.queue, i, i+1)
	w.note("loop: %s %d", o.kind, o.ticket)
	switch o.kind {
	case "DEL":
		if w.s.mayFree(w.k, o.ticket) {
			w.free()
		}
		w.s.delDone(w.k)
	case "release":
		if w.s.mayRelease(w.k) {
			w.free()
			w.s.released(w.k)
		}
		w.s.delDone(w.k)
	case "ADD":
		if o.ok = !fails && !w.s.cancelled(w.k, o.ticket); o.ok {
			if o.took = w.lease == 0; o.took {
				w.claims++
				w.lease, w.answered.accepted = w.claims, o.ticket
			}
			o.claim = w.lease
		}
		w.done(o, o.ok && !o.gone)
	}
}

func (w *world) free() { w.lease, w.answered.accepted = 0, 0 }

func (w *world) done(o *op, received bool) {
	w.note("ADD %d is done, ok %v, received %v", o.ticket, o.ok, received)
	if received {
		w.sent = append(w.sent, o)
	}
	if w.s.addDone(w.k, o.ticket, o.ok && o.took, received) {
		w.queue = append(w.queue, &op{kind: "release", ticket: o.ticket})
	}
}

// deliver lets the answer of number i of those on their way arrive, or not if its caller is
// gone meanwhile.
func (w *world) deliver(i int) {
	o := w.sent[i]
	w.sent = slices.Delete(w.sent, i, i+1)
	w.note("the answer of ADD %d arrives: %v", o.ticket, !o.gone)
	if !o.gone {
		w.received = append(w.received, o)
		w.s.delivered(w.k, o.ticket)
	} else if w.s.undelivered(w.k, o.ticket) {
		w.queue = append(w.queue, &op{kind: "release", ticket: o.ticket})
	}
}

// drain lets everything end.
func (w *world) drain() {
	for len(w.callers) > 0 {
		w.begin(0)
	}
	for len(w.queue)+len(w.sent) > 0 {
		if len(w.queue) > 0 {
			w.process(0, false)
		} else {
			w.deliver(0)
		}
	}
}

// wrong says what must not be, now that everything has ended.
func (w *world) wrong() string {
	for _, o := range w.received {
		if o.ticket > w.lastDel {
			if w.lease != o.claim {
				return fmt.Sprintf("ADD %d received claim %d, no DEL followed, but the lease is %d", o.ticket, o.claim, w.lease)
			}
			return w.remembered()
		}
	}
	if w.lease != 0 {
		return fmt.Sprintf("no caller received claim %d", w.lease)
	}
	return w.remembered()
}

func (w *world) remembered() string {
	if len(w.s.keys) > 0 || len(w.s.deleted) > 0 {
		return "the sequencer has not forgotten the attachment"
	}
	return ""
}

// explore does random things with a world.
func explore(seed uint64) *world {
	w, rnd := newWorld(), rand.New(rand.NewPCG(seed, 7))
	for range 4 + rnd.IntN(14) {
		switch rnd.IntN(9) {
		case 0, 1:
			w.accept("ADD")
		case 2:
			w.accept("DEL")
		case 3:
			for _, o := range slices.Concat(w.callers, w.queue, w.sent) {
				if o.kind == "ADD" && rnd.IntN(2) == 0 {
					o.gone = true
					w.note("the caller of ADD %d is gone", o.ticket)
				}
			}
		case 4, 5:
			if n := len(w.callers); n > 0 {
				w.begin(rnd.IntN(n))
			}
		case 6:
			if n := len(w.sent); n > 0 {
				w.deliver(rnd.IntN(n))
			}
		default:
			if n := len(w.queue); n > 0 {
				w.process(rnd.IntN(n), rnd.IntN(6) == 0)
			}
		}
	}
	w.drain()
	return w
}

// In any order of calls, a lease that a caller received stays until a later DEL, and no
// lease stays that no caller received.
func TestAllInterleavings(t *testing.T) {
	for seed := range uint64(60000) {
		if w := explore(seed); w.wrong() != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.wrong(), strings.Join(w.script, "\n"))
		}
	}
}

// A DEL leaves a lease to a newer ADD that counts as answered. The lease does not stay if
// the answer to that ADD does not arrive.
func TestANewerAddThatIsNotAnswered(t *testing.T) {
	// add accepts an ADD, lets the loop process it, and its answer arrive.
	add := func(w *world) {
		w.accept("ADD")
		w.begin(len(w.callers) - 1)
		w.process(len(w.queue)-1, false)
		w.deliver(len(w.sent) - 1)
	}
	// abandoned is an ADD whose caller goes while the answer is on its way.
	abandoned := func(w *world) {
		w.accept("ADD")
		w.begin(len(w.callers) - 1)
		w.process(len(w.queue)-1, false)
		w.sent[len(w.sent)-1].gone = true
	}
	del := func(w *world) { w.begin(0); w.process(len(w.queue)-1, false) } // the oldest caller's
	for name, do := range map[string]func(w *world){
		"the DEL comes before the loss is known": func(w *world) {
			add(w)
			w.accept("DEL")
			abandoned(w)
			del(w)
			w.deliver(0)
		},
		"the DEL comes after the loss is known": func(w *world) {
			add(w)
			w.accept("DEL")
			abandoned(w)
			w.deliver(0)
			del(w)
		},
		"two newer ADDs": func(w *world) {
			add(w)
			w.accept("DEL")
			abandoned(w)
			abandoned(w)
			w.deliver(1)
			del(w)
			w.deliver(0)
		},
		"it had claimed the lease, and an older ADD is answered": func(w *world) {
			w.accept("ADD")
			w.accept("DEL")
			w.accept("ADD")
			w.callers[2].gone = true
			w.begin(2)
			w.begin(0)
			w.process(0, false)
			w.process(0, false)
			w.deliver(0)
			del(w)
		},
		"its lease is gone, and the next one does not arrive either": func(w *world) {
			add(w)
			abandoned(w)
			w.accept("DEL")
			del(w)
			abandoned(w)
			w.deliver(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, w := NewWithT(t), newWorld()
			do(w)
			w.drain()
			g.Expect(w.wrong()).To(BeEmpty(), "%s", strings.Join(w.script, "\n"))
			g.Expect(w.lease).To(BeZero())
		})
	}
}

// Of two newer ADDs the answer to one does not arrive: the lease is left to the other one.
func TestOneOfTwoNewerAddsIsAnswered(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	for _, kind := range []string{"ADD", "DEL", "ADD", "ADD"} {
		w.accept(kind)
	}
	for _, i := range []int{0, 1, 1} { // the ADDs
		w.begin(i)
		w.process(0, false)
	}
	w.deliver(0)
	w.sent[1].gone = true
	w.deliver(1)
	w.begin(0)
	w.process(0, false)
	w.drain()
	g.Expect(w.wrong()).To(BeEmpty(), "%s", strings.Join(w.script, "\n"))
	g.Expect(w.lease).NotTo(BeZero())
}

// The agent stops while a release waits in the loop's queue: its producer is
// gone by the time the loop asks whether it is still wanted.
func TestAReleaseWithoutItsProducer(t *testing.T) {
	g := NewWithT(t)
	s, k := newSequence(), attachment("c1")
	a := s.add(k)
	g.Expect(s.addDone(k, a, true, false)).To(BeTrue())
	s.delDone(k)
	g.Expect(func() { s.mayRelease(k) }).NotTo(Panic())
}
