// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// lists makes predefined pools of "base size" texts.
func lists(texts ...string) (all []ipamapi.Predefined) {
	for _, s := range texts {
		var base string
		var size int
		if _, err := fmt.Sscan(s, &base, &size); err != nil {
			panic(err)
		}
		all = append(all, ipamapi.Predefined{Base: pfx(base), Size: size})
	}
	return all
}

func TestErrorsOfTheContract(t *testing.T) {
	g := NewWithT(t)
	for _, x := range []struct {
		err         error
		class, text string
	}{
		{ipamapi.ErrInvalidAddressSpace, "InvalidParameter", "invalid address space"},
		{ipamapi.ErrInvalidPool, "InvalidParameter", "invalid address pool"},
		{ipamapi.ErrInvalidSubPool, "InvalidParameter", "invalid address subpool"},
		{ipamapi.ErrNoAvailableIPs, "Unavailable", "no available addresses on this pool"},
		{ipamapi.ErrNoIPReturned, "Unavailable", "no address returned"},
		{ipamapi.ErrIPAlreadyAllocated, "Forbidden", "Address already in use"},
		{ipamapi.ErrIPOutOfRange, "InvalidParameter", "requested address is out of range"},
		{ipamapi.ErrPoolOverlap, "Forbidden", "Pool overlaps with other one on this address space"},
		{ipamapi.ErrBadPool, "InvalidParameter", "address space does not contain specified address pool"},
		{ipamapi.ErrNoMoreSubnets, "InvalidParameter", "all predefined address pools have been fully subnetted"},
		{ipamapi.ErrPoolNotFound, "NotFound", "cannot find address pool"},
		{ipamapi.ErrInvalidAddress, "InvalidParameter", "invalid address"},
		{ipamapi.ErrNotNow, "Unavailable", "no new addresses are allocated at present"},
	} {
		g.Expect(x.err.Error()).To(Equal(x.text))
		for _, class := range []string{"InvalidParameter", "Forbidden", "Unavailable", "NotFound"} {
			g.Expect(has(class, x.err)).To(Equal(class == x.class), "%s is %s", x.text, class)
		}
	}
	g.Expect(ipamapi.PluginEndpointType + " " + ipamapi.RequestAddressType + " " + ipamapi.Prefix + " " + ipamapi.AllocSerialPrefix).
		To(Equal("IpamDriver RequestAddressType com.docker.network com.docker.network.ipam.serial"))
}

func TestErrorsNameTheCall(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/30", "")
	w.get(id, "", ipamapi.EndpointName, "web")
	w.get(id, "")
	_, err := w.ask(id, "")
	g.Expect(err).To(MatchError(And(HavePrefix(`request an address of pool "LocalDefault/10.1.0.0/30": no available addresses on this pool`), ContainSubstring("of 4 addresses 2 are held"))))
	g.Expect(has("Unavailable", err)).To(BeTrue())
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	_, err = w.ask(id, "10.1.0.1")
	g.Expect(err).To(MatchError(And(HavePrefix(`request address 10.1.0.1 of pool "LocalDefault/10.1.0.0/30": Address already in use`), ContainSubstring("held by LocalDefault/10.1.0.0/30/web"))))
	g.Expect(has("Forbidden", err)).To(BeTrue())
	_, err = w.request("10.0.0.0/8", "")
	g.Expect(err).To(MatchError(ContainSubstring("10.0.0.0/8 overlaps 10.1.0.0/30 of LocalDefault (--ipam-opt cadastre.allow-overlap=true allows it)")))
	g.Expect(w.ReleaseAddress(id, []byte{1, 2})).To(MatchError(ContainSubstring("it has 2 bytes")))
	w.ledger.Suspend("test", "the disk is full")
	g.Expect(w.ReleaseAddress(id, []byte{10, 1, 0, 1})).To(Succeed())
	_, err = w.ask(id, "")
	g.Expect(err).To(And(MatchError(ipamapi.ErrNotNow), MatchError(ContainSubstring("the disk is full"))))
	g.Expect(has("Unavailable", err)).To(BeTrue())
}

