// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A DEL cancels the ADDs before it, also those that the loop comes to later.
func TestADelOvertakesAnAdd(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		add := a.begin(request("ADD", "c1"))
		del := a.begin(request("DEL", "c1"))
		later := a.begin(request("ADD", "c1"))
		a.loop.step(1) // the DEL
		synctest.Wait()
		a.drain()
		g.Expect(del.err).NotTo(HaveOccurred())
		g.Expect(code(g, add.err)).To(BeNumerically("==", cni.CodeTryAgain))
		g.Expect(add.err).To(MatchError(ContainSubstring("cancelled by a DEL")))
		g.Expect(later.err).NotTo(HaveOccurred(), "a new attachment")
		g.Expect(a.held()).To(Equal([]string{"c1"}))
	})
}

func TestAnotherAttachmentsDelCancelsNothing(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		add := a.begin(request("ADD", "c1"))
		a.begin(request("DEL", "c2"))
		a.drain()
		g.Expect(add.done).To(BeTrue())
		g.Expect(add.err).NotTo(HaveOccurred())
	})
}

// The caller is gone before the answer: no caller has the address, so it is released.
func TestAnAbandonedAdd(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		add := a.abandon("c1")
		g.Expect(add.done).To(BeTrue())
		g.Expect(code(g, add.err)).To(BeNumerically("==", cni.CodeTryAgain))
		g.Expect(a.held()).To(Equal([]string{"c1"}), "the loop had handled it")
		g.Expect(a.loop.waiting()).To(Equal(1), "its release")
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
	})
}

// An ADD whose caller has gone when the loop comes to it takes no address.
func TestAnAddWithoutItsCaller(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		a.begin(request("ADD", "c1")).leave()
		commits := a.journal.Commits()
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
		g.Expect(a.journal.Commits()).To(Equal(commits))
		other := a.begin(request("ADD", "c2"))
		a.drain()
		g.Expect(other.reply.IPs[0].Address).To(Equal("10.1.5.2/24"), "nothing cools")
	})
}

func TestAnAbandonedAddThatAnotherOneRepeats(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		add := a.begin(request("ADD", "c1"))
		again := a.begin(request("ADD", "c1"))
		a.leaveInLoop(add)
		a.drain()
		g.Expect(again.err).NotTo(HaveOccurred())
		g.Expect(again.reply.IPs[0].Address).To(Equal("10.1.5.2/24"))
		g.Expect(a.held()).To(Equal([]string{"c1"}), "the newer one wants it")
	})
}

// Between the end of the abandoned ADD and its release there is another ADD.
func TestAReleaseComesTooLate(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		a.abandon("c1")
		again := a.begin(request("ADD", "c1")) // behind the release
		a.drain()
		g.Expect(again.err).NotTo(HaveOccurred())
		g.Expect(a.held()).To(Equal([]string{"c1"}))
		g.Expect(again.reply.IPs[0].Address).To(Equal("10.1.5.2/24"), "and it is still the same one")
	})
}

// An abandoned repetition took nothing, so it gives nothing back.
func TestAnAbandonedRepetition(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		first := a.begin(request("ADD", "c1"))
		a.drain()
		a.abandon("c1")
		a.drain()
		g.Expect(first.err).NotTo(HaveOccurred())
		g.Expect(a.held()).To(Equal([]string{"c1"}))
	})
}

// Two abandoned ADDs of one attachment leave nothing behind.
func TestTwoAbandonedAdds(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		first := a.begin(request("ADD", "c1"))
		second := a.begin(request("ADD", "c1"))
		a.leaveInLoop(first)
		a.leaveInLoop(second)
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
	})
}

// An ADD that fails for its own reasons, abandoned or not, leaves nothing behind.
func TestAnAbandonedAddThatFails(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
		a.abandon("c1")
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
		again := a.begin(request("ADD", "c1"))
		a.drain()
		g.Expect(again.err).NotTo(HaveOccurred())
		g.Expect(a.held()).To(Equal([]string{"c1"}))
	})
}

// A release that could not be written down is tried again, and by then it is
// void if a caller has the address.
func TestAReleaseThatFailsIsTriedAgain(t *testing.T) {
	for name, wanted := range map[string]bool{"no ADD wants the address": false, "an ADD received it meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			slowly(t, func(g Gomega, a *agent) {
				a.abandon("c1")
				a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
				a.steps(1)
				g.Expect(a.held()).To(Equal([]string{"c1"}), "its release has failed")
				if wanted {
					again := a.begin(request("ADD", "c1"))
					a.drain()
					g.Expect(again.err).NotTo(HaveOccurred())
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				a.drain()
				g.Expect(a.held()).To(HaveLen(map[bool]int{true: 1}[wanted]))
			})
		})
	}
}

