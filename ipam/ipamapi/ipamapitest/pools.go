// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapitest

import (
	"fmt"
	"net/netip"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

func spaces(e *suite) {
	e.Expect(e.local).NotTo(BeEmpty())
	e.Expect(e.global).NotTo(Or(BeEmpty(), Equal(e.local)))
	for _, space := range []string{"", "elsewhere"} {
		_, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: space, Pool: "10.1.0.0/16"})
		e.Expect(err).To(failWith(ipamapi.ErrInvalidAddressSpace), space)
	}
}

func namedPools(e *suite) {
	local := e.pool("10.0.0.0/8", "")
	global, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.global, Pool: "10.0.0.0/8"})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(global.PoolID).NotTo(Equal(local), "each space has its own")
	again, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.global, Pool: "10.0.0.0/8"})
	e.Expect(err).NotTo(HaveOccurred(), "a request can be repeated")
	e.Expect(again.PoolID).To(Equal(global.PoolID))
	e.refused("10.128.0.0/9", "", ipamapi.ErrPoolOverlap)
	part := e.pool("10.0.0.0/8", "10.128.0.0/9")
	e.Expect(part).NotTo(Equal(local))
	e.Expect(e.pool("10.0.0.0/8", "10.128.0.0/9")).To(Equal(part), "a request can be repeated")
	e.refused("10.20.2.0/24", "", ipamapi.ErrPoolOverlap)
	e.refused("10.128.0.0/9", "", ipamapi.ErrPoolOverlap)
	e.pool("1003:1:2:3:4:5:6::/112", "")
	e.refused("1003:1:2:3::/64", "", ipamapi.ErrPoolOverlap)
}

func countedPools(e *suite) {
	id := e.pool("10.7.0.0/16", "")
	e.Expect(e.pool("10.7.0.0/16", "")).To(Equal(id))
	e.Expect(e.ReleasePool(id)).To(Succeed())
	e.Expect(e.get(id, "", nil)).To(Equal("10.7.0.1/16"), "it was requested twice")
	e.refused("10.7.1.0/24", "", ipamapi.ErrPoolOverlap)
	e.Expect(e.ReleasePool(id)).To(Succeed())
	e.Expect(e.ReleasePool(id)).To(gone())
	_, err := e.ask(id, "", nil)
	e.Expect(err).To(failWith(ipamapi.ErrPoolNotFound))
	e.pool("10.7.1.0/24", "")
}

func parents(e *suite) {
	parent, child := e.pool("172.28.0.0/16", ""), e.pool("172.28.0.0/16", "172.28.30.0/24")
	e.Expect(e.ReleasePool(child)).To(Succeed())
	e.refused("172.28.30.0/24", "", ipamapi.ErrPoolOverlap)
	e.Expect(e.pool("172.28.0.0/16", "172.28.30.0/24")).To(Equal(child))
	e.Expect(e.ReleasePool(parent)).To(Succeed())
	e.refused("172.28.0.0/17", "", ipamapi.ErrPoolOverlap)
	e.Expect(e.ReleasePool(child)).To(Succeed())
	e.Expect(e.ReleasePool(child)).To(gone())
	other := e.pool("172.28.0.0/17", "")
	e.Expect(e.ReleasePool(other)).To(Succeed())
	e.Expect(e.pool("172.28.0.0/16", "")).To(Equal(parent), "the same pool has the same ID")
}

// chosen requests a pool without a prefix.
func (e *suite) chosen(pool string, v6 bool) ipamapi.AllocatedPool {
	p, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.local, Pool: pool, V6: v6})
	e.Expect(err).NotTo(HaveOccurred(), "pool %q", pool)
	return p
}

func chosenPools(e *suite) {
	e.Expect(e.chosen("", false).Pool.String()).To(Equal("172.17.0.0/16"))
	e.Expect(e.chosen("0.0.0.0/24", false).Pool.String()).To(Equal("172.18.0.0/24"))
	e.Expect(e.chosen("", false).Pool.String()).To(Equal("172.19.0.0/16"), "the usual size is as it was")
	e.Expect(e.chosen("0.0.0.0/25", false).Pool.String()).To(Equal("172.18.1.0/25"))
	e.Expect(e.chosen("0.0.0.0/0", false).Pool.String()).To(Equal("172.20.0.0/16"))
	e.Expect(e.chosen("0.0.0.0/15", false).Pool.String()).To(Equal("172.22.0.0/15"))
	a, b := e.chosen("", true).Pool, e.chosen("::/0", true).Pool
	e.Expect(a.Bits()).To(Equal(64))
	e.Expect(b.Bits()).To(Equal(64))
	e.Expect(netip.MustParsePrefix("fd00::/8").Contains(a.Addr())).To(BeTrue(), a.String())
	e.Expect(a).NotTo(Equal(b))
	e.Expect(e.chosen("::/80", false).Pool.Bits()).To(Equal(80), "the prefix says the family")
	for _, size := range []string{"0.0.0.0/8", "0.0.0.0/33", "0.0.0.0/150", "::/129", "::/40", "/24", "0.0.0.0/AB"} {
		e.refused(size, "", ipamapi.ErrInvalidPool)
	}
	p, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.global})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(p.Pool.String()).To(Equal("10.0.0.0/24"))
}

