// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

var errWrite = errors.New("input/output error")

// faulty is a Checkpointer whose k-th write fails, before or after it is kept.
type faulty struct {
	*TestCheckpoint
	n, k  int
	after bool
}

func (f *faulty) Checkpoint(data any) error {
	if f.n++; f.n != f.k {
		return f.TestCheckpoint.Checkpoint(data)
	}
	if f.after {
		return errors.Join(f.TestCheckpoint.Checkpoint(data), errWrite)
	}
	return errWrite
}

// steps returns the calls of the scenario.
func steps(ds *DataStore) []func() error {
	assign := func(n int) func() error {
		return func() error { _, _, err := ds.AssignPodIPv4Address(key(n)); return err }
	}
	unassign := func(n int) func() error {
		return func() error { _, _, err := ds.UnassignPodIPv4Address(key(n)); return err }
	}
	return []func() error{
		assign(1), assign(2), unassign(1), assign(3), assign(3), unassign(2),
		func() error { return ds.DelIPv4AddressFromStore("eni-1", "1.1.1.3", true) },
		func() error { return ds.AddIPv4AddressToStore("eni-2", "1.1.2.9") },
		assign(4), assign(5), unassign(3), assign(6), unassign(6),
		func() error { return ds.RemoveENIFromDataStore("eni-2", true) },
		assign(7), unassign(4), unassign(7),
	}
}

// Every write of a scenario fails, in both ways. A failed call has changed nothing,
// and succeeds when it is repeated. A restart at any time restores every answered
// assignment.
func TestFaultAtEveryWrite(t *testing.T) {
	for _, after := range []bool{false, true} {
		for name, make := range map[string]func(k int) (Checkpointer, func() Checkpointer){
			"whole": func(k int) (Checkpointer, func() Checkpointer) {
				f := &faulty{TestCheckpoint: NewTestCheckpoint(nil), k: k, after: after}
				return f, func() Checkpointer { return NewTestCheckpoint(f.Data) }
			},
			"delta": func(k int) (Checkpointer, func() Checkpointer) {
				kind := journal.Fail
				if after {
					kind = journal.Tear
				}
				m := journal.NewMemory()
				f := &journal.Faulty{Journal: m, Plan: journal.At(int64(k), kind)}
				return NewJournalCheckpoint(f), func() Checkpointer { return NewJournalCheckpoint(m.Clone()) }
			},
		} {
			for k := 1; k <= 20; k++ {
				for _, coolDown := range []time.Duration{0, time.Minute} {
					t.Run(fmt.Sprintf("%s, write %d, after %v, cool-down %s", name, k, after, coolDown), func(t *testing.T) {
						cp, crash := make(k)
						runWithFaults(NewWithT(t), cp, crash, coolDown)
					})
				}
			}
		}
	}
}

func runWithFaults(g Gomega, cp Checkpointer, crash func() Checkpointer, coolDown time.Duration) {
	ds, c := store(Options{Checkpoint: cp, CoolDown: coolDown, BootID: "b"})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "eni-2", 1, "1.1.2.1", "1.1.2.2")
	for i, step := range steps(ds) {
		before, statsBefore := held(ds), ds.GetIPStats(ledger.IPv4)
		err := step()
		if err != nil && !errors.Is(err, errWrite) && !errors.Is(err, journal.ErrInjected) {
			g.Expect(errors.Is(err, ErrNoAvailableIP) || errors.Is(err, ErrUnknownPod)).To(BeTrue(), "step %d: %v", i, err)
			continue
		}
		if err != nil {
			g.Expect(held(ds)).To(Equal(before), "step %d", i)
			g.Expect(ds.GetIPStats(ledger.IPv4)).To(Equal(statsBefore), "step %d", i)
			// The answered assignments are restored, whatever the write has left.
			next := New(c.options(Options{Checkpoint: crash(), CoolDown: coolDown, BootID: "b"}))
			g.Expect(next.ReadBackingStore()).To(Succeed())
			after := held(next)
			lost := 0
			for ip, k := range before {
				if after[ip] != k {
					lost++
				}
			}
			g.Expect(lost).To(BeNumerically("<=", 2), "at most the ones that the failed call releases")
			g.Expect(step()).To(Succeed(), "step %d, again", i)
		}
		next := New(c.options(Options{Checkpoint: crash(), CoolDown: coolDown, BootID: "b"}))
		g.Expect(next.ReadBackingStore()).To(Succeed())
		g.Expect(held(next)).To(Equal(held(ds)), "step %d", i)
		g.Expect(ds.Check()).To(BeEmpty())
	}
}

