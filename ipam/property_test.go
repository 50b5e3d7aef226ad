// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// model is a manager in maps.
type model struct {
	held     map[string]*modelLease
	excluded map[string]bool
}

type modelLease struct {
	owner string
	uuid  string
	ends  time.Duration // 0: never
	old   bool          // of an earlier process, and not asked for since
}

// harness drives a manager and the model with the same random calls, and compares
// the owners of all addresses after each. fault is that of the next commit;
// restart replaces the manager by that of another process.
type harness struct {
	*world
	rnd     *rand.Rand
	model   model
	fault   *journal.Fault
	restart func()
}

func (p *harness) addr() string {
	if p.rnd.IntN(2) == 0 {
		return fmt.Sprintf("1.1.1.%d", p.rnd.IntN(16))
	}
	return netip.MustParseAddr(fmt.Sprintf("f00d::%x", p.rnd.IntN(16))).String()
}

func (p *harness) owner() string { return fmt.Sprint("default/pod-", p.rnd.IntN(6)) }

// expire releases the expired addresses of the model.
func (p *harness) expire() {
	for a, l := range p.model.held {
		if l.ends > 0 && l.ends <= p.uptime {
			delete(p.model.held, a)
		}
	}
}

func (p *harness) note(owner string, after time.Duration, results ...*ipam.AllocationResult) {
	for _, r := range results {
		if r == nil {
			continue
		}
		a := text(r)
		p.g.Expect(p.model.held).NotTo(HaveKey(a), "allocated twice")
		p.g.Expect(p.model.excluded).NotTo(HaveKey(a), "it is blacklisted")
		l := &modelLease{owner: owner, uuid: r.ExpirationUUID}
		if after > 0 {
			l.ends = p.uptime + after
		}
		p.model.held[a] = l
	}
}

func (p *harness) step() {
	p.expire()
	a, owner, after := p.addr(), p.owner(), time.Duration(1+p.rnd.IntN(60))*time.Second
	had := p.model.held[a]
	switch p.rnd.IntN(12) {
	case 0, 1:
		err := p.AllocateIPString(a, owner)
		if err != nil {
			break
		}
		if had != nil {
			p.g.Expect(had.old && had.owner == owner).To(BeTrue(), "%s was taken", a)
			had.old = false
			break
		}
		p.model.held[a] = &modelLease{owner: owner}
	case 2, 3:
		if v4, v6, err := p.AllocateNext([]string{"", "ipv4", "ipv6"}[p.rnd.IntN(3)], owner); err == nil {
			p.note(owner, 0, v4, v6)
		}
	case 4:
		if v4, v6, err := p.AllocateNextWithExpiration("", owner, after); err == nil {
			p.note(owner, after, v4, v6)
		}
	case 5:
		if p.ReleaseIPString(a) == nil {
			delete(p.model.held, a)
		}
	case 6:
		if err := p.ReleaseIPString(owner); err == nil {
			for a, l := range p.model.held {
				if l.owner == owner {
					delete(p.model.held, a)
				}
			}
		}
	case 7:
		if uuid, err := p.StartExpirationTimer(ip(a), after); err == nil {
			p.g.Expect(had).NotTo(BeNil())
			p.g.Expect(had.ends).To(BeZero())
			had.uuid, had.ends = uuid, p.uptime+after
		}
	case 8:
		p.stopOne()
	case 9:
		if p.Exclude(context.Background(), netip.MustParseAddr(a), owner, "") == nil {
			p.model.excluded[a] = true
		}
	case 10:
		p.uptime += time.Duration(p.rnd.IntN(30)) * time.Second
		p.expire()
	case 11:
		if p.rnd.IntN(4) > 0 {
			break
		}
		*p.fault = journal.None // what a failed commit has left is written over by the next one
		p.g.Expect(p.Exclude(context.Background(), netip.MustParseAddr("9.9.9.9"), "", "")).To(Succeed())
		p.g.Expect(p.Readmit(context.Background(), netip.MustParseAddr("9.9.9.9"))).To(Succeed())
		p.restart()
		for _, l := range p.model.held {
			l.old = true
		}
	}
}

// stopOne stops the timer of an address of the model, which may have none.
func (p *harness) stopOne() {
	for a, l := range p.model.held {
		p.g.Expect(p.StopExpirationTimer(ip(a), "no such")).NotTo(Succeed())
		err := p.StopExpirationTimer(ip(a), l.uuid)
		if l.ends == 0 {
			p.g.Expect(err).To(HaveOccurred())
		}
		if err == nil {
			l.uuid, l.ends = "", 0
		}
		return
	}
}

func (p *harness) compare() {
	p.expire()
	want, shown := map[string]string{}, 0
	for a, l := range p.model.held {
		want[a] = l.owner
	}
	have := p.held()
	for a, owner := range have {
		if p.model.excluded[a] && want[a] == "" {
			delete(have, a)
			shown++
			p.g.Expect(owner).To(HaveSuffix("(blacklisted)"))
		}
	}
	p.g.Expect(have).To(Equal(want))
	p.consistent()
}