// TestChosenPools has the cases of libnetwork's tests of dynamic pools.
func TestChosenPools(t *testing.T) {
	const usual = "192.168.0.0/16 24"
	for _, x := range []struct {
		lists, taken, host, size, want string // want: a prefix, or a part of an error
	}{
		{usual, "", "", "", "192.168.0.0/24"},
		{usual, "192.168.0.0/24", "", "", "192.168.1.0/24"},
		{usual, "192.168.255.0/24", "", "", "192.168.0.0/24"},
		{usual, "192.168.100.0/24 192.168.0.0/24", "", "", "192.168.1.0/24"},
		{usual, "192.168.0.0/24 192.168.1.0/24 192.168.3.0/24", "", "", "192.168.2.0/24"},
		{usual, "", "192.168.0.0/24", "", "192.168.1.0/24"},
		{usual, "192.168.1.0/24", "192.168.0.0/24", "", "192.168.2.0/24"},
		{usual, "192.168.1.0/24", "192.168.0.0/22", "", "192.168.4.0/24"},
		{usual, "192.168.0.0/30", "192.168.0.0/22", "", "192.168.4.0/24"},
		{usual, "192.168.4.0/23", "192.168.0.0/22", "", "192.168.6.0/24"},
		{usual, "", "192.168.0.0/25 192.168.0.128/25 192.168.1.1/32", "", "192.168.2.0/24"},
		{usual, "", "192.168.0.0/17", "", "192.168.128.0/24"},
		{usual, "", "192.168.0.0/16", "", "fully subnetted"},
		{usual, "", "192.0.0.0/8", "", "fully subnetted"},
		{usual, "192.168.0.0/16", "", "", "fully subnetted"},
		{usual, "192.0.0.0/8", "", "", "fully subnetted"},
		{usual, "192.168.0.0/17", "192.168.128.0/17", "", "fully subnetted"},
		{usual, "192.168.0.0/18 192.168.64.0/18 192.168.128.0/18 192.168.192.0/18", "", "", "fully subnetted"},
		{usual, "192.168.0.0/24 192.168.1.0/24 192.168.2.0/23 192.168.4.3/30", "", "", "192.168.5.0/24"},
		{usual, "", "192.168.0.0/24 192.168.0.0/24 0.0.0.0/0", "", "192.168.1.0/24"},
		{usual, "192.168.0.0/24", "192.168.0.0/24", "", "192.168.1.0/24"},
		{"10.0.0.0/24 24 10.1.0.0/16 24", "10.0.0.0/24", "", "", "10.1.0.0/24"},
		{"10.1.0.0/16 24 10.0.0.0/24 24", "10.0.0.0/25", "", "", "10.1.0.0/24"},
		{"10.0.0.0/24 24 10.1.0.0/16 24", "10.0.0.0/24 10.1.0.0/16", "", "", "fully subnetted"},
		{"10.0.0.0/16 24 10.1.0.0/16 16", "10.0.0.0/16", "", "", "10.1.0.0/16"},
		{usual, "", "", "25", "192.168.0.0/25"},
		{usual, "192.168.0.0/25", "", "25", "192.168.0.128/25"},
		{usual, "192.168.0.0/25", "", "20", "192.168.16.0/20"},
		{usual, "", "", "16", "192.168.0.0/16"},
		{usual, "192.168.77.0/24", "", "16", "fully subnetted"},
		{"10.0.0.0/24 24 10.1.0.0/16 24", "", "", "20", "10.1.0.0/20"},
		{usual, "", "", "15", "invalid address pool"},
		{usual, "", "", "33", "invalid address pool"},
		{usual, "", "", "150", "invalid address pool"},
		{"fd00::/48 64", "", "", "24", "invalid address pool"},
		{"255.255.255.0/24 26", "255.255.255.0/25 255.255.255.128/26", "", "", "255.255.255.192/26"},
		{"255.255.255.0/24 26", "255.255.255.0/25 255.255.255.128/26", "255.255.255.255/32", "", "fully subnetted"},
	} {
		t.Run(strings.Join([]string{x.lists, x.taken, x.host, x.size}, ","), func(t *testing.T) {
			g := NewWithT(t)
			fields := strings.Fields(x.lists)
			var list []string
			for i := 0; i < len(fields); i += 2 {
				list = append(list, fields[i]+" "+fields[i+1])
			}
			w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{Local: ipamapi.Space{Pools: lists(list...)}})
			for _, p := range strings.Fields(x.taken) {
				w.pool(p, "")
			}
			for _, p := range strings.Fields(x.host) {
				*w.host = append(*w.host, pfx(p))
			}
			size := ""
			if x.size != "" {
				size = "0.0.0.0/" + x.size
			}
			id, err := w.request(size, "")
			if strings.Contains(x.want, "/") {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(id).To(Equal("LocalDefault/" + x.want))
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(x.want)))
			}
		})
	}
}

