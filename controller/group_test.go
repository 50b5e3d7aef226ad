// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// saving is a committer with savepoints that counts.
type saving struct {
	staged
	marks, undone int
}

func (s *saving) Mark()       { s.marks++ }
func (s *saving) UndoToMark() { s.undone++ }

// shared is an event that may share its commit. Its key is its name.
type shared struct {
	*event
	answers *lines[string]
}

func (e shared) GroupKey() string { return e.name }
func (e shared) Done(err error) {
	e.event.Done(err)
	e.answers.add(fmt.Sprintf("%s: %v", e.name, err))
}

// crowd is a rig whose events share commits.
type crowd struct {
	*rig
	saving  *saving
	answers lines[string]
	gate    chan struct{}
}

// together pushes events so that all are queued before the first one is processed.
func (c *crowd) together(events ...Event) {
	c.push(&event{name: "gate"})
	for _, ev := range events {
		c.g.Expect(c.PushEvent(ev)).To(Succeed())
	}
	c.gate <- struct{}{}
	synctest.Wait()
}

// adds returns events that are reverted on failure, with these names.
func (c *crowd) adds(names ...string) (events []Event) {
	for _, name := range names {
		events = append(events, shared{&event{name: name, txn: RevertOnFailure}, &c.answers})
	}
	return events
}

// groups returns the sizes of the groups of the events that were processed, and 0 for those
// with a commit of their own.
func (c *crowd) groups() (sizes []int) {
	all, _ := c.Events(0)
	for _, r := range all {
		if r.Name != "gate" && r.Method == Update {
			sizes = append(sizes, r.Group)
		}
	}
	return sizes
}

func crowded(t *testing.T, change func(*Config), f func(g Gomega, c *crowd)) {
	t.Helper()
	s := &saving{}
	loopWith(t, change, func(d *Deps) { d.Committers = []Committer{s} }, func(g Gomega, r *rig) {
		c := &crowd{rig: r, saving: s, gate: make(chan struct{})}
		r.a.update["gate"] = func(UpdateOperations) error { <-c.gate; return nil }
		r.sync()
		s.commits = 0
		f(g, c)
	})
}

func TestQueuedEventsShareACommit(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		var names, want []string
		for i := range 300 {
			names, want = append(names, fmt.Sprint(i)), append(want, fmt.Sprint(i, ": <nil>"))
		}
		c.together(c.adds(names...)...)
		g.Expect(c.saving.commits).To(Equal(1+3), "the gate, and groups of at most 128")
		g.Expect(c.answers.get()).To(Equal(want))
		g.Expect(c.groups()).To(HaveLen(300))
		g.Expect(c.groups()[127:129]).To(Equal([]int{128, 128}))
		g.Expect(c.groups()[299]).To(Equal(300 - 256))
		c.push(c.adds("alone")[0])
		g.Expect(c.groups()[300]).To(BeZero(), "it waits for no other")
	})
}

