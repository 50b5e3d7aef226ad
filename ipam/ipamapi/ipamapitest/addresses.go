// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapitest

import (
	"fmt"
	"net"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

func filledPart(e *suite) {
	for _, how := range []map[string]string{nil, serial()} {
		id := e.pool("172.28.0.0/16", "172.28.30.0/24")
		e.Expect(e.fill(id, 256, how)).To(Equal("172.28.30.255/16"))
		_, err := e.ask(id, "", how)
		e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs))
		e.free(id, "172.28.30.97")
		e.Expect(e.get(id, "", how)).To(Equal("172.28.30.97/16"))
		_, err = e.ask(id, "", how)
		e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs))
		e.get(id, "172.28.40.1", nil)
		e.Expect(e.ReleasePool(id)).To(Succeed())
	}
}

func order(e *suite) {
	for _, x := range []struct {
		how              map[string]string
		afterOne, afterB string
	}{{nil, "10.2.2.0/16", "10.2.2.1/16"}, {serial(), "10.2.2.3/16", "10.2.2.4/16"}} {
		id := e.pool("10.2.0.0/16", "10.2.2.0/24")
		e.get(id, "10.2.2.1", nil)
		e.Expect(e.get(id, "", x.how)).To(Equal("10.2.2.0/16"))
		e.Expect(e.get(id, "", x.how)).To(Equal("10.2.2.2/16"))
		e.free(id, "10.2.2.0")
		e.Expect(e.get(id, "", x.how)).To(Equal(x.afterOne))
		e.free(id, "10.2.2.1")
		e.Expect(e.get(id, "", x.how)).To(Equal(x.afterB))
		e.Expect(e.ReleasePool(id)).To(Succeed())
	}
	id := e.pool("10.3.0.0/24", "")
	e.Expect(e.fill(id, 254, serial())).To(Equal("10.3.0.254/24"))
	e.free(id, "10.3.0.200", "10.3.0.100")
	e.Expect(e.get(id, "", serial())).To(Equal("10.3.0.100/24"), "around the end")
	e.free(id, "10.3.0.7")
	e.Expect(e.get(id, "", serial())).To(Equal("10.3.0.200/24"))
	e.Expect(e.get(id, "", options(ipamapi.AllocSerialPrefix, "yes"))).To(Equal("10.3.0.7/24"), "only true is serial")
}

func manyAddresses(e *suite) {
	for _, x := range []struct {
		prefix, last string
		n            int
	}{
		{"192.168.59.0/24", "192.168.59.254/24", 254},
		{"192.169.0.0/16", "192.169.1.0/16", 256},
		{"10.0.0.0/8", "10.0.1.0/8", 256},
		{"192.168.128.0/18", "192.168.131.255/18", 1023},
		{"fd00:59::/120", "fd00:59::ff/120", 255}, // the last one is usable
	} {
		e.Expect(e.fill(e.pool(x.prefix, ""), x.n, nil)).To(Equal(x.last))
	}
	for bits := 24; bits <= 30; bits++ {
		id := e.pool(fmt.Sprintf("172.%d.0.0/%d", bits, bits), "")
		e.fill(id, 1<<(32-bits)-2, nil)
		_, err := e.ask(id, "", nil)
		e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs), "/%d", bits)
	}
}

func smallPools(e *suite) {
	two := e.pool("192.168.0.2/31", "")
	for _, a := range []string{"192.168.0.1", "192.168.0.4", "192.168.0.100"} {
		_, err := e.ask(two, a, nil)
		e.Expect(err).To(failWith(ipamapi.ErrIPOutOfRange), a)
	}
	for _, x := range []struct {
		prefix string
		addrs  []string
	}{
		{"192.168.0.2/31", []string{"192.168.0.2/31", "192.168.0.3/31"}},
		{"192.168.0.9/32", []string{"192.168.0.9/32"}},
		{"192.168.0.16/30", []string{"192.168.0.17/30", "192.168.0.18/30"}},
		{"fd00::8/126", []string{"fd00::9/126", "fd00::a/126", "fd00::b/126"}},
		{"fd00::4/127", []string{"fd00::4/127", "fd00::5/127"}},
		{"fd00::7/128", []string{"fd00::7/128"}},
	} {
		id := e.pool(x.prefix, "")
		for _, a := range x.addrs {
			e.Expect(e.get(id, "", nil)).To(Equal(a))
		}
		_, err := e.ask(id, "", nil)
		e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs), x.prefix)
	}
}

func hugePools(e *suite) {
	for subnet, bits := range map[string]string{"fd00:1::": "/32", "fd00:2::": "/48", "fd00:3::": "/64", "fd00:4::": "/80"} {
		id := e.pool(subnet+bits, "")
		e.Expect(e.get(id, "", nil)).To(Equal(subnet + "1" + bits))
		far := subnet + "ff00:1:2"
		e.get(id, far, nil)
		_, err := e.ask(id, far, nil)
		e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated))
		e.Expect(e.get(id, "", serial())).To(Equal(subnet + "2" + bits))
		_, err = e.ask(id, subnet, nil)
		e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated), "subnet-router anycast")
	}
	part := e.pool("fd01::/32", "fd01:0:0:7::/64")
	e.Expect(e.get(part, "", nil)).To(Equal("fd01:0:0:7::/32"))
	e.Expect(e.get(part, "", nil)).To(Equal("fd01:0:0:7::1/32"))
}