// What was released between what the host has is chosen again, once.
func TestChosenPoolsAvoidTheHostsNetworks(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{Local: ipamapi.Space{Pools: lists("10.0.0.0/16 24")}})
	*w.host = host{pfx("10.0.0.0/24")}
	a, b, c := w.pool("", ""), w.pool("", ""), w.pool("", "")
	g.Expect([]string{a, b, c}).To(Equal([]string{"LocalDefault/10.0.1.0/24", "LocalDefault/10.0.2.0/24", "LocalDefault/10.0.3.0/24"}))
	g.Expect(w.ReleasePool(b)).To(Succeed())
	g.Expect(w.ReleasePool(c)).To(Succeed())
	*w.host = host{pfx("10.0.0.0/24"), pfx("10.0.2.0/24")}
	g.Expect(w.pool("", "")).To(Equal(c))
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.0.4.0/24"))
}

func TestOverlapWithTheHost(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	*w.host = host{pfx("192.168.1.0/24"), pfx("0.0.0.0/0"), pfx("::/0"), pfx("fd00::/64")}
	for _, p := range []string{"192.168.1.0/24", "192.168.0.0/16", "192.168.1.128/25", "fd00::/48"} {
		_, err := w.request(p, "")
		g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), p)
		_, err = w.request(p, "", ipamapi.OverlapOption, "false")
		g.Expect(err).To(MatchError(ContainSubstring("of the host")), p)
		_, err = w.request(p, "", ipamapi.OverlapOption, "yes")
		g.Expect(err).To(MatchError(ContainSubstring(`option cadastre.allow-overlap is "yes", want true or false`)))
	}
	_, err := w.request("192.168.1.0/24", "192.168.1.8/29")
	g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), "with a sub-pool, too")
	g.Expect(w.leases() + w.pools()).To(BeEmpty())
	id := w.pool("192.168.1.0/24", "192.168.1.8/29", ipamapi.OverlapOption, "true")
	g.Expect(w.get(id, "")).To(Equal("192.168.1.8/24"))
	g.Expect(w.pool("192.168.1.0/24", "192.168.1.8/29")).To(Equal(id), "it is there already")
	w.pool("192.168.1.0/24", "192.168.1.16/29")
	w.restart()
	g.Expect(w.pools()).To(Equal("LocalDefault/192.168.1.0/24/192.168.1.16/29*1 LocalDefault/192.168.1.0/24/192.168.1.8/29*2"))
}

func TestOverlapOnPurpose(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{Local: ipamapi.Space{Pools: lists("10.1.0.0/16 24")}})
	a := w.pool("10.1.2.0/24", "")
	b := w.pool("10.1.0.0/17", "", ipamapi.OverlapOption, "true")
	for range 2 {
		_, err := w.request("10.1.77.0/24", "")
		g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), "the larger one counts")
		_, err = w.request("10.1.2.0/25", "")
		g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), "and so does the other one")
		g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.1.128.0/24"))
		g.Expect(w.ReleasePool("LocalDefault/10.1.128.0/24")).To(Succeed())
		w.restart()
	}
	g.Expect(w.ReleasePool(a)).To(Succeed())
	_, err := w.request("10.1.2.0/24", "")
	g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap))
	g.Expect(w.ReleasePool(b)).To(Succeed())
	w.pool("10.1.0.0/16", "")
}

