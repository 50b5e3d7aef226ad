// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ledger"
)

func TestServer(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	s := ipam.NewServer(w.IPAM)
	four, six, err := s.ADD("", me, "c1", "/proc/1/ns/net")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{text(four), text(six)}).To(Equal([]string{"1.1.1.1", "f00d::1"}))
	again, _, err := s.ADD("", me, "c1", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(again)).To(Equal("1.1.1.1"), "an ADD can be repeated")
	next, _, err := s.ADD("", me, "c2", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(next)).To(Equal("1.1.1.2"), "the sandbox that follows has its own")
	g.Expect(s.DEL(me, "c0")).To(Succeed())
	g.Expect(s.DEL(other, "c1")).To(Succeed())
	g.Expect(w.ReleaseIP(four.IP)).To(MatchError(ledger.ErrNotOwner), "the container's lease has another network")
	g.Expect(s.DEL(me, "c1")).To(Succeed())
	g.Expect(s.DEL(me, "c1")).To(Succeed())
	held, _, _ := s.Dump()
	g.Expect(held).To(Equal(map[string]string{"1.1.1.2": me}), "a late DEL of the first container spares the second")
	g.Expect(s.Endpoints()).To(Equal([]ipam.Endpoint{{Owner: me, ContainerID: "c2", Addrs: []netip.Addr{
		netip.MustParseAddr("1.1.1.2"), netip.MustParseAddr("f00d::2"),
	}}}))
	g.Expect(s.DebugStatus()).To(ContainSubstring(`container c2 of "default/test"`))
	w.start()
	s = ipam.NewServer(w.IPAM)
	s.RestoreFinished()
	again, _, err = s.ADD("", me, "c2", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(again)).To(Equal("1.1.1.2"), "also after a restart")
	for _, c := range [][3]string{{"", me, ""}, {"", "", "c"}, {"ipv5", me, "c"}} {
		_, _, err := s.ADD(c[0], c[1], c[2], "")
		g.Expect(err).To(HaveOccurred())
	}
	_, _, err = s.ADD("ipv4", me, "c4", "")
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = s.ADD("", me, "c4", "")
	g.Expect(err).To(MatchError(ledger.ErrKeyHeld), "both families or none")
}

func TestServerOfABrokenIPAM(t *testing.T) {
	g := NewWithT(t)
	m := ipam.NewIPAM("n", nil, mode("nonsense"), nil, nil, nil)
	s := ipam.NewServer(m)
	_, _, err := s.ADD("", me, "c1", "")
	g.Expect(err).To(MatchError(m.Err()))
	g.Expect(s.DEL(me, "c1")).To(MatchError(m.Err()))
	g.Expect(s.Endpoints()).To(BeEmpty())
}

// The defects of the published manager, one by one.

func TestDefectNamedIPv6AddressHasNoResult(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	for _, f := range []func() (*ipam.AllocationResult, error){
		func() (*ipam.AllocationResult, error) { return w.AllocateIPWithAllocationResult(ip("f00d::7"), me) },
		func() (*ipam.AllocationResult, error) { return w.AllocateIPWithoutSyncUpstream(ip("f00d::8"), me) },
		func() (*ipam.AllocationResult, error) { return w.IPv6Allocator.Allocate(ip("f00d::9"), me) },
	} {
		r, err := f()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r).NotTo(BeNil())
		g.Expect(r.IP.To4()).To(BeNil())
	}
}

func TestDefectIPv6OnlyReturnsANilIPv4Address(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, journal.NewMemory(), "", "f00d::/120")
	s := ipam.NewServer(w.IPAM)
	for _, family := range []string{"", "ipv6"} {
		four, six, err := s.ADD(family, me, "c1", "")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(four).To(BeNil())
		g.Expect(text(six)).To(Equal("f00d::1"))
	}
	g.Expect(s.Endpoints()[0].Addrs).To(Equal([]netip.Addr{netip.MustParseAddr("f00d::1")}))
}

