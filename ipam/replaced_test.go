// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam"
)

var errFull = errors.New("the range is full")

// fakeAllocator is an allocator of a caller. It has some addresses and records its calls.
type fakeAllocator struct {
	free  []string
	held  []string
	asked []string
}

func (b *fakeAllocator) give(what string, i int) (*ipam.AllocationResult, error) {
	b.asked = append(b.asked, what)
	if i < 0 || i >= len(b.free) {
		return nil, errFull
	}
	a := b.free[i]
	b.free, b.held = slices.Delete(b.free, i, i+1), append(b.held, a)
	return &ipam.AllocationResult{IP: net.ParseIP(a), GatewayIP: "of the fakeAllocator"}, nil
}

func (b *fakeAllocator) Allocate(ip net.IP, owner string) (*ipam.AllocationResult, error) {
	return b.give("Allocate "+owner, slices.Index(b.free, ip.String()))
}

func (b *fakeAllocator) AllocateWithoutSyncUpstream(ip net.IP, owner string) (*ipam.AllocationResult, error) {
	return b.give("AllocateWithoutSyncUpstream "+owner, slices.Index(b.free, ip.String()))
}

func (b *fakeAllocator) AllocateNext(owner string) (*ipam.AllocationResult, error) {
	return b.give("AllocateNext "+owner, 0)
}

func (b *fakeAllocator) AllocateNextWithoutSyncUpstream(owner string) (*ipam.AllocationResult, error) {
	return b.give("AllocateNextWithoutSyncUpstream "+owner, 0)
}

func (b *fakeAllocator) Release(ip net.IP) error {
	b.asked = append(b.asked, "Release")
	i := slices.Index(b.held, ip.String())
	if i < 0 {
		return errors.New("it is not allocated")
	}
	b.free, b.held = append(b.free, b.held[i]), slices.Delete(b.held, i, i+1)
	return nil
}

func (b *fakeAllocator) Dump() (map[string]string, string) {
	all := map[string]string{}
	for _, a := range b.held {
		all[a] = ""
	}
	return all, "a fakeAllocator"
}

func (b *fakeAllocator) RestoreFinished() { b.asked = append(b.asked, "RestoreFinished") }

// withFakeAllocator returns an IPAM with a fakeAllocator for IPv4, and the ledger's for IPv6.
func withFakeAllocator(g Gomega) (*world, *fakeAllocator) {
	w, b := hosted(g, nil, "1.1.1.0/24", "f00d::/120"), &fakeAllocator{free: []string{"9.9.9.1", "9.9.9.2", "9.9.9.3"}}
	w.IPv4Allocator = b
	return w, b
}

