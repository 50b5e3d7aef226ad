// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ledger"
)

const me, other = "default/test", "default/test2"

func plain(g Gomega) *world { return hosted(g, journal.NewMemory(), "1.1.1.0/24", "f00d::/120") }

func TestAllocateAndReleaseOfANamedAddress(t *testing.T) {
	for _, a := range []string{"1.1.1.7", "f00d::7"} {
		t.Run(a, func(t *testing.T) {
			g := NewWithT(t)
			w := plain(g)
			g.Expect(w.ReleaseIP(ip(a))).To(Succeed(), "a free address")
			g.Expect(w.AllocateIP(ip(a), me)).To(Succeed())
			g.Expect(w.ReleaseIP(ip(a))).To(Succeed())
			g.Expect(w.held()).To(BeEmpty())
			w.consistent()
		})
	}
}

func TestBlacklistedAddressIsNotAllocated(t *testing.T) {
	for _, a := range []string{"1.1.1.1", "f00d::1"} {
		t.Run(a, func(t *testing.T) {
			g := NewWithT(t)
			w := plain(g)
			w.BlacklistIP(ip(a), "router")
			g.Expect(w.Blacklist().Contains(ip(a))).To(BeTrue())
			g.Expect(w.Blacklist().Contains(ip("1.1.1.2"))).To(BeFalse())
			g.Expect(w.AllocateIP(ip(a), me)).To(MatchError(ipam.ErrBlacklisted))
			r, err := w.AllocateNextFamily(ipam.DeriveFamily(ip(a)), me)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(text(r)).NotTo(Equal(a))
		})
	}
}

func TestZeroBlacklistIsEmpty(t *testing.T) {
	g := NewWithT(t)
	var none *ipam.IPBlacklist
	g.Expect(none.Contains(ip("1.1.1.1"))).To(BeFalse())
	g.Expect((&ipam.IPBlacklist{}).Contains(ip("1.1.1.1"))).To(BeFalse())
}

func TestDeriveFamily(t *testing.T) {
	g := NewWithT(t)
	g.Expect(ipam.DeriveFamily(ip("1.1.1.1"))).To(Equal(ipam.IPv4))
	g.Expect(ipam.DeriveFamily(ip("1.1.1.1").To4())).To(Equal(ipam.IPv4))
	g.Expect(ipam.DeriveFamily(ip("f00d::1"))).To(Equal(ipam.IPv6))
}

func TestReleaseByOwner(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	g.Expect(w.AllocateIPString("1.1.1.7", me)).To(Succeed())
	g.Expect(w.AllocateIPString("f00d::7", me)).To(Succeed())
	g.Expect(w.AllocateIPString("f00d::8", "default/third")).To(Succeed())
	g.Expect(w.ReleaseIPString(other)).To(MatchError(ContainSubstring("Invalid IP address or owner name")))
	g.Expect(w.ReleaseIPString(me)).To(Succeed())
	g.Expect(w.ReleaseIPString(me)).NotTo(Succeed())
	g.Expect(w.held()).To(Equal(map[string]string{"f00d::8": "default/third"}))
	g.Expect(w.ReleaseIPString("f00d::8")).To(Succeed(), "by address")
	g.Expect(w.held()).To(BeEmpty())
}