func reused(e *suite) {
	id := e.pool("10.5.0.0/23", "")
	e.fill(id, 510, nil)
	for _, a := range []string{"10.5.0.1", "10.5.1.254", "10.5.0.255", "10.5.1.0", "10.5.0.64", "10.5.0.128", "10.5.1.127", "10.5.0.17", "10.5.1.200"} {
		e.free(id, a)
		e.Expect(e.get(id, "", nil)).To(Equal(a + "/23"))
		_, err := e.ask(id, "", nil)
		e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs))
	}
}

func heldByOne(e *suite) {
	const a = "192.168.100.250"
	id := e.pool("192.168.0.0/16", "")
	e.get(id, a, nil)
	taken := func(options map[string]string) {
		_, err := e.ask(id, a, options)
		e.ExpectWithOffset(1, err).To(failWith(ipamapi.ErrIPAlreadyAllocated))
	}
	taken(nil)
	taken(endpoint("web", "02:42:00:00:00:01"))
	taken(gateway())
	e.free(id, a)

	e.get(id, a, endpoint("web", "02:42:00:00:00:01"))
	e.get(id, a, endpoint("web", "02:42:00:00:00:01"))
	e.get(id, a, endpoint("web", ""))
	e.get(id, a, endpoint("", "02:42:00:00:00:01"))
	e.get(id, a, endpoint("web", "02:42:00:00:00:02")) // the engine has made up another MAC
	taken(nil)
	taken(endpoint("db", "02:42:00:00:00:02"))
	e.free(id, a)

	e.get(id, a, endpoint("", "02:42:00:00:00:AA"))
	e.get(id, a, endpoint("", "02:42:00:00:00:aa"))
	taken(endpoint("", "02:42:00:00:00:01"))
	e.free(id, a)

	allocated := e.get(id, "", endpoint("db", "02:42:00:00:00:03"))
	e.Expect(allocated).To(Equal("192.168.0.1/16"))
	e.get(id, "192.168.0.1", endpoint("db", "02:42:00:00:00:03"))
	_, err := e.ask(id, "192.168.0.1", endpoint("web", ""))
	e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated))
	for _, edge := range []string{"192.168.0.0", "192.168.255.255"} {
		_, err := e.ask(id, edge, nil)
		e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated), edge)
	}
}

func anyIsAnother(e *suite) {
	id := e.pool("10.6.0.0/24", "")
	web := endpoint("web", "02:42:00:00:00:01")
	for range 2 {
		e.Expect(e.get(id, "", web)).To(Equal("10.6.0.1/24"))
	}
	unnamed := endpoint("", "02:42:00:00:00:01")
	e.Expect(e.get(id, "", unnamed)).To(Equal("10.6.0.2/24"), "two containers may have one MAC")
	e.get(id, "10.6.0.3", web)
	e.Expect(e.get(id, "", endpoint("web", ""))).To(Equal("10.6.0.4/24"), "two containers may have one name")
	e.Expect(e.get(id, "", endpoint("web", "02:42:00:00:00:02"))).To(Equal("10.6.0.5/24"))
	e.Expect(e.get(id, "", gateway())).To(Equal("10.6.0.6/24"))
	e.Expect(e.get(id, "", gateway())).To(Equal("10.6.0.7/24"))
	e.free(id, "10.6.0.4", "10.6.0.6")
	e.Expect(e.get(id, "", web)).To(Equal("10.6.0.1/24"))
	e.free(id, "10.6.0.1")
	e.Expect(e.get(id, "10.6.0.2", unnamed)).To(Equal("10.6.0.2/24"), "the others are as they were")
}

func readAddresses(e *suite) {
	id, six := e.pool("192.168.0.0/24", ""), e.pool("fd00::/64", "")
	for _, a := range []string{"192.168.1.1", "10.0.0.1", "fd00::1", "0.0.0.0"} {
		_, err := e.ask(id, a, nil)
		e.Expect(err).To(failWith(ipamapi.ErrIPOutOfRange), a)
		e.Expect(e.ReleaseAddress(id, net.ParseIP(a))).To(failWith(ipamapi.ErrIPOutOfRange), a)
	}
	_, err := e.ask(six, "192.168.0.1", nil)
	e.Expect(err).To(failWith(ipamapi.ErrIPOutOfRange))
	e.Expect(e.ReleaseAddress(id, nil)).To(failWith(ipamapi.ErrInvalidAddress))
	n, _, err := e.RequestAddress(id, net.IPv4(192, 168, 0, 9), nil) // in sixteen bytes
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(n.String()).To(Equal("192.168.0.9/24"))
	e.Expect(e.ReleaseAddress(id, net.IPv4(192, 168, 0, 9).To4())).To(Succeed())
	e.get(id, "192.168.0.9", nil)
}