func TestDefectCollectorNeedsAMissingRecord(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	w := plain(g)
	s := ipam.NewServer(w.IPAM)
	for _, c := range []string{"alive", "gone", "unknown"} {
		_, _, err := s.ADD("ipv4", "default/"+c, c, "")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(w.AllocateIPString("1.1.1.99", "default/gone")).To(Succeed(), "an address that no container lists")
	look := func(e ipam.Endpoint) (bool, error) {
		if e.ContainerID == "unknown" {
			return true, errors.New("no answer")
		}
		return e.ContainerID == "gone", nil
	}
	released, err := s.Sweep(ctx, look)
	g.Expect(err).To(MatchError(ContainSubstring("no answer")))
	g.Expect(released).To(BeEmpty(), "one finding is not enough")
	released, _ = s.Sweep(ctx, look)
	g.Expect(released).To(HaveLen(1))
	g.Expect(w.held()).To(Equal(map[string]string{"1.1.1.1": "default/alive", "1.1.1.3": "default/unknown", "1.1.1.99": "default/gone"}))
	_, _, err = s.ADD("ipv4", "default/gone", "gone", "")
	g.Expect(err).NotTo(HaveOccurred())
	released, _ = s.Sweep(ctx, look)
	g.Expect(released).To(BeEmpty(), "a later container of the same name")
}

func TestDefectTheTestsAssumeBothFamilies(t *testing.T) {
	for _, c := range []struct{ v4, v6, family, a string }{
		{"1.1.1.0/24", "", "ipv4", "1.1.1.9"}, {"", "f00d::/120", "ipv6", "f00d::9"},
	} {
		t.Run(c.family, func(t *testing.T) {
			g := NewWithT(t)
			w := hosted(g, journal.NewMemory(), c.v4, c.v6)
			w.RestoreFinished()
			g.Expect(w.AllocateIPString(c.a, me)).To(Succeed())
			uuid, err := w.StartExpirationTimer(ip(c.a), time.Minute)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(w.StopExpirationTimer(ip(c.a), uuid)).To(Succeed())
			for _, family := range []string{"", c.family} {
				four, six, err := w.AllocateNextWithExpiration(family, me, time.Minute)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(four == nil).To(Equal(c.v4 == ""))
				g.Expect(six == nil).To(Equal(c.v6 == ""))
			}
			w.BlacklistIP(ip(c.a), me)
			g.Expect(w.ReleaseIPString(me)).To(Succeed())
			g.Expect(w.held()).To(Equal(map[string]string{c.a: me + " (blacklisted)"}))
			g.Expect(w.DebugStatus()).NotTo(BeEmpty())
			w.consistent()
		})
	}
}

func TestDefectTimerOfAFreeAddress(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	uuid, err := w.StartExpirationTimer(ip("1.1.1.7"), time.Minute)
	g.Expect(err).To(MatchError(ledger.ErrNoLease))
	g.Expect(uuid).To(BeEmpty())
	g.Expect(w.AllocateIPString("1.1.1.7", me)).To(Succeed())
	w.uptime += time.Hour
	g.Expect(w.held()).To(HaveKey("1.1.1.7"), "and does not release a later allocation")
	g.Expect(w.StopExpirationTimer(ip("1.1.1.8"), "x")).To(MatchError(ledger.ErrNoLease))
}

func TestDefectPoolSizeIsZeroAfterARestore(t *testing.T) {
	g := NewWithT(t)
	o := &owner{}
	w := &world{g: g, journal: journal.NewMemory(), deps: ipam.Deps{Name: "n1", Config: &config{mode: "crd", v4: true}, Owner: o}}
	w.start()
	g.Expect(w.Update(context.Background(), &ipam.NetResourceSet{Name: "n1", Pool: map[string]ipam.PoolIP{"10.0.0.1": {}, "10.0.0.2": {}}})).To(Succeed())
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(Succeed())
	w.start()
	w.RestoreFinished()
	_, _, status := w.Dump()
	g.Expect(status).To(Equal("IPv4: 1/2 allocated"))
}

func TestDefectBlacklistErrorNamesTheWrongOwner(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	w.BlacklistIP(ip("1.1.1.7"), "router")
	err := w.AllocateIPString("1.1.1.7", me)
	g.Expect(err).To(MatchError(ipam.ErrBlacklisted))
	g.Expect(err).To(MatchError(`allocate 1.1.1.7 for "default/test": IP is blacklisted by "router"`))
}