func TestExpirationTimer(t *testing.T) {
	const a, timeout = "1.1.1.1", 50 * time.Millisecond
	for _, c := range []struct {
		name string
		then func(g Gomega, w *world, uuid string)
	}{
		{"it ends", func(g Gomega, w *world, uuid string) {
			w.uptime += 2 * timeout
			g.Expect(w.AllocateIP(ip(a), me)).To(Succeed())
		}},
		{"it is stopped", func(g Gomega, w *world, uuid string) {
			g.Expect(w.StopExpirationTimer(ip(a), "another")).To(MatchError(ledger.ErrToken))
			g.Expect(w.StopExpirationTimer(ip(a), uuid)).To(Succeed())
			w.uptime += 2 * timeout
			g.Expect(w.AllocateIP(ip(a), me)).NotTo(Succeed(), "it is still held")
			g.Expect(w.StopExpirationTimer(ip(a), uuid)).To(MatchError(ledger.ErrNotPending))
		}},
		{"the address is released", func(g Gomega, w *world, uuid string) {
			g.Expect(w.ReleaseIP(ip(a))).To(Succeed())
			g.Expect(w.AllocateIP(ip(a), me)).To(Succeed())
			again, err := w.StartExpirationTimer(ip(a), time.Hour)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(again).NotTo(Equal(uuid))
			w.uptime += 2 * timeout
			g.Expect(w.AllocateIP(ip(a), me)).NotTo(Succeed(), "the first timer is gone")
		}},
		{"the process is away when it ends", func(g Gomega, w *world, uuid string) {
			w.uptime += 2 * timeout
			w.start()
			g.Expect(w.held()).To(BeEmpty())
		}},
		{"the process is away, and back in time", func(g Gomega, w *world, uuid string) {
			w.start()
			g.Expect(w.StopExpirationTimer(ip(a), uuid)).To(Succeed())
			w.uptime += 2 * timeout
			g.Expect(w.held()).To(HaveKey(a))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			w := plain(g)
			g.Expect(w.AllocateIP(ip(a), me)).To(Succeed())
			uuid, err := w.StartExpirationTimer(ip(a), timeout)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(uuid).NotTo(BeEmpty())
			none, err := w.StartExpirationTimer(ip(a), timeout)
			g.Expect(err).To(MatchError(ledger.ErrPending))
			g.Expect(none).To(BeEmpty())
			g.Expect(w.AllocateIP(ip(a), me)).NotTo(Succeed())
			c.then(g, w, uuid)
			w.consistent()
		})
	}
}

func TestAllocationWithExpiration(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprint("stopped=", stopped), func(t *testing.T) {
			g := NewWithT(t)
			w := plain(g)
			four, six, err := w.AllocateNextWithExpiration("", me, timeout)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(four.ExpirationUUID).NotTo(BeEmpty())
			g.Expect(six.ExpirationUUID).NotTo(BeEmpty())
			g.Expect(w.AllocateIP(four.IP, me)).NotTo(Succeed())
			g.Expect(w.AllocateIP(six.IP, me)).NotTo(Succeed())
			if stopped {
				g.Expect(w.StopExpirationTimer(four.IP, four.ExpirationUUID)).To(Succeed())
			}
			w.uptime += 2 * timeout
			if stopped {
				g.Expect(w.AllocateIP(four.IP, me)).NotTo(Succeed())
			} else {
				g.Expect(w.AllocateIP(four.IP, me)).To(Succeed())
			}
			g.Expect(w.AllocateIP(six.IP, me)).To(Succeed())
			w.consistent()
		})
	}
}

func TestAllocationWithoutTimeoutHasNoTimer(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	four, _, err := w.AllocateNextWithExpiration("ipv4", me, 0)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(four.ExpirationUUID).To(BeEmpty())
	w.uptime += 1000 * time.Hour
	g.Expect(w.held()).To(HaveLen(1))
	_, _, err = w.AllocateNextWithExpiration("ipv4", me, -1)
	g.Expect(err).To(HaveOccurred())
}

func TestNotAvailableError(t *testing.T) {
	g := NewWithT(t)
	e := ipam.NewIPNotAvailableInPoolError(ip("1.1.1.1"))
	g.Expect(errors.Is(e, ipam.NewIPNotAvailableInPoolError(ip("1.1.1.1").To4()))).To(BeTrue())
	g.Expect(errors.Is(fmt.Errorf("x: %w", e), e)).To(BeTrue())
	for _, x := range []error{ipam.NewIPNotAvailableInPoolError(ip("1.1.1.2")), errors.New("other"), nil, errors.New(e.Error())} {
		g.Expect(errors.Is(e, x)).To(BeFalse())
	}
	var none *ipam.ErrIPNotAvailableInPool
	g.Expect(none.Is(e)).To(BeFalse())
	g.Expect(none.Error()).NotTo(BeEmpty())
	g.Expect(errors.Is(e, none)).To(BeFalse())
}