func TestAllocatorOfTheCallerIsCalled(t *testing.T) {
	for name, c := range map[string]struct {
		call func(w *world) error
		want []string
		held []string
	}{
		"AllocateIP":       {func(w *world) error { return w.AllocateIP(ip("9.9.9.2"), me) }, []string{"Allocate " + me}, []string{"9.9.9.2"}},
		"AllocateIPString": {func(w *world) error { return w.AllocateIPString("9.9.9.2", me) }, []string{"Allocate " + me}, []string{"9.9.9.2"}},
		"AllocateIPWithoutSyncUpstream": {func(w *world) error {
			_, err := w.AllocateIPWithoutSyncUpstream(ip("9.9.9.2"), me)
			return err
		}, []string{"AllocateWithoutSyncUpstream " + me}, []string{"9.9.9.2"}},
		"AllocateNextFamily": {func(w *world) error {
			r, err := w.AllocateNextFamily(ipam.IPv4, me)
			w.g.Expect(r.GatewayIP).To(Equal("of the fakeAllocator"))
			return err
		}, []string{"AllocateNext " + me}, []string{"9.9.9.1"}},
		"AllocateNextFamilyWithoutSyncUpstream": {func(w *world) error {
			_, err := w.AllocateNextFamilyWithoutSyncUpstream(ipam.IPv4, me)
			return err
		}, []string{"AllocateNextWithoutSyncUpstream " + me}, []string{"9.9.9.1"}},
		"AllocateNext, both families": {func(w *world) error {
			four, six, err := w.AllocateNext("", me)
			w.g.Expect(text(four)).To(Equal("9.9.9.1"))
			w.g.Expect(text(six)).To(Equal("f00d::1"))
			return err
		}, []string{"AllocateNext " + me}, []string{"9.9.9.1"}},
		"an address is blacklisted": {func(w *world) error {
			w.BlacklistIP(ip("9.9.9.1"), "router")
			w.g.Expect(w.AllocateIP(ip("9.9.9.1"), me)).To(MatchError(ipam.ErrBlacklisted))
			r, err := w.AllocateNextFamily(ipam.IPv4, me)
			w.g.Expect(text(r)).To(Equal("9.9.9.2"))
			return err
		}, []string{"AllocateNext " + me, "AllocateNext " + me}, []string{"9.9.9.1", "9.9.9.2"}},
		"ReleaseIP": {func(w *world) error {
			w.g.Expect(w.AllocateIP(ip("9.9.9.2"), me)).To(Succeed())
			return w.ReleaseIP(ip("9.9.9.2"))
		}, []string{"Allocate " + me, "Release"}, nil},
		"ReleaseIPString of an owner": {func(w *world) error {
			_, _, err := w.AllocateNext("", me)
			w.g.Expect(err).NotTo(HaveOccurred())
			return w.ReleaseIPString(me)
		}, []string{"AllocateNext " + me}, []string{"9.9.9.1"}}, // whose it is, the caller knows
		"RestoreFinished": {func(w *world) error { w.RestoreFinished(); return nil }, []string{"RestoreFinished"}, nil},
		"IPv6 from the ledger": {func(w *world) error {
			_, err := w.AllocateNextFamily(ipam.IPv6, me)
			return err
		}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, b := withFakeAllocator(g)
			g.Expect(c.call(w)).To(Succeed())
			g.Expect(b.asked).To(Equal(c.want))
			g.Expect(slices.Sorted(slices.Values(b.held))).To(Equal(slices.Sorted(slices.Values(c.held))))
			_, _, status := w.Dump()
			g.Expect(status).To(ContainSubstring("IPv4: a fakeAllocator, IPv6: "))
			w.consistent()
		})
	}
}

func TestBothFamiliesOrNoneWithAnAllocatorOfTheCaller(t *testing.T) {
	g := NewWithT(t)
	w, b := withFakeAllocator(g)
	b.free = nil
	_, _, err := w.AllocateNext("", me)
	g.Expect(err).To(MatchError(errFull))
	g.Expect(w.held()).To(BeEmpty(), "the IPv6 address is released")

	w.IPv4Allocator, w.IPv6Allocator = w.IPv6Allocator, b // of another family: refused by it
	b.free = []string{"9.9.9.1"}
	_, _, err = w.AllocateNext("", me)
	g.Expect(err).To(HaveOccurred())
	g.Expect(b.held).To(BeEmpty(), "and this one")
}

// What needs the owner of an address is refused, and takes nothing.
func TestAReplacedAllocatorHasNoOwnersAndNoTimers(t *testing.T) {
	for name, call := range map[string]func(w *world) error{
		"a timer with the allocation": func(w *world) error {
			_, _, err := w.AllocateNextWithExpiration("", me, time.Minute)
			return err
		},
		"a timer": func(w *world) error {
			_, err := w.StartExpirationTimer(ip("9.9.9.1"), time.Minute)
			return err
		},
		"the end of a timer": func(w *world) error { return w.StopExpirationTimer(ip("9.9.9.1"), "uuid") },
		"the server's ADD, which may be repeated": func(w *world) error {
			_, _, err := ipam.NewServer(w.IPAM).ADD("", me, "c1", "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, b := withFakeAllocator(g)
			g.Expect(call(w)).To(MatchError(ContainSubstring("the allocator of the family was replaced")))
			g.Expect(b.held).To(BeEmpty())
			g.Expect(w.deps.Ledger.Leases()).To(BeEmpty())
		})
	}
}

