// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

// Each of these tests is named after a defect of the published store.

func TestDefectRemovingAnInterfaceByForceCountsItsAddressesTwice(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "eni-2", 1, "1.1.2.1", "1.1.2.2", "1.1.2.3")
	for n := range 4 {
		assign(g, ds, n)
	}
	g.Expect(ds.RemoveENIFromDataStore("eni-2", true)).To(Succeed())
	stats(g, ds, 2, 2, 0)
}

func TestDefectPodsWithIPv6AreNotCounted(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{PrefixMode: true})
	g.Expect(ds.AddENI("eni-1", 1, false, false)).To(Succeed())
	g.Expect(ds.AddPrefix("eni-1", netip.MustParsePrefix("fd00::/80"))).To(Succeed())
	_, _, err := ds.AssignPodIPv6Address(key(1))
	g.Expect(err).NotTo(HaveOccurred())
	c.pass(time.Hour)
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(BeEmpty())
	g.Expect(ds.RemoveENIFromDataStore("eni-1", false)).To(text(ENIInUseError))
	e := ds.GetENIInfos().ENIs["eni-1"]
	g.Expect(e.AssignedIPv6Addresses()).To(Equal(1))
	g.Expect(ds.RemoveENIFromDataStore("eni-1", true)).To(Succeed())
	g.Expect(ds.GetIPStats(ledger.IPv6)).To(Equal(Stats{}))
}

func TestDefectTotalsAreOldAfterAnInterfaceIsRemoved(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1", "eni-2", 1, "1.1.2.1")
	c.pass(time.Minute)
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(Equal("eni-2"))
	total, _ := ds.GetStats()
	g.Expect(total).To(Equal(1))
	g.Expect(ds.GetENIInfos().TotalIPs).To(Equal(1))
}

// stalled is a Checkpointer whose writes wait.
type stalled struct {
	NullStore
	writes  atomic.Int64
	entered chan struct{}
	proceed chan struct{}
}

// NullStore is a NullCheckpoint of another type.
type NullStore struct{ NullCheckpoint }

func (s *stalled) Checkpoint(any) error {
	s.writes.Add(1)
	s.entered <- struct{}{}
	<-s.proceed
	return nil
}

func TestDefectAllCallersWaitForTheDisk(t *testing.T) {
	g := NewWithT(t)
	s := &stalled{entered: make(chan struct{}, 64), proceed: make(chan struct{})}
	ds, _ := store(Options{Checkpoint: s, PrefixMode: true})
	add(g, ds, "eni-1", 0, "10.0.0.0/24")
	var callers sync.WaitGroup
	errs := make(chan error, 64)
	call := func(n int) {
		callers.Go(func() { _, _, err := ds.AssignPodIPv4Address(key(n)); errs <- err })
	}
	call(0)
	<-s.entered // the first write is under way
	for n := 1; n <= 40; n++ {
		call(n)
	}
	// Readers do not wait. An unwritten assignment counts, but has no owner yet.
	g.Eventually(func() int { return ds.GetIPStats(ledger.IPv4).Assigned }).Should(BeNumerically(">", 30))
	g.Expect(ds.AllocatedIPs()).To(BeEmpty())
	e := ds.GetENIInfos().ENIs["eni-1"]
	g.Expect(e.AssignedIPv4Addresses()).To(BeZero())
	close(s.proceed)
	callers.Wait()
	close(errs)
	for err := range errs {
		g.Expect(err).NotTo(HaveOccurred())
	}
	stats(g, ds, 256, 41, 0)
	g.Expect(s.writes.Load()).To(BeNumerically("<", 15), "waiting calls share a write")
}

func TestDefectIntrospectionSharesTheStoresMaps(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			for _, e := range ds.GetENIInfos().ENIs {
				for ip := range e.IPv4Addresses {
					e.IPv4Addresses[ip] = nil
				}
			}
			ds.GetStats()
		}
	}()
	for range 200 {
		assign(g, ds, 1)
		unassign(g, ds, 1)
	}
	<-done
	g.Expect(assign(g, ds, 1)).To(Equal("1.1.1.1"))
}

func TestDefectPodsOfLateInterfacesAreErased(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(data(CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1"}, CheckpointEntry{IPAMKey: key(2), IPv4: "1.1.2.1"}))
	ds, _ := store(Options{Checkpoint: cp})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	assign(g, ds, 3) // writes
	g.Expect(cp.Data.(*CheckpointData).Allocations).To(HaveLen(3))
	add(g, ds, "eni-2", 1, "1.1.2.1")
	g.Expect(assign(g, ds, 2)).To(Equal("1.1.2.1"))
}

func TestDefectSingleAddressesStayInPrefixMode(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(data(CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1"}))
	ds, _ := store(Options{Checkpoint: cp, PrefixMode: true, CoolDown: time.Minute})
	add(g, ds, "eni-1", 0, "1.1.1.1", "10.0.0.0/28")
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	stats(g, ds, 17, 1, 0)
	ip, device, err := ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("1.1.1.1"))
	g.Expect(device).To(BeZero())
	stats(g, ds, 16, 0, 0)
	g.Expect(ds.GetENIIPs("eni-1")).To(BeEmpty())
	g.Expect(cp.Data.(*CheckpointData).Allocations).To(BeEmpty())
	_, _, err = ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
}

func TestDefectCoolingAddressesCountAsFree(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{CoolDown: time.Minute})
	add(g, ds, "eni-1", 0, "1.1.1.1")
	assign(g, ds, 1)
	unassign(g, ds, 1)
	g.Expect(ds.GetIPStats(ledger.IPv4).Free()).To(BeZero(), "no pod can get it")
}

func TestDefectAddressOfTwoInterfaces(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1", "eni-2", 1)
	g.Expect(ds.AddIPv4AddressToStore("eni-2", "1.1.1.1")).To(text(IPAlreadyInStoreError))
}