func TestDump(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	_, _, err := w.AllocateNext("", me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.AllocateIPString("1.1.1.200", "")).To(Succeed())
	four, six, status := w.Dump()
	g.Expect(four).To(Equal(map[string]string{"1.1.1.1": me, "1.1.1.200": ""}))
	g.Expect(six).To(Equal(map[string]string{"f00d::1": me}))
	g.Expect(status).To(Equal("IPv4: 2/254 allocated from 1.1.1.0/24, IPv6: 1/254 allocated from f00d::/120"))
	for a := range w.held() {
		g.Expect(ip(a)).NotTo(BeNil())
	}
	g.Expect(w.DebugStatus()).To(And(ContainSubstring("mode: host scope (kubernetes)"), ContainSubstring("1.1.1.0/24: active, 2 held")))
	g.Expect((*ipam.IPAM)(nil).DebugStatus()).To(Equal("<nil>"))
	one, line := w.IPv6Allocator.Dump()
	g.Expect(one).To(Equal(six))
	g.Expect(line).To(Equal("1/254 allocated from f00d::/120"))
}

func TestBlacklistedAddressesReduceTheBlock(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, journal.NewMemory(), "1.1.1.0/30", "")
	w.BlacklistIP(ip("1.1.1.1"), "router")
	four, six, err := w.AllocateNext("", me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{text(four), text(six)}).To(Equal([]string{"1.1.1.2", ""}))
	_, _, err = w.AllocateNext("", other)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	_, err = w.AllocateNextFamily(ipam.IPv4, other)
	g.Expect(err).To(MatchError(ledger.ErrExhausted), "nothing was used up by looking")
	held, _, status := w.Dump()
	g.Expect(held).To(Equal(map[string]string{"1.1.1.1": "router (blacklisted)", "1.1.1.2": me}))
	g.Expect(status).To(Equal("IPv4: 1/1 allocated from 1.1.1.0/30"))
}

func TestBothFamiliesOrNone(t *testing.T) {
	for _, full := range []string{"ipv4", "ipv6"} {
		t.Run(full, func(t *testing.T) {
			g := NewWithT(t)
			v4, v6 := "1.1.1.0/30", "f00d::/120"
			if full == "ipv6" {
				v4, v6 = "1.1.1.0/24", "f00d::/126"
			}
			w := hosted(g, journal.NewMemory(), v4, v6)
			for range 2 {
				_, _, err := w.AllocateNext(full, other)
				g.Expect(err).NotTo(HaveOccurred())
			}
			_, _, err := w.AllocateNext("", me)
			g.Expect(err).To(MatchError(ledger.ErrExhausted))
			_, _, err = w.AllocateNextWithExpiration("", me, time.Minute)
			g.Expect(err).To(MatchError(ledger.ErrExhausted))
			g.Expect(w.held()).To(HaveLen(2))
		})
	}
}

func TestFamiliesByName(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	four, six, err := w.AllocateNext("ipv6", me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{text(four), text(six)}).To(Equal([]string{"", "f00d::1"}))
	for _, family := range []ipam.Family{"", "ipv5", "IPv4"} {
		_, err := w.AllocateNextFamily(family, me)
		g.Expect(err).To(MatchError(ContainSubstring("unknown address family")))
	}
	_, _, err = w.AllocateNext("ipv5", me)
	g.Expect(err).To(MatchError(ContainSubstring("unknown address family")))
	r, err := w.AllocateNextFamilyWithoutSyncUpstream(ipam.IPv4, me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(r)).To(Equal("1.1.1.1"))
}

