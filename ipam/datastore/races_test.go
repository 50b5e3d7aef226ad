// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

// owners checks that no two keys have one address at the same time.
type owners struct {
	mu sync.Mutex
	of map[string]int
}

func (o *owners) take(ip string, n int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if x, ok := o.of[ip]; ok && x != n {
		return errors.New(ip + " has two owners")
	}
	o.of[ip] = n
	return nil
}

func (o *owners) give(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ip, x := range o.of {
		if x == n {
			delete(o.of, ip)
		}
	}
}

func TestRaces(t *testing.T) {
	const workers, rounds = 8, 150
	for name, cp := range map[string]Checkpointer{
		"none": NullCheckpoint{}, "whole": NewTestCheckpoint(nil), "delta": NewJournalCheckpoint(journal.NewMemory()),
		"some writes fail": NewJournalCheckpoint(&journal.Faulty{Journal: journal.NewMemory(), Plan: func(n int64) journal.Fault {
			return []journal.Fault{journal.None, journal.None, journal.Fail, journal.None, journal.Tear}[n%5]
		}}),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ds, _ := store(Options{Checkpoint: cp})
			add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "eni-2", 1, "1.1.2.1", "1.1.2.2")
			o := owners{of: map[string]int{}}
			var all sync.WaitGroup
			errs := make(chan error, workers*rounds+rounds)
			for w := range workers {
				all.Go(func() {
					for range rounds {
						errs <- turn(ds, &o, w)
						runtime.Gosched()
					}
				})
			}
			all.Go(func() {
				for range rounds / 5 {
					errs <- comeAndGo(ds)
				}
			})
			all.Go(func() {
				for range rounds / 5 {
					ds.GetStats()
					ds.AllocatedIPs()
					ds.GetENIInfos()
					ds.FreeableIPs("eni-1")
					ds.GetENINeedsIP(10, true)
				}
			})
			all.Wait()
			close(errs)
			for err := range errs {
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(ds.AllocatedIPs()).To(HaveLen(len(o.of)))
			g.Expect(ds.Check()).To(BeEmpty())
			s := ds.GetIPStats(ledger.IPv4)
			g.Expect(s.Assigned).To(Equal(len(o.of)))
		})
	}
}

func TestCoolingAddressIsNotAssignedUnderContention(t *testing.T) {
	g := NewWithT(t)
	const addresses = 4
	for range 100 {
		ds, _ := store(Options{CoolDown: time.Hour})
		g.Expect(ds.AddENI("eni-1", 0, true, false)).To(Succeed())
		for n := range addresses {
			g.Expect(ds.AddAddress("eni-1", netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}))).To(Succeed())
		}
		var all sync.WaitGroup
		var assigned atomic.Int64
		for n := range 2 * addresses {
			all.Go(func() {
				if _, _, err := ds.AssignPodIPv4Address(key(n)); err != nil {
					return
				}
				assigned.Add(1)
				_, _, _ = ds.UnassignPodIPv4Address(key(n))
			})
		}
		all.Wait()
		g.Expect(assigned.Load()).To(BeEquivalentTo(addresses))
		stats(g, ds, addresses, 0, addresses)
	}
}

// turn assigns an address to a key, and releases it most of the time.
func turn(ds *DataStore, o *owners, w int) error {
	n := w
	ip, _, err := ds.AssignPodIPv4Address(key(n))
	switch {
	case errors.Is(err, ErrNoAvailableIP) || errors.Is(err, journal.ErrInjected):
		return nil
	case err != nil:
		return err
	}
	if err := o.take(ip, n); err != nil {
		return err
	}
	if rand.IntN(3) == 0 {
		return nil
	}
	o.give(n) // before another key may have it
	_, _, err = ds.UnassignPodIPv4Address(key(n))
	if errors.Is(err, journal.ErrInjected) {
		return o.take(ip, n)
	}
	return err
}

func comeAndGo(ds *DataStore) error {
	if err := ds.AddENI("eni-9", 9, false, false); err != nil {
		return err
	}
	err := ds.AddPrefix("eni-9", netip.MustParsePrefix("9.9.9.0/28"))
	err = errors.Join(err, ds.RemoveENIFromDataStore("eni-9", false))
	if errors.Is(err, journal.ErrInjected) {
		for ds.RemoveENIFromDataStore("eni-9", false) != nil {
			runtime.Gosched()
		}
		return nil
	}
	return err
}

func TestConcurrentAssignmentsOfOneKey(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{Checkpoint: NewJournalCheckpoint(journal.NewMemory()), PrefixMode: true})
	add(g, ds, "eni-1", 0, "10.0.0.0/24")
	for n := range 50 {
		var all sync.WaitGroup
		ips := make(chan string, 8)
		for range 8 {
			all.Go(func() {
				x, err := ds.Assign(context.Background(), key(n), pod(n), ledger.IPv4)
				if err == nil {
					ips <- x.Addr.String()
				}
			})
		}
		all.Wait()
		close(ips)
		first, count := "", 0
		for ip := range ips {
			if count++; first == "" {
				first = ip
			}
			g.Expect(ip).To(Equal(first))
		}
		g.Expect(count).To(Equal(8))
	}
	stats(g, ds, 256, 50, 0)
}

func TestEndedContext(t *testing.T) {
	for name, cp := range map[string]Checkpointer{"with a checkpoint": NewTestCheckpoint(nil), "without": nil} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ds, _ := store(Options{Checkpoint: cp, CoolDown: time.Minute})
			add(g, ds, "eni-1", 0, "1.1.1.1")
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_, err := ds.Assign(over, key(1), pod(1), ledger.IPv4)
			g.Expect(err).To(MatchError(context.Canceled))
			stats(g, ds, 1, 0, 0)
			assign(g, ds, 1)
			_, err = ds.Unassign(over, key(1))
			g.Expect(err).To(MatchError(context.Canceled))
			stats(g, ds, 1, 1, 0)
			_, err = ds.Assign(context.Background(), IPAMKey{}, pod(1), ledger.IPv4)
			g.Expect(err).To(HaveOccurred())
			_, err = ds.Unassign(context.Background(), IPAMKey{})
			g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
		})
	}
}