func TestWhatEndsAGroup(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		c.together(c.adds("a", "b", "a", "c")...)
		g.Expect(c.groups()).To(Equal([]int{2, 2, 2, 2}), "a key that is repeated")
	})
	crowded(t, nil, func(g Gomega, c *crowd) {
		events := c.adds("a", "b", "c", "d")
		c.together(append(events[:2:2], &event{name: "other"}, events[2], events[3])...)
		g.Expect(c.groups()).To(Equal([]int{2, 2, 0, 2, 2}), "another kind of event")
	})
	crowded(t, nil, func(g Gomega, c *crowd) {
		c.b.update["b"] = func(txn UpdateOperations) error { return txn.FollowUp(&event{name: "follow-up"}) }
		c.together(c.adds("a", "b", "c", "d")...)
		g.Expect(c.groups()).To(Equal([]int{2, 2, 0, 2, 2}))
		g.Expect(c.log.get()).To(ContainElements("c b", "c follow-up", "c c"))
	})
	crowded(t, nil, func(g Gomega, c *crowd) {
		late := expiring{&event{name: "late", deadline: time.Now().Add(-time.Second)}}
		c.together(append(c.adds("a", "b"), late)...)
		g.Expect(c.answers.get()).To(Equal([]string{"a: <nil>", "b: <nil>"}))
		g.Expect(late.done()).To(HaveExactElements(MatchError(ErrExpired)))
	})
	crowded(t, nil, func(g Gomega, c *crowd) {
		slow := func(UpdateOperations) error { time.Sleep(8 * time.Millisecond); return nil }
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			c.a.update[name] = slow
		}
		c.together(c.adds("a", "b", "c", "d", "e")...)
		c.wait(time.Second)
		g.Expect(c.groups()).To(Equal([]int{3, 3, 3, 2, 2}), "handlers that are slow")
	})
	loop(t, nil, func(g Gomega, r *rig) {
		c := &crowd{rig: r, gate: make(chan struct{})}
		r.a.update["gate"] = func(UpdateOperations) error { <-c.gate; return nil }
		r.sync()
		c.together(c.adds("a", "b")...)
		g.Expect(c.groups()).To(Equal([]int{0, 0}), "a committer without savepoints")
	})
}

func TestOneEventOfAGroupFails(t *testing.T) {
	for name, fails := range map[string]func(UpdateOperations) error{
		"error": failing(errors.New("broken")),
		"panic": func(UpdateOperations) error { panic("broken") },
		"misuse": func(txn UpdateOperations) error {
			txn.Put("", wrapperspb.Bool(true))
			return errors.New("broken")
		},
	} {
		t.Run(name, func(t *testing.T) {
			crowded(t, nil, func(g Gomega, c *crowd) {
				c.b.update["b"] = fails
				for _, name := range []string{"a", "b", "c", "d"} {
					c.a.update[name] = put(name)
				}
				c.log.clear()
				c.together(c.adds("a", "b", "c", "d")...)
				g.Expect(c.log.get()[1:]).To(Equal([]string{
					"b gate", "c gate",
					"a a", "b a", "c a",
					"a b", "b b", "a revert b", // beside a
					"a b", "b b", "a revert b", // by itself
					"a c", "b c", "c c", "a d", "b d", "c d",
				}))
				g.Expect(c.saving.undone).To(Equal(1))
				g.Expect(c.groups()).To(Equal([]int{0, 0, 2, 2}))
				g.Expect(c.answers.get()).To(HaveLen(4))
				g.Expect(c.answers.get()[1]).NotTo(Equal("b: <nil>"))
				g.Expect(c.sink.dumped()).To(And(HaveKey("a"), Not(HaveKey("b")), HaveKey("c"), HaveKey("d")))
			})
		})
	}
}

func TestAnEventThatFailsOnlyBesideOthersSucceeds(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		tries := 0
		c.b.update["b"] = func(UpdateOperations) error {
			if tries++; tries == 1 {
				return errors.New("the pool is full until the commit")
			}
			return nil
		}
		c.together(c.adds("a", "b", "c")...)
		g.Expect(c.answers.get()).To(Equal([]string{"a: <nil>", "b: <nil>", "c: <nil>"}))
		g.Expect(c.groups()).To(Equal([]int{0, 2, 2}))
		all, _ := c.Events(0)
		for i, r := range all {
			g.Expect(r.SeqNum).To(BeNumerically("==", i), "no number is missing or given twice")
		}
	})
}

func TestASharedCommitThatFailsIsRepeatedOneByOne(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		c.push(&event{name: "other"})
		c.saving.fail = errors.New("disk full")
		c.a.update["c"] = func(UpdateOperations) error {
			if c.saving.commits > 2 { // the first try of c is over
				c.saving.fail = nil
			}
			return nil
		}
		c.together(c.adds("a", "b", "c", "d")...)
		g.Expect(c.answers.get()).To(HaveExactElements(
			ContainSubstring("a: a: disk full"), ContainSubstring("b: b: disk full"), Equal("c: <nil>"), Equal("d: <nil>"),
		))
		g.Expect(c.groups()).To(Equal([]int{0, 0, 0, 0, 0}))
	})
}