func TestDisabledFamily(t *testing.T) {
	g := NewWithT(t)
	w := hosted(g, journal.NewMemory(), "1.1.1.0/24", "")
	g.Expect(w.IPv6Allocator).To(BeNil())
	g.Expect(w.AllocateIPString("f00d::1", me)).To(MatchError(ipam.ErrIPv6Disabled))
	g.Expect(w.ReleaseIP(ip("f00d::1"))).To(MatchError(ipam.ErrIPv6Disabled))
	_, err := w.AllocateNextFamily(ipam.IPv6, me)
	g.Expect(err).To(MatchError(ipam.ErrIPv6Disabled))
	_, _, err = w.AllocateNext("ipv6", me)
	g.Expect(err).To(MatchError(ipam.ErrIPv6Disabled), "not an answer with nothing in it")
	_, err = w.StartExpirationTimer(ip("f00d::1"), time.Minute)
	g.Expect(err).To(MatchError(ipam.ErrIPv6Disabled))
	w = hosted(g, journal.NewMemory(), "", "f00d::/120")
	g.Expect(w.AllocateIPString("1.1.1.1", me)).To(MatchError(ipam.ErrIPv4Disabled))
	_, six, status := w.Dump()
	g.Expect(six).To(BeEmpty())
	g.Expect(status).To(Equal("IPv6: 0/254 allocated from f00d::/120"))
	w = hosted(g, journal.NewMemory(), "", "")
	_, _, status = w.Dump()
	g.Expect(status).To(Equal("Not running"))
	_, _, err = w.AllocateNext("", me)
	g.Expect(err).To(MatchError(ipam.ErrIPv4Disabled))
}

func TestBadAddresses(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	for _, a := range []string{"", "1.1.1", "1.1.1.1/24", "fe80::1%eth0", "default/test"} {
		g.Expect(w.AllocateIPString(a, me)).To(MatchError(HavePrefix("Invalid IP address: " + a)))
	}
	for _, a := range []net.IP{nil, {}, {1, 2, 3}, make(net.IP, 17)} {
		g.Expect(w.AllocateIP(a, me)).NotTo(Succeed())
		g.Expect(w.ReleaseIP(a)).NotTo(Succeed())
		_, err := w.StartExpirationTimer(a, time.Minute)
		g.Expect(err).To(HaveOccurred())
		g.Expect(w.StopExpirationTimer(a, "x")).NotTo(Succeed())
		g.Expect(w.Blacklist().Contains(a)).To(BeFalse())
		w.BlacklistIP(a, me)
	}
	for _, a := range []string{"1.1.1.0", "1.1.1.255", "1.1.2.1", "f00d::", "f00d::ff"} {
		g.Expect(w.AllocateIPString(a, me)).To(MatchError(ledger.ErrOutside), a)
		g.Expect(w.ReleaseIPString(a)).To(Succeed(), "out of range: %s", a)
	}
	g.Expect(w.held()).To(BeEmpty())
}

func TestLeasesOfAnotherNetworkStay(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	leases, _, err := w.deps.Ledger.Claim(context.Background(), ledger.Request{
		Pool: "ipam", Key: ledger.Key{Network: "cni", ContainerID: me}, Pod: ledger.Pod{Namespace: "default", Name: "test"},
		Families: []ledger.Family{ledger.IPv4},
	})
	g.Expect(err).NotTo(HaveOccurred())
	a := net.IP(leases[0].Addr.AsSlice())
	g.Expect(w.ReleaseIP(a)).To(MatchError(ledger.ErrNotOwner))
	g.Expect(w.ReleaseIPString(me)).NotTo(Succeed())
	g.Expect(w.AllocateIP(a, me)).NotTo(Succeed())
	_, err = w.StartExpirationTimer(a, time.Minute)
	g.Expect(err).To(MatchError(ledger.ErrNotOwner))
	g.Expect(w.held()).To(Equal(map[string]string{a.String(): me}), "Dump shows it")
}