// The commit southbound fails, and what was to take the lease back fails, too:
// the ADD has failed, so no caller received the lease that it leaves.
func TestAnAddThatCannotBeReverted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, plain)
		sink := &controller.MemorySink{Fault: func(txn controller.Transaction) error {
			if !txn.RevertOnFailure {
				return nil
			}
			a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
			return errors.New("no such device")
		}}
		loop := controller.New(controller.DefaultConfig(), controller.Deps{
			Sink: sink, Handlers: a.loop.handlers, Committers: []controller.Committer{a.loop.stage},
		})
		a.EventLoop = loop
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 2)
		go func() { ended <- loop.Run(ctx) }()
		go func() { ended <- a.Run(ctx) }()
		defer func() { cancel(); <-ended; <-ended }()
		a.g.Expect(loop.PushEvent(&controller.DBResync{})).To(Succeed())
		_, err := a.serve(request("ADD", "c1"))
		a.g.Expect(err).To(MatchError(ContainSubstring("no such device")))
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		a.g.Expect(a.held()).To(BeEmpty())
	})
}

// Many requests are in the queue when the agent stops: each caller gets an answer.
func TestAllCallersGetAnAnswerAtTheEnd(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		calls := []*call{a.begin(request("ADD", "c1")), a.begin(request("DEL", "c2")), a.begin(request("ADD", "c3"))}
		calls[2].leave()
		for a.loop.waiting() > 0 {
			ev := a.loop.queue[0]
			a.loop.queue = a.loop.queue[1:]
			ev.Done(controller.ErrClosedController)
			synctest.Wait()
		}
		for _, c := range calls {
			g.Expect(c.done).To(BeTrue())
			g.Expect(c.err).To(HaveOccurred())
		}
		g.Expect(a.held()).To(BeEmpty())
		a.loop.closed = controller.ErrClosedController
	})
}

// scenario is a random sequence of requests for one attachment; they may overtake
// each other on their way to the loop.
type scenario struct {
	*agent
	overtaking bool
	rnd        *rand.Rand
	script     []string
	calls      []*call
	at         map[*call]int // when it was accepted
	isDel      map[*call]bool
	gone       map[*call]bool
	clock      int
}

func (s *scenario) accept(command string) {
	s.clock++
	c := s.begin(request(command, "c1"))
	s.calls, s.at[c], s.isDel[c] = append(s.calls, c), s.clock, command == "DEL"
	s.script = append(s.script, fmt.Sprint(command, " ", s.clock))
}

func (s *scenario) step() {
	switch s.rnd.IntN(7) {
	case 0, 1, 2:
		s.accept("ADD")
	case 3:
		s.accept("DEL")
	case 4:
		if c := s.calls[s.rnd.IntN(len(s.calls))]; !c.done && !s.isDel[c] {
			s.script = append(s.script, fmt.Sprint("the caller of ADD ", s.at[c], " is gone"))
			s.gone[c] = true
			c.leave()
		}
	default:
		if s.loop.waiting() > 0 {
			i := 0
			if s.overtaking {
				i = s.rnd.IntN(s.loop.waiting())
			}
			s.script = append(s.script, fmt.Sprint("loop: number ", i, ", ", s.loop.queue[i].GetName()))
			s.loop.step(i)
			synctest.Wait()
		}
	}
}

// Random orders of ADDs and DELs: a caller that received an address has it until a later
// DEL. All callers received the same one, and no lease is held that no caller received.
func TestRandomRequestsOfOneAttachment(t *testing.T) {
	for seed := range uint64(200) {
		slowly(t, func(g Gomega, a *agent) {
			s := &scenario{agent: a, overtaking: seed%2 == 1, rnd: rand.New(rand.NewPCG(seed, 3)), at: map[*call]int{}, isDel: map[*call]bool{}, gone: map[*call]bool{}}
			s.accept("ADD")
			for range 5 + s.rnd.IntN(12) {
				s.step()
			}
			a.drain()
			lastDel := 0
			for _, c := range s.calls {
				g.Expect(c.done).To(BeTrue())
				if s.isDel[c] {
					g.Expect(c.err).NotTo(HaveOccurred())
					lastDel = s.at[c]
				}
			}
			want := map[string]bool{}
			for _, c := range s.calls {
				if !s.isDel[c] && c.err == nil && s.at[c] > lastDel {
					want[c.reply.IPs[0].Address] = true
				}
			}
			have := map[string]bool{}
			for _, l := range a.leases.ByKey(key("c1")) {
				have[l.Prefix().String()] = true
			}
			g.Expect(have).To(Equal(want), "seed %d: %s", seed, strings.Join(s.script, "; "))
			findings, err := a.leases.Check(context.Background())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(findings).To(BeEmpty())
		})
	}
}

// The plugin's Run ends with its context, also if it still has to release leases.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, plain)
		a.loop.manual = true
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		a.abandon("c1")
		a.g.Expect(a.loop.waiting()).To(Equal(1))
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		a.g.Expect(ended).To(HaveLen(1))
		a.g.Expect(<-ended).To(Succeed())
	})
}