// counting wraps the allocator of the IPAM.
type counting struct {
	ipam.Allocator
	n int
}

func (c *counting) AllocateNext(owner string) (*ipam.AllocationResult, error) {
	c.n++
	return c.Allocator.AllocateNext(owner)
}

func TestAllocatorThatWrapsTheIPAMsOwn(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, nil, "1.1.1.0/24", "")
	c := &counting{Allocator: w.IPv4Allocator}
	w.IPv4Allocator = c
	r, err := w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.n).To(Equal(1))
	g.Expect(w.AllocateIP(ip("1.1.1.9"), me)).To(Succeed())
	g.Expect(w.held()).To(Equal(map[string]string{text(r): me, "1.1.1.9": me}))
	g.Expect(w.ReleaseIPString(me)).To(Succeed())
	g.Expect(w.deps.Ledger.Leases()).To(BeEmpty())
	w.consistent()
}

func TestAllocatorOfTheCallerForADisabledFamily(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, nil, "", "f00d::/120")
	_, err := w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(MatchError(ipam.ErrIPv4Disabled))
	w.IPv4Allocator = &fakeAllocator{free: []string{"9.9.9.1"}}
	_, err = w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).NotTo(HaveOccurred())
	w.IPv6Allocator = nil
	_, err = w.AllocateNextFamily(ipam.IPv6, me)
	g.Expect(err).To(MatchError(ipam.ErrIPv6Disabled))
}

// The arguments are those that the published package passes.
func TestEventsAreCountedAsPublished(t *testing.T) {
	g, o := NewWithT(t), &owner{}
	_, err := ipam.New(t.Context(), ipam.Deps{Name: "n1", Config: mode("cluster-pool-v2beta"), Owner: o, Events: o})
	g.Expect(err).NotTo(HaveOccurred())
	s, set := o.subs[0], &ipam.NetResourceSet{Name: "n1", PodCIDRs: []string{"10.1.0.0/24"}}
	same, more := *set, *set
	more.PodCIDRs = []string{"10.1.0.0/24", "10.2.0.0/24"}
	g.Expect(s.OnAddNetResourceSet(set)).To(Succeed())
	g.Expect(s.OnUpdateNetResourceSet(set, &same)).To(Succeed())
	g.Expect(s.OnUpdateNetResourceSet(set, &more)).To(Succeed())
	g.Expect(s.OnUpdateNetResourceSet(set, nil)).To(Succeed())
	g.Expect(s.OnAddNetResourceSet(&ipam.NetResourceSet{Name: "n2"})).To(Succeed())
	g.Expect(s.OnDeleteNetResourceSet(set)).To(Succeed())
	const received = "cadastre.dev/v1alpha1::NetResourceSet NetResourceSet "
	g.Expect(o.events).To(Equal([]string{
		received + "create true false", "NetResourceSet create true",
		received + "update true true", "NetResourceSet update true",
		received + "update true false", "NetResourceSet update true",
		received + "update false false",
		received + "delete true false", "NetResourceSet delete true",
	}))
}

// A timer from before the caller set an allocator can be stopped, so that it does
// not release the address of a running pod.
func TestTimerOfALeaseFromBeforeTheAllocatorIsStopped(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, nil, "1.1.1.0/24", "f00d::/120")
	r, _, err := w.AllocateNextWithExpiration("ipv4", me, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	w.IPv4Allocator = &fakeAllocator{}
	g.Expect(w.StopExpirationTimer(r.IP, r.ExpirationUUID)).To(Succeed())
	uuid, err := w.StartExpirationTimer(r.IP, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.StopExpirationTimer(r.IP, uuid)).To(Succeed())
}