func TestAnswersWaitForTheWriteAfterAFailedOne(t *testing.T) {
	g := NewWithT(t)
	f := &faulty{TestCheckpoint: NewTestCheckpoint(nil), k: 2, after: true}
	ds, _ := store(Options{Checkpoint: f})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
	assign(g, ds, 1)
	_, _, err := ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).To(MatchError(errWrite))
	g.Expect(f.Data.(*CheckpointData).Allocations).To(BeEmpty(), "the checkpoint has it as released")
	f.k = 3
	_, _, err = ds.AssignPodIPv4Address(key(1))
	g.Expect(err).To(MatchError(errWrite), "the answer waits for a write, which fails as well")
	g.Expect(assign(g, ds, 1)).To(Equal("1.1.1.1"))
	g.Expect(f.Data.(*CheckpointData).Allocations).To(HaveLen(1))
	n := f.n
	assign(g, ds, 1)
	g.Expect(f.n).To(Equal(n), "and now none")

	f.k, f.after = f.n+1, true
	_, _, err = ds.AssignPodIPv4Address(key(2))
	g.Expect(err).To(MatchError(errWrite))
	g.Expect(f.Data.(*CheckpointData).Allocations).To(HaveLen(2))
	_, _, err = ds.UnassignPodIPv4Address(key(2))
	g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
	g.Expect(f.Data.(*CheckpointData).Allocations).To(HaveLen(1), "the answer was written first")
}

func TestRepeatedAssignmentInAFullStoreWaitsForItsWrite(t *testing.T) {
	g := NewWithT(t)
	f := &faulty{TestCheckpoint: NewTestCheckpoint(nil), k: 2, after: true}
	ds, _ := store(Options{Checkpoint: f})
	add(g, ds, "eni-1", 0, "1.1.1.1")
	assign(g, ds, 1)
	_, _, err := ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).To(MatchError(errWrite))
	g.Expect(f.Data.(*CheckpointData).Allocations).To(BeEmpty(), "the checkpoint has it as released")
	f.k = 3
	_, _, err = ds.AssignPodIPv4Address(key(1))
	g.Expect(err).To(MatchError(errWrite))
	g.Expect(assign(g, ds, 1)).To(Equal("1.1.1.1"))
	g.Expect(f.Data.(*CheckpointData).Allocations).To(HaveLen(1))
}

func TestFailedWriteRemovesNothing(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(nil)
	ds, _ := store(Options{Checkpoint: cp})
	add(g, ds, "eni-1", 0, "1.1.1.1")
	assign(g, ds, 1)
	before := maps.Clone(held(ds))
	cp.Error = errWrite
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "1.1.1.1", true)).To(MatchError(errWrite))
	g.Expect(ds.RemoveENIFromDataStore("eni-1", true)).To(MatchError(errWrite))
	g.Expect(held(ds)).To(Equal(before))
	g.Expect(ds.GetENIs()).To(Equal(1))
	cp.Error = nil
	g.Expect(ds.RemoveENIFromDataStore("eni-1", true)).To(Succeed())
	g.Expect(cp.Data.(*CheckpointData).Allocations).To(BeEmpty())
}

// A pod gets the address that it would have got without the failed writes.
func TestFailedWritesLeaveTheNextAddress(t *testing.T) {
	for name, prefix := range map[string]bool{"addresses of a prefix": true, "single addresses": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cp := NewTestCheckpoint(nil)
			ds, _ := store(Options{Checkpoint: cp, PrefixMode: prefix})
			g.Expect(ds.AddENI("eni-1", 0, true, false)).To(Succeed())
			want := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"}
			if prefix {
				want = []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}
				g.Expect(ds.AddPrefix("eni-1", netip.MustParsePrefix("10.0.0.0/28"))).To(Succeed())
			} else {
				for _, ip := range want {
					g.Expect(ds.AddIPv4AddressToStore("eni-1", ip)).To(Succeed())
				}
			}
			for n, ip := range want {
				cp.Error = errWrite
				for range 3 {
					_, _, err := ds.AssignPodIPv4Address(key(n))
					g.Expect(err).To(MatchError(errWrite))
				}
				cp.Error = nil
				g.Expect(assign(g, ds, n)).To(Equal(ip))
			}
			g.Expect(ds.Check()).To(BeEmpty())
		})
	}
}

// blocking is a Checkpointer whose writes wait, and then fail until it heals.
type blocking struct {
	*TestCheckpoint
	end    chan struct{}
	healed bool
}

func (b *blocking) Checkpoint(data any) error {
	<-b.end
	if b.healed {
		return b.TestCheckpoint.Checkpoint(data)
	}
	return errWrite
}

func TestFailedWritesOfManyPodsLeaveTheNextAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		b := &blocking{TestCheckpoint: NewTestCheckpoint(nil), end: make(chan struct{})}
		ds, _ := store(Options{Checkpoint: b, PrefixMode: true})
		g.Expect(ds.AddENI("eni-1", 0, true, false)).To(Succeed())
		g.Expect(ds.AddPrefix("eni-1", netip.MustParsePrefix("10.0.0.0/28"))).To(Succeed())
		var work sync.WaitGroup
		for n := range 4 {
			work.Go(func() { _, _, _ = ds.AssignPodIPv4Address(key(n)) })
		}
		synctest.Wait() // all of them are claimed, and one is being written
		close(b.end)
		work.Wait()
		_, _, err := ds.AssignPodIPv4Address(key(9))
		g.Expect(err).To(MatchError(errWrite))
		b.healed = true
		g.Expect(assign(g, ds, 9)).To(Equal("10.0.0.0"))
	})
}