func repeatedRelease(e *suite) {
	id := e.pool("10.8.0.0/24", "")
	e.fill(id, 3, nil)
	e.free(id, "10.8.0.2", "10.8.0.2", "10.8.0.77")
	e.Expect(e.get(id, "", nil)).To(Equal("10.8.0.2/24"))
	e.Expect(e.get(id, "", nil)).To(Equal("10.8.0.4/24"))
	e.Expect(e.ReleaseAddress(e.local+"/10.99.0.0/16", net.IPv4(10, 99, 0, 1))).To(gone())
	e.free(id, "10.8.0.0", "10.8.0.255")
	e.fill(id, 250, nil)
	_, err := e.ask(id, "", nil)
	e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs), "edges are not allocated, even if a caller has released them")
}

func ownRelease(e *suite) {
	whole, part := e.pool("10.8.0.0/16", ""), e.pool("10.8.0.0/16", "10.8.3.0/24")
	e.get(whole, "10.8.3.7", nil)
	e.free(part, "10.8.3.7") // not an error, since it may be late
	_, err := e.ask(part, "10.8.3.7", nil)
	e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated), "it was taken through another pool")
	e.free(whole, "10.8.3.7")
	e.get(part, "10.8.3.7", nil)
}

func gateways(e *suite) {
	id := e.pool("10.9.0.0/24", "")
	e.Expect(e.get(id, "", gateway())).To(Equal("10.9.0.1/24"))
	e.get(id, "10.9.0.2", nil) // an auxiliary address
	e.Expect(e.get(id, "", endpoint("web", ""))).To(Equal("10.9.0.3/24"))
	_, err := e.ask(id, "10.9.0.1", endpoint("web", ""))
	e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated))
	e.free(id, "10.9.0.1")
	e.Expect(e.get(id, "", nil)).To(Equal("10.9.0.1/24"))

	shared := e.pool("10.10.0.0/24", "")
	e.get(shared, "10.10.0.9", gateway())
	e.pool("10.10.0.0/24", "") // of a second network, with the same gateway
	e.get(shared, "10.10.0.9", gateway())
	e.free(shared, "10.10.0.9")
	_, err = e.ask(shared, "10.10.0.9", nil)
	e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated), "one network still has it")
	e.free(shared, "10.10.0.9")
	e.get(shared, "10.10.0.9", nil)
}

func poolsTakeAlong(e *suite) {
	id := e.pool("10.11.0.0/24", "")
	e.get(id, "", gateway())
	e.fill(id, 20, nil)
	e.Expect(e.ReleasePool(id)).To(Succeed())
	e.Expect(e.pool("10.11.0.0/24", "")).To(Equal(id))
	e.Expect(e.get(id, "", nil)).To(Equal("10.11.0.1/24"))
	part := e.pool("10.11.0.0/24", "10.11.0.128/25")
	e.get(part, "", nil)
	e.Expect(e.ReleasePool(part)).To(Succeed())
	e.get(id, "10.11.0.128", nil)
	_, err := e.ask(id, "10.11.0.1", nil)
	e.Expect(err).To(failWith(ipamapi.ErrIPAlreadyAllocated), "what is of the other pool stays")
}

func standIn(e *suite) {
	grouped := func(prefix, name string) string {
		p, err := e.RequestPool(
			ipamapi.PoolRequest{AddressSpace: e.local, Pool: prefix, Options: options(ipamapi.GroupOption, name)},
		)
		e.Expect(err).NotTo(HaveOccurred())
		return p.PoolID
	}
	a, b := grouped("10.12.0.0/30", "blue"), grouped("10.13.0.0/29", "blue")
	grouped("10.14.0.0/24", "red")
	e.pool("10.15.0.0/24", "")
	e.Expect(grouped("10.12.0.0/30", "blue")).To(Equal(a))
	e.Expect(e.fill(a, 2, nil)).To(Equal("10.12.0.2/30"))
	e.Expect(e.get(a, "", endpoint("web", ""))).To(Equal("10.13.0.1/29"), "the next pool, and its length")
	e.get(a, "10.13.0.1", endpoint("web", ""))
	e.get(b, "10.13.0.1", endpoint("web", "")) // where the engine would ask for it
	e.Expect(e.fill(b, 5, nil)).To(Equal("10.13.0.6/29"))
	_, err := e.ask(a, "", nil)
	e.Expect(err).To(failWith(ipamapi.ErrNoAvailableIPs))
	e.free(b, "10.13.0.1")
	e.Expect(e.get(a, "", nil)).To(Equal("10.13.0.1/29"))
	e.free(a, "10.13.0.1")
	e.Expect(e.get(a, "", nil)).To(Equal("10.13.0.1/29"))
	e.free(a, "10.12.0.1")
	e.Expect(e.get(b, "", nil)).To(Equal("10.12.0.1/30"), "in both directions")
	e.Expect(e.ReleasePool(b)).To(Succeed())
	_, err = e.ask(a, "", nil)
	e.Expect(err).NotTo(HaveOccurred(), "with the pool what was taken through it is free")
	_, err = e.ask(a, "10.13.0.2", nil)
	e.Expect(err).To(failWith(ipamapi.ErrIPOutOfRange), "it is gone")
}