func TestRestartKeepsLeasesAndBlacklist(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	g.Expect(w.AllocateIPString("1.1.1.7", me)).To(Succeed())
	g.Expect(w.AllocateIPString("1.1.1.8", other)).To(Succeed())
	w.BlacklistIP(ip("1.1.1.9"), "router")
	w.start()
	g.Expect(w.Unconfirmed()).To(Equal(map[string]string{"1.1.1.7": me, "1.1.1.8": other}))
	g.Expect(w.AllocateIPString("1.1.1.7", other)).To(MatchError(ledger.ErrTaken), "another owner has it")
	r, err := w.AllocateIPWithoutSyncUpstream(ip("1.1.1.7"), me)
	g.Expect(err).NotTo(HaveOccurred(), "its owner is restored")
	g.Expect(text(r)).To(Equal("1.1.1.7"))
	g.Expect(w.AllocateIPString("1.1.1.7", me)).To(MatchError(ledger.ErrTaken), "once")
	w.RestoreFinished()
	g.Expect(w.Unconfirmed()).To(Equal(map[string]string{"1.1.1.8": other}), "an unconfirmed address stays")
	g.Expect(w.held()).To(HaveKeyWithValue("1.1.1.8", other))
	g.Expect(w.AllocateIPString("1.1.1.9", me)).To(MatchError(ipam.ErrBlacklisted), "the blacklist is kept")
	g.Expect(w.Readmit(context.Background(), netip.MustParseAddr("1.1.1.9"))).To(Succeed())
	g.Expect(w.AllocateIPString("1.1.1.9", me)).To(Succeed())
	w.consistent()
}

func TestEachCallReturnsTheErrorOfNewIPAM(t *testing.T) {
	g := NewWithT(t)
	for _, m := range []*ipam.IPAM{
		ipam.NewIPAM("n", node{"1.1.1.0/24", ""}, mode("nonsense"), nil, nil, nil),
		ipam.NewIPAM("n", nil, mode("kubernetes"), nil, nil, nil),
		ipam.NewIPAM("n", node{"1.1.1.0/24", ""}, mode("kubernetes"), nil, nil, nil),
		ipam.NewIPAM("n", node{"1.1.1.0/31", ""}, &config{mode: "cluster-pool", v4: true}, nil, nil, nil),
		ipam.NewIPAM("n", nil, nil, nil, nil, nil),
	} {
		g.Expect(m.Err()).To(HaveOccurred())
		_, _, err := m.AllocateNext("", me)
		g.Expect(err).To(MatchError(m.Err()))
		for _, err := range []error{
			m.AllocateIPString("1.1.1.1", me), m.ReleaseIPString(me), m.ReleaseIP(ip("1.1.1.1")), m.StopExpirationTimer(ip("1.1.1.1"), "x"),
			m.Update(context.Background(), nil), m.Ready(context.Background()), m.Sync(context.Background(), 0, nil),
			m.Exclude(context.Background(), netip.MustParseAddr("1.1.1.1"), "", ""), m.Readmit(context.Background(), netip.MustParseAddr("1.1.1.1")),
		} {
			g.Expect(err).To(MatchError(m.Err()))
		}
		m.BlacklistIP(ip("1.1.1.1"), me)
		m.RestoreFinished()
		g.Expect(m.Blacklist().Contains(ip("1.1.1.1"))).To(BeFalse())
		g.Expect(m.GetVpcCIDRs()).To(BeNil())
		g.Expect(m.Unconfirmed()).To(BeEmpty())
		_, _, status := m.Dump()
		g.Expect(status).To(HavePrefix("Not running"))
		g.Expect(m.DebugStatus()).To(ContainSubstring("Not running"))
	}
}

// ledgerOwner is an Owner that provides a ledger.
type ledgerOwner struct {
	owner
	ledger *ledger.Ledger
}

func (l *ledgerOwner) Ledger() *ledger.Ledger { return l.ledger }