func TestConcurrentRequestsForAllPools(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{Local: ipamapi.Space{Pools: lists("10.0.0.0/10 24")}})
	const n = 16384
	ids := make([]string, n)
	var wait sync.WaitGroup
	for worker := range 16 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := worker; i < n; i += 16 {
				ids[i], _ = w.request("", "")
			}
		}()
	}
	wait.Wait()
	seen := map[string]bool{}
	for _, id := range ids {
		seen[id] = true
	}
	g.Expect(seen).To(And(HaveLen(n), Not(HaveKey(""))))
	_, err := w.request("", "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoMoreSubnets))
	g.Expect(w.ReleasePool("LocalDefault/10.33.7.0/24")).To(Succeed())
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.33.7.0/24"))
}

func TestEveryAddressOfALargePool(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{})
	for bits := 16; bits <= 20; bits++ {
		id := w.pool(netip.PrefixFrom(ip(fmt.Sprintf("10.%d.0.0", bits)), bits).String(), "")
		n := 1<<(32-bits) - 2
		for range n {
			if _, err := w.ask(id, ""); err != nil {
				t.Fatal(err)
			}
		}
		_, err := w.ask(id, "")
		g.Expect(err).To(MatchError(ipamapi.ErrNoAvailableIPs))
	}
}

func TestLeasesInTheLedger(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/24", "")
	w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(id, "", ipamapi.EndpointName, "web", ipamapi.EndpointMAC, "02:42:0A:01:00:02")
	w.get(id, "10.1.0.9", ipamapi.EndpointMAC, "02:42:0a:01:00:03")
	w.get(id, "10.1.0.10")
	g.Expect(strings.ReplaceAll(w.leases(), "LocalDefault/10.1.0.0/24", "POOL")).To(Equal(
		"10.1.0.1:docker/POOL:held:infra:POOL/gateway/gateway#1 " +
			"10.1.0.2:docker/POOL:held:docker:POOL/web/02:42:0a:01:00:02#any " +
			"10.1.0.9:docker/POOL:held:docker:POOL/02:42:0a:01:00:03/02:42:0a:01:00:03#10.1.0.9 " +
			"10.1.0.10:docker/POOL:held:docker:POOL//#10.1.0.10"))
	g.Expect(w.Pools()).To(Equal([]ipamapi.Pool{{
		ID: id, Space: "LocalDefault", Prefix: pfx("10.1.0.0/24"), LedgerPool: "docker/LocalDefault/10.1.0.0/24", Requests: 1, Leases: 4,
	}}))
	g.Expect(w.Capability()).To(Equal(ipamapi.Capability{RequiresMACAddress: true}))
	g.Expect(w.IsBuiltIn()).To(BeFalse())
	g.Expect(w.ReleasePool(id)).To(Succeed())
	g.Expect(w.leases()).To(BeEmpty())
	g.Expect(w.ledger.Stats()).To(BeEmpty())
	g.Expect(w.check()).To(Succeed())
}

func TestInvalidConfiguration(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{})
	for _, c := range []ipamapi.Config{
		{Local: ipamapi.Space{Name: "a/b"}}, {Local: ipamapi.Space{Pools: lists("10.0.0.0/8 4")}}, {Global: ipamapi.Space{Pools: lists("10.0.0.0/8 40")}},
	} {
		_, err := ipamapi.New(context.Background(), ipamapi.Deps{Ledger: w.ledger, Config: c})
		g.Expect(err).To(MatchError(HavePrefix("configuration of the Docker driver: ")))
	}
}