func newHarness(g Gomega, seed uint64, j func() ledger.Journal) *harness {
	fault := journal.None
	p := &harness{rnd: rand.New(rand.NewPCG(seed, 5)), fault: &fault, model: model{map[string]*modelLease{}, map[string]bool{}}}
	p.world = hosted(g, j(), "1.1.1.0/28", "f00d::/124")
	p.restart = func() { p.journal = j(); p.start() }
	return p
}

func TestAgainstAModel(t *testing.T) {
	for seed := range uint64(15) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			memory := journal.NewMemory()
			var p *harness
			p = newHarness(NewWithT(t), seed, func() ledger.Journal {
				return &journal.Faulty{Journal: memory, Plan: func(int64) journal.Fault {
					if p == nil {
						return journal.None
					}
					return *p.fault
				}}
			})
			for range 120 {
				*p.fault = []journal.Fault{journal.None, journal.None, journal.None, journal.Fail, journal.Tear}[p.rnd.IntN(5)]
				p.step()
				p.compare()
			}
		})
	}
}

// The database is closed and opened again while timers run.
func TestAgainstAModelOnDisk(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	var file *bolt.File
	p := newHarness(g, 1, func() ledger.Journal {
		if file != nil {
			g.Expect(file.Close()).To(Succeed())
		}
		var err error
		file, err = bolt.OpenFile(path, bolt.FileOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return file.Journal()
	})
	for i := range 100 {
		p.step()
		if i%10 == 0 {
			p.restart()
			for _, l := range p.model.held {
				l.old = true
			}
		}
		p.compare()
	}
	g.Expect(file.Close()).To(Succeed())
}

// Every commit of a scenario fails or is torn. A call that returns an error has
// changed nothing.
func TestFaultAtEachCommit(t *testing.T) {
	for n := int64(1); n <= 12; n++ {
		for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
			t.Run(fmt.Sprint(n, fault), func(t *testing.T) {
				g := NewWithT(t)
				memory := journal.NewMemory()
				w := hosted(g, memory, "1.1.1.0/29", "f00d::/125")
				w.journal = &journal.Faulty{Journal: memory, Plan: journal.At(n, fault)}
				w.start() // it has nothing to write
				calls := []func() error{
					func() error { return w.AllocateIPString("1.1.1.1", me) },
					func() error { _, _, err := w.AllocateNext("", me); return err },
					func() error { _, _, err := w.AllocateNextWithExpiration("", other, time.Minute); return err },
					func() error { _, err := w.StartExpirationTimer(ip("1.1.1.1"), time.Hour); return err },
					func() error { return w.Exclude(context.Background(), netip.MustParseAddr("1.1.1.6"), "router", "") },
					func() error { return w.ReleaseIPString(me) },
					func() error { return w.Readmit(context.Background(), netip.MustParseAddr("1.1.1.6")) },
				}
				for range 2 {
					for _, call := range calls {
						before, status := w.held(), w.DebugStatus()
						err := call()
						w.consistent()
						if errors.Is(err, journal.ErrInjected) {
							g.Expect(w.held()).To(Equal(before))
							g.Expect(w.DebugStatus()).To(Equal(status))
						}
					}
				}
				_ = w.AllocateIPString("1.1.1.5", "last") // it writes over what a failed commit has left
				_ = w.AllocateIPString("f00d::5", "last")
				before := w.held()
				w.start()
				g.Expect(w.held()).To(Equal(before))
				w.consistent()
			})
		}
	}
}

// Concurrent callers get different addresses, and the unreleased ones remain.
func TestConcurrentCallers(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, journal.NewMemory(), "1.1.1.0/26", "f00d::/122")
	s := ipam.NewServer(w.IPAM)
	var mu sync.Mutex
	allocated := map[string]bool{}
	take := func(rs ...*ipam.AllocationResult) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range rs {
			if r != nil && allocated[text(r)] {
				t.Errorf("%s is allocated twice", r.IP)
			} else if r != nil {
				allocated[text(r)] = true
			}
		}
	}
	give := func(rs ...*ipam.AllocationResult) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range rs {
			if r != nil {
				delete(allocated, text(r))
			}
		}
	}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 50 {
				owner := fmt.Sprintf("default/pod-%d-%d", n, i)
				switch i % 4 {
				case 0, 1:
					v4, v6, err := w.AllocateNextWithExpiration("", owner, time.Hour)
					if err != nil {
						continue
					}
					take(v4, v6)
					_ = w.StopExpirationTimer(v4.IP, v4.ExpirationUUID)
					give(v4, v6)
					if err := w.ReleaseIPString(owner); err != nil {
						t.Error(err)
					}
				case 2:
					v4, v6, err := s.ADD("", owner, "c", "")
					if err != nil {
						continue
					}
					take(v4, v6)
					give(v4, v6)
					if err := s.DEL(owner, "c"); err != nil {
						t.Error(err)
					}
				default:
					w.BlacklistIP(ip(fmt.Sprint("1.1.1.", 1+n)), owner)
					w.Dump()
					_ = w.DebugStatus()
					w.RestoreFinished()
				}
			}
		})
	}
	all.Wait()
	g.Expect(allocated).To(BeEmpty())
	for _, owner := range w.held() {
		g.Expect(owner).To(HaveSuffix("(blacklisted)"))
	}
	w.consistent()
}