func neverRepeated(e *suite) {
	var all []ipamapi.AllocatedPool
	for n := range 31 {
		p := e.chosen("", false)
		for _, q := range all {
			e.Expect(p.Pool.Overlaps(q.Pool)).To(BeFalse(), "number %d: %s and %s", n, p.Pool, q.Pool)
			e.Expect(p.PoolID).NotTo(Equal(q.PoolID))
		}
		all = append(all, p)
	}
	e.Expect(all[30].Pool.String()).To(Equal("192.168.240.0/20"))
	_, err := e.request("", "")
	e.Expect(err).To(failWith(ipamapi.ErrNoMoreSubnets))
	e.Expect(e.ReleasePool(all[5].PoolID)).To(Succeed())
	e.Expect(e.ReleasePool(all[20].PoolID)).To(Succeed())
	e.Expect(e.chosen("", false).Pool).To(Equal(all[5].Pool), "the lowest one")
	e.Expect(e.pool(all[7].Pool.String(), "")).To(Equal(all[7].PoolID), "by its name it is the same")
}

func readPools(e *suite) {
	for _, bad := range []string{"10.0.0.0", "10.0.0.0/", "10.0.0/8", "10.0.0.0/33", "-", "fd00::/129", "300.1.1.0/24", "10.1.2.3/0", "::ffff:10.0.0.0/95"} {
		e.refused(bad, "", ipamapi.ErrInvalidPool)
	}
	e.refused("", "10.1.0.0/16", ipamapi.ErrInvalidSubPool)
	e.refused("0.0.0.0/16", "10.1.0.0/24", ipamapi.ErrInvalidSubPool)
	e.refused("10.1.0.0/16", "fd00::/64", ipamapi.ErrInvalidSubPool)
	e.refused("10.1.0.0/16", "10.2.0.0/24", ipamapi.ErrInvalidSubPool)
	e.refused("10.1.0.0/16", "10.1.0.0/2x", ipamapi.ErrInvalidSubPool)
	id := e.pool("10.1.77.5/16", "")
	e.Expect(e.pool("10.1.0.0/16", "")).To(Equal(id), "host bits do not count")
	six, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.local, Pool: "fd01::/64"})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(e.get(six.PoolID, "", nil)).To(Equal("fd01::1/64"), "the prefix says the family, not the flag")
	four, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.local, Pool: "10.9.0.0/16", V6: true})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(e.get(four.PoolID, "", nil)).To(Equal("10.9.0.1/16"))
	for _, bad := range []string{"", "x", e.local, e.local + "/10.1.0.0", e.local + "/10.1.0.0/16/10.1.2.0", id + "/"} {
		_, err := e.ask(bad, "", nil)
		e.Expect(err).To(failWith(ipamapi.ErrBadPool), "pool ID %q", bad)
		e.Expect(e.ReleasePool(bad)).To(gone(), "pool ID %q", bad)
	}
}

func parts(e *suite) {
	whole := e.pool("10.10.0.0/15", "10.10.0.0/16")
	e.Expect(e.pool("10.10.0.0/15", "10.10.0.0/16")).To(Equal(whole), "a request can be repeated")
	half, other := e.pool("10.10.0.0/15", "10.10.0.0/17"), e.pool("10.10.0.0/15", "10.11.0.0/16")
	e.Expect(e.get(whole, "", nil)).To(Equal("10.10.0.1/15"))
	e.Expect(e.get(half, "", nil)).To(Equal("10.10.0.2/15"), "parts share the addresses")
	e.Expect(e.get(other, "", nil)).To(Equal("10.11.0.0/15"))
	e.Expect(e.get(other, "10.10.0.9", nil)).To(Equal("10.10.0.9/15"), "a named address may be outside of the part")
	same := e.pool("10.20.0.0/16", "10.20.0.0/16")
	e.Expect(e.get(same, "", nil)).To(Equal("10.20.0.1/16"))
	larger := e.pool("10.30.0.0/16", "10.0.0.0/8")
	e.Expect(e.get(larger, "", nil)).To(Equal("10.30.0.1/16"), "no part is larger than the pool")
	e.refused("10.10.1.0/24", "10.10.1.0/25", ipamapi.ErrPoolOverlap)
	e.refused("10.0.0.0/8", "10.200.0.0/16", ipamapi.ErrPoolOverlap)
}

func overlaps(e *suite) {
	e.pool("10.2.0.0/16", "")
	e.pool("10.4.4.0/22", "")
	e.pool("fd00:2::/32", "")
	e.pool("fd00:4:4:4::/64", "")
	for _, p := range []string{
		"10.2.0.0/16", "10.2.0.0/17", "10.2.128.0/17", "10.2.77.0/24", "10.2.255.255/32", "10.2.0.0/32", "10.2.0.0/15", "10.0.0.0/8",
		"10.4.4.0/23", "10.4.6.0/23", "10.4.0.0/16", "10.4.4.0/24", "10.4.7.128/25", "8.0.0.0/5", "10.4.0.0/21",
		"fd00:2::/32", "fd00:2::/33", "fd00:2:8000::/33", "fd00:2:7:7::/64", "fd00:2::1/128", "fd00::/16", "fd00:4:4:4::/65",
		"fd00:4:4:4:ffff:ffff:ffff:ffff/128", "fd00:4::/32", "fc00::/7",
	} {
		if p == "10.2.0.0/16" || p == "fd00:2::/32" {
			e.pool(p, "") // the same pool
			continue
		}
		e.refused(p, "", ipamapi.ErrPoolOverlap)
	}
	for i, p := range []string{
		"10.1.0.0/16", "10.3.0.0/16", "10.4.0.0/22", "10.4.8.0/22", "11.0.0.0/8", "10.4.3.255/32", "fd00:1::/32", "fd00:3::/32", "fd00:4:4:3::/64", "fd00:4:4:5::/64",
		"0.0.0.0/16", "0.0.0.0/16", "::/0", "::/0",
	} {
		if p == "10.4.3.255/32" {
			e.refused(p, "", ipamapi.ErrPoolOverlap) // of the one that was just given
			continue
		}
		_, err := e.request(p, "")
		e.Expect(err).NotTo(HaveOccurred(), fmt.Sprintf("row %d: %s", i, p))
	}
}