func TestNewIPAM(t *testing.T) {
	g := NewWithT(t)
	l, err := ledger.Open(context.Background(), journal.NewMemory(), ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	o := &ledgerOwner{ledger: l}
	m := ipam.NewIPAM("n", node{"1.1.1.0/24", "f00d::/120"}, mode("kubernetes"), o, nil, nil)
	g.Expect(m.Err()).NotTo(HaveOccurred())
	g.Expect(m.AllocateIPString("1.1.1.7", me)).To(Succeed())
	g.Expect(l.Leases()).To(HaveLen(1))
	g.Expect(o.cidrs).To(Equal([][2][]string{{{"1.1.1.0/24"}, {"f00d::/120"}}}))
	m = ipam.NewIPAM("n", node{"1.1.1.0/24", "f00d::/120"}, mode("kubernetes"), nil, nil, nil)
	four, _, err := m.AllocateNextWithExpiration("ipv4", me, time.Minute)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(four.ExpirationUUID).To(MatchRegexp(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`))
}

func TestModes(t *testing.T) {
	g := NewWithT(t)
	for name, want := range map[string]ipam.Mode{
		"kubernetes": ipam.HostScope, "cluster-pool": ipam.HostScope, "cluster-pool-v2beta": ipam.ClusterPool, "vpc-route": ipam.ClusterPool,
		"crd": ipam.Given, "vpc-eni": ipam.Given, "rdma": ipam.Given, "privatecloudbase": ipam.Given, "delegated-plugin": ipam.Delegated,
	} {
		g.Expect(ipam.ParseMode(name)).To(Equal(want), name)
	}
	_, err := ipam.ParseMode("")
	g.Expect(err).To(HaveOccurred())
}

func TestDelegated(t *testing.T) {
	g := NewWithT(t)
	w := &world{g: g, journal: journal.NewMemory(), deps: ipam.Deps{Config: mode("delegated-plugin")}}
	w.start()
	_, _, err := w.AllocateNext("", me)
	g.Expect(err).To(MatchError(ipam.ErrDelegated))
	g.Expect(w.AllocateIPString("1.1.1.1", me)).To(MatchError(ipam.ErrDelegated))
	g.Expect(w.ReleaseIPString(me)).To(MatchError(ipam.ErrDelegated))
	_, err = w.IPv4Allocator.AllocateNext(me)
	g.Expect(err).To(MatchError(ipam.ErrDelegated))
	g.Expect(w.IPv4Allocator.Release(ip("1.1.1.1"))).To(MatchError(ipam.ErrDelegated))
	_, _, status := w.Dump()
	g.Expect(status).To(Equal("IPv4: delegated to plugin, IPv6: delegated to plugin"))
	w.RestoreFinished()
	g.Expect(w.Ready(context.Background())).To(Succeed())
}

func TestAllocatorsOfAFamily(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	for _, c := range []struct {
		a            ipam.Allocator
		own, foreign string
	}{{w.IPv4Allocator, "1.1.1.7", "f00d::7"}, {w.IPv6Allocator, "f00d::7", "1.1.1.7"}} {
		_, err := c.a.Allocate(ip(c.foreign), me)
		g.Expect(err).To(HaveOccurred())
		g.Expect(c.a.Release(ip(c.foreign))).NotTo(Succeed())
		r, err := c.a.AllocateWithoutSyncUpstream(ip(c.own), me)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(text(r)).To(Equal(c.own))
		_, err = c.a.Allocate(ip(c.own), me)
		g.Expect(err).To(MatchError(ledger.ErrTaken))
		next, err := c.a.AllocateNext(me)
		g.Expect(err).NotTo(HaveOccurred())
		quiet, err := c.a.AllocateNextWithoutSyncUpstream(me)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(text(next)).NotTo(Equal(text(quiet)))
		g.Expect(c.a.Release(ip(c.own))).To(Succeed())
	}
}

func TestRebootReleasesTheAddressesOfPods(t *testing.T) {
	g := NewWithT(t)
	w := plain(g)
	w.deps.Pool = ledger.Pool{Name: "ipam", CoolDown: time.Minute, ReserveEdges: true}
	w.start()
	g.Expect(w.AllocateIPString("1.1.1.7", me)).To(Succeed())
	_, _, err := w.AllocateNextWithExpiration("", other, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	w.BlacklistIP(ip("1.1.1.9"), "router")
	w.boot, w.uptime = "another", time.Second
	w.start()
	g.Expect(w.held()).To(Equal(map[string]string{"1.1.1.9": "router (blacklisted)"}))
	g.Expect(w.AllocateIPString("1.1.1.7", me)).To(Succeed(), "a named address is allocated while it cools")
	r, err := w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text(r)).NotTo(Equal("1.1.1.1"), "which is cooling")
	w.consistent()
}