func TestTheSouthboundOfOneEventOfAGroupFails(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		for _, name := range []string{"a", "b", "c"} {
			c.a.update[name] = put(name)
		}
		c.sink.Fault = func(txn Transaction) error {
			if txn.Values[0].Key == "b" {
				return errors.New("no such link")
			}
			return nil
		}
		c.saving.commits = 0
		c.together(c.adds("a", "b", "c")...)
		g.Expect(c.answers.get()).To(HaveExactElements(
			Equal("a: <nil>"), ContainSubstring("no such link"), Equal("c: <nil>"),
		))
		g.Expect(c.saving.commits).To(Equal(3), "the gate, the group, the revert of b")
		g.Expect(c.log.get()[len(c.log.get())-3:]).To(Equal([]string{"c revert b", "b revert b", "a revert b"}))
		g.Expect(c.sink.dumped()).To(And(HaveKey("a"), Not(HaveKey("b")), HaveKey("c")))
		g.Expect(c.Status().Healthy).To(BeTrue())
	})
}

func TestAnAbortInAGroup(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		tries := 0
		c.b.update["c"] = func(UpdateOperations) error { tries++; return NewAbortEventError(errors.New("stop")) }
		c.together(c.adds("a", "b", "c", "d")...)
		g.Expect(tries).To(Equal(1), "it is not tried again")
		g.Expect(c.answers.get()).To(HaveExactElements(
			Equal("a: <nil>"), Equal("b: <nil>"), ContainSubstring("stop"), Equal("d: <nil>"),
		))
		g.Expect(c.saving.undone).To(Equal(1))
		g.Expect(c.log.get()).To(ContainElement("a resync 2"), "it heals")
	})
	crowded(t, nil, func(g Gomega, c *crowd) { // a commit that fails, too
		c.b.update["b"] = func(UpdateOperations) error { return NewAbortEventError(errors.New("stop")) }
		c.saving.fail = errors.New("disk full")
		c.together(c.adds("a", "b")...)
		g.Expect(c.answers.get()).To(HaveExactElements(ContainSubstring("disk full"), ContainSubstring("stop")))
	})
}

// ends is crowded for a loop that a fatal error ends.
func ends(t *testing.T, f func(g Gomega, c *crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &saving{}
		r := startWith(g, nil, func(d *Deps) { d.Committers = []Committer{s} })
		c := &crowd{rig: r, saving: s, gate: make(chan struct{})}
		r.a.update["gate"] = func(UpdateOperations) error { <-c.gate; return nil }
		r.sync()
		f(g, c)
		g.Expect(<-r.result).To(MatchError(ErrFatal))
	})
}

