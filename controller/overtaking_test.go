// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"
)

// classed is an event of a class.
type classed struct {
	*event
	class EventClass
}

func (e classed) Class() EventClass { return e.class }

// plainQueue is the queue of producers' events as a list in order of arrival.
type plainQueue struct {
	all       []classed
	overtaken int // Urgent events that were taken before the first other event
}

// take takes the next event: the first Urgent one if all before it are Background ones and
// it is not one too many, otherwise the first one.
func (q *plainQueue) take() classed {
	next := 0
	at := slices.IndexFunc(q.all, func(e classed) bool { return e.class != Background })
	if at > 0 && q.all[at].class == Urgent && q.overtaken < maxOvertaking {
		next = at
	}
	switch e := q.all[next]; {
	case e.class != Urgent:
		q.overtaken = 0
	case next > 0:
		q.overtaken++
	}
	e := q.all[next]
	q.all = slices.Delete(q.all, next, next+1)
	return e
}

func TestUrgentEventsOvertakeNothingButBackgroundOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		q, naive, n := newQueue(1_000_000), plainQueue{}, 0
		for range rapid.IntRange(1, 30).Draw(t, "turns") {
			class := EventClass(rapid.IntRange(0, 2).Draw(t, "class"))
			for range rapid.IntRange(1, 150).Draw(t, "pushed") {
				n++
				e := classed{&event{name: fmt.Sprint(n)}, class}
				ev, _, err := admit(e)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(q.push(ev)).To(Succeed())
				naive.all = append(naive.all, e)
			}
			for range rapid.IntRange(0, min(200, len(naive.all))).Draw(t, "taken") {
				want := naive.take()
				first, from := q.first()
				g.Expect(first.name).To(Equal(want.name))
				ev := q.take(from)
				g.Expect(ev.name).To(Equal(want.name))
			}
			events, _ := q.lengths()
			g.Expect(events).To(Equal(len(naive.all)))
		}
		left := q.close()
		for i, e := range naive.all {
			g.Expect(left[i].name).To(Equal(e.name), "in order of arrival")
		}
	})
}

func TestEventsThatArePutBackComeNext(t *testing.T) {
	g := NewWithT(t)
	q := newQueue(4)
	push := func(name string, class EventClass) {
		ev, _, _ := admit(classed{&event{name: name}, class})
		g.Expect(q.push(ev)).To(Succeed())
	}
	take := func() queued { ev, ok := q.pop(true); g.Expect(ok).To(BeTrue()); return ev }
	push("node", Background)
	push("u1", Urgent)
	push("u2", Urgent)
	push("u3", Urgent)
	push("u4", Urgent)
	a, b := take(), take()
	push("u5", Urgent)
	push("u6", Urgent)
	q.putBack(a, b)
	var order []string
	for range 7 {
		order = append(order, take().name)
	}
	g.Expect(order).To(Equal([]string{"u1", "u2", "u3", "u4", "u5", "u6", "node"}))
}

func TestUrgentEventsHaveRoomOfTheirOwn(t *testing.T) {
	loop(t, func(c *Config) { c.QueueSize = 2 }, func(g Gomega, r *rig) {
		r.sync()
		gate := make(chan struct{})
		r.a.update["gate"] = func(UpdateOperations) error { <-gate; return nil }
		r.push(&event{name: "gate"})
		for _, name := range []string{"n1", "n2"} {
			r.push(classed{&event{name: name}, Background})
		}
		waits := make(chan error, 1)
		go func() { waits <- r.PushEventWait(context.Background(), classed{&event{name: "n3"}, Background}) }()
		synctest.Wait()
		g.Expect(r.PushEvent(classed{&event{name: "u1"}, Urgent})).To(Succeed())
		g.Expect(r.PushEvent(classed{&event{name: "u2"}, Urgent})).To(Succeed())
		g.Expect(r.PushEvent(classed{&event{name: "u3"}, Urgent})).To(MatchError(ErrEventQueueFull))
		r.log.clear()
		close(gate)
		synctest.Wait()
		g.Expect(waits).To(Receive(BeNil()))
		g.Expect(r.log.get()).To(ContainElements("a u1", "a u2", "a n1", "a n2", "a n3"))
		order := slices.DeleteFunc(r.log.get(), func(s string) bool { return s[0] != 'c' || s == "c gate" })
		g.Expect(order).To(Equal([]string{"c u1", "c u2", "c n1", "c n2", "c n3"}))
	})
}
