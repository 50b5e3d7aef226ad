// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// contested has values that another program changes as often as the scheduler repairs them.
type contested struct {
	watched
	repairs map[string][]time.Time // when the scheduler has changed a value
}

func newContested() *contested {
	c := &contested{watched{part{newWorld(), "a/"}, make(chan string), make(chan error)}, map[string][]time.Time{}}
	c.fault = func(op, key string) error {
		if op == "create" || op == "update" || op == "delete" {
			c.mu.Lock()
			c.repairs[key] = append(c.repairs[key], time.Now())
			c.mu.Unlock()
		}
		return nil
	}
	return c
}

// fight makes a value be text again whenever it is not, and announces that.
func (c *contested) fight(key, text, announced string, duration time.Duration) {
	for until := time.Now().Add(duration); time.Now().Before(until); wait(10 * time.Millisecond) {
		if c.clone()[key] == text {
			continue
		}
		if text == "" {
			c.lose(key)
		} else {
			c.set(key, text)
		}
		c.changes <- announced
	}
}

// timesOf returns the times of the repairs of a value.
func (c *contested) timesOf(key string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.repairs[key])
}

func (c *contested) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.repairs)
}

// gaps returns the times between the repairs of a value.
func (c *contested) gaps(key string) (all []string) {
	times := c.timesOf(key)
	for i := 1; i < len(times); i++ {
		all = append(all, times[i].Sub(times[i-1]).Round(100*time.Millisecond).String())
	}
	return all
}

// contest commits three values, and calls f.
func contest(t *testing.T, f func(g Gomega, s *Scheduler, c *contested)) {
	t.Helper()
	var c *contested
	scheduler := func() *Scheduler {
		c = newContested()
		return New(Options{}, kinds(c, part{c.world, "b/"})...)
	}
	running(t, scheduler, func(g Gomega, s *Scheduler) {
		g.Expect(s.Commit(t.Context(), resync(is("a/1", "x"), is("a/2", "x"), is("b/1", "y needs a/1")))).To(Succeed())
		want := c.clone()
		c.forget()
		f(g, s, c)
		wait(time.Minute)
		g.Expect(c.clone()).To(Equal(want))
		wait(time.Minute)
		g.Expect(s.Status()).To(Equal(Status{Made: 3}), "after a quiet minute")
		g.Expect(c.wrong).To(BeEmpty())
	})
}

func TestAProgramThatInsistsIsAnsweredEverSlower(t *testing.T) {
	for _, c := range []struct{ name, key, text, announced string }{
		{"it removes a value", "a/1", "", "a/1"},
		{"it changes a value", "a/2", "other", "a/2"},
		{"the kind is announced, not the value", "a/1", "", ""},
		{"it adds an unwanted value", "a/9", "stray", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			contest(t, func(g Gomega, s *Scheduler, world *contested) {
				world.fight(c.key, c.text, c.announced, 90*time.Second)
				g.Expect(world.gaps(c.key)).To(Equal([]string{"100ms", "1s", "2s", "4s", "8s", "16s", "20s", "20s"}))
				st := s.Status()
				g.Expect(st.Notes).To(ConsistOf(ContainSubstring(": " + c.key + " was repaired 9 times without a quiet minute")))
				if c.text == "stray" {
					g.Expect(st.Failed).To(BeEmpty())
					world.lose(c.key) // its program ends, too
					return
				}
				g.Expect(st.Failed).To(HaveLen(1))
				g.Expect(st.Failed[0].Key).To(Equal(c.key))
				g.Expect(time.Until(st.Failed[0].Retry)).To(And(BeNumerically(">", 0), BeNumerically("<=", longestWait)))
			})
		})
	}
}

// While one value waits, another one is repaired at once. A value that depends on the one
// that waits, waits as well.
func TestOneContestedValueHoldsUpNoOther(t *testing.T) {
	contest(t, func(g Gomega, s *Scheduler, c *contested) {
		c.fight("a/1", "", "a/1", 10*time.Second)
		g.Expect(c.clone()).NotTo(Or(HaveKey("a/1"), HaveKey("b/1")))
		g.Expect(c.timesOf("b/1")).To(HaveLen(len(c.timesOf("a/1"))), "with the value that it needs")
		c.lose("a/2")
		c.changes <- "a/2"
		c.changes <- ""
		wait(2 * repairDelay)
		g.Expect(c.clone()).To(HaveKey("a/2"))
		g.Expect(c.clone()).NotTo(Or(HaveKey("a/1"), HaveKey("b/1")))
		g.Expect(s.Status().Notes[0]).To(And(ContainSubstring("a/1"), Not(ContainSubstring("a/2")), Not(ContainSubstring("b/1"))))

		g.Expect(s.Commit(t.Context(), update(is("a/2", "z")))).To(Succeed(), "a transaction does not wait")
		g.Expect(s.Commit(t.Context(), update(is("a/2", "x")))).To(Succeed())
		g.Expect(c.clone()).NotTo(HaveKey("a/1"))
		g.Expect(s.Commit(t.Context(), resync(is("a/1", "x"), is("a/2", "x"), is("b/1", "y needs a/1")))).To(Succeed())
		g.Expect(c.clone()).To(And(HaveKey("a/1"), HaveKey("b/1")), "a resync repairs at once")
	})
}

func TestAChangeNowAndThenIsRepairedAtOnce(t *testing.T) {
	for _, pause := range []time.Duration{longestWait + time.Second, quiet} {
		contest(t, func(g Gomega, _ *Scheduler, c *contested) {
			for range 20 {
				c.lose("a/1")
				c.changes <- "a/1"
				wait(2 * repairDelay)
				g.Expect(c.clone()).To(HaveKey("a/1"), "every %v", pause)
				wait(pause)
			}
		})
	}
}

// After a quiet minute the next fight begins anew.
func TestAQuietMinuteEndsTheBackOff(t *testing.T) {
	contest(t, func(g Gomega, s *Scheduler, c *contested) {
		for range 2 {
			c.forget()
			c.fight("a/1", "", "a/1", 10*time.Second)
			g.Expect(c.gaps("a/1")).To(Equal([]string{"100ms", "1s", "2s", "4s"}))
			g.Expect(s.Status().Notes).To(HaveLen(1))
			wait(longestWait + quiet)
			g.Expect(s.Status().Notes).To(BeEmpty())
		}
	})
}

func TestTheNoteNamesTheValuesThatWereRepairedMost(t *testing.T) {
	g, now := NewWithT(t), time.Now()
	all := repairs{}
	g.Expect(all.note(now)).To(BeEmpty())
	for key, count := range map[string]int{"a": 3, "b": 2, "c": 12, "d": 3, "e": 4, "f": 3} {
		all[key] = &repeat{count: count, last: now}
	}
	all["g"] = &repeat{count: 99, last: now.Add(-quiet)}
	g.Expect(all.note(now)).To(ContainSubstring(
		"again and again: c was repaired 12 times, e was repaired 4 times, a was repaired 3 times, 2 more without"))
}