func TestAFatalErrorInAGroup(t *testing.T) {
	fatal := NewFatalError(errors.New("the ledger is damaged"))
	ends(t, func(g Gomega, c *crowd) { // of a handler
		c.b.update["b"] = failing(fatal)
		c.together(c.adds("a", "b", "c")...)
		g.Expect(c.answers.get()).To(HaveExactElements(
			Equal("a: <nil>"), ContainSubstring("the ledger is damaged"), ContainSubstring(ErrEventLoopIsAborting.Error()),
		))
	})
	ends(t, func(g Gomega, c *crowd) { // of a revert
		c.b.update["b"] = failing(errors.New("broken"))
		c.a.revert = func() error { return fatal }
		c.together(c.adds("a", "b", "c")...)
		g.Expect(c.answers.get()).To(HaveExactElements(
			Equal("a: <nil>"), ContainSubstring("the ledger is damaged"), ContainSubstring(ErrEventLoopIsAborting.Error()),
		))
	})
	ends(t, func(g Gomega, c *crowd) { // of the shared commit
		c.a.update["b"] = func(UpdateOperations) error { c.saving.fail = fatal; return nil }
		c.together(c.adds("a", "b")...)
		g.Expect(c.answers.get()).To(HaveExactElements(
			ContainSubstring("the ledger is damaged"), ContainSubstring("the ledger is damaged"),
		))
	})
	ends(t, func(g Gomega, c *crowd) { // of the southbound: the rest is reverted
		for _, name := range []string{"a", "b", "c", "d"} {
			c.a.update[name] = put(name)
		}
		c.sink.Fault = func(txn Transaction) error {
			if txn.Values[0].Key == "b" {
				return fatal
			}
			return nil
		}
		c.saving.commits = 0
		c.log.clear()
		c.together(c.adds("a", "b", "c", "d")...)
		g.Expect(c.answers.get()).To(HaveExactElements(
			Equal("a: <nil>"), ContainSubstring("the ledger is damaged"),
			ContainSubstring(ErrEventLoopIsAborting.Error()), ContainSubstring(ErrEventLoopIsAborting.Error()),
		))
		g.Expect(c.log.get()[len(c.log.get())-9:]).To(Equal([]string{
			"c revert b", "b revert b", "a revert b",
			"c revert d", "b revert d", "a revert d",
			"c revert c", "b revert c", "a revert c",
		}))
		g.Expect(c.saving.commits).To(Equal(4), "the gate, the group, the revert of b, that of c and d")
	})
}

func TestAStoppedLoopTakesNoMoreIntoAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := &saving{}
		r := startWith(g, nil, func(d *Deps) { d.Committers = []Committer{s} })
		c := &crowd{rig: r, saving: s, gate: make(chan struct{})}
		r.a.update["gate"] = func(UpdateOperations) error { <-c.gate; return nil }
		r.sync()
		r.a.update["b"] = func(UpdateOperations) error { r.cancel(); return nil }
		c.together(c.adds("a", "b", "c", "d")...)
		g.Expect(<-r.result).To(Succeed())
		g.Expect(c.answers.get()).To(HaveExactElements(
			Equal("a: <nil>"), Equal("b: <nil>"),
			ContainSubstring(ErrClosedController.Error()), ContainSubstring(ErrClosedController.Error()),
		))
	})
}

func TestTheWatchdogKnowsTheEventOfAGroup(t *testing.T) {
	crowded(t, func(c *Config) { c.EventTimeout = time.Minute }, func(g Gomega, c *crowd) {
		takes := func(d time.Duration) func(UpdateOperations) error {
			return func(UpdateOperations) error { time.Sleep(d); return nil }
		}
		c.a.update["b"] = takes(90 * time.Second)
		c.push(&event{name: "gate"})
		for _, ev := range c.adds("a", "b") {
			g.Expect(c.PushEvent(ev)).To(Succeed())
		}
		c.wait(50 * time.Second)
		c.gate <- struct{}{}
		c.wait(30 * time.Second)
		g.Expect(c.Status().Current).To(Equal("b"))
		g.Expect(c.Status().Stuck).To(BeFalse(), "it has a minute of its own")
		c.wait(40 * time.Second)
		g.Expect(c.Status().Stuck).To(BeTrue())
		c.wait(30 * time.Second)
		g.Expect(c.Status().Stuck).To(BeFalse())
		g.Expect(c.Status().Current).To(BeEmpty())
		g.Expect(c.saving.ctxErrs).To(HaveEach(BeNil()), "the commit has a deadline of its own")
	})
}

// unkeyed is an event whose key cannot be told.
type unkeyed struct{ *event }

func (unkeyed) GroupKey() string { panic("no key") }

func TestAnEventWithoutAKeySharesNothing(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		first, second := unkeyed{&event{name: "x"}}, unkeyed{&event{name: "y"}}
		events := c.adds("a", "b", "c")
		c.together(first, events[0], events[1], second, events[2])
		g.Expect(c.groups()).To(Equal([]int{0, 2, 2, 0, 0}))
		g.Expect(second.done()).To(HaveExactElements(BeNil()))
	})
}
