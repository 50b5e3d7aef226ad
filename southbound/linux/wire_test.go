// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
)

func TestAWireIsMadeAndSeenComplete(t *testing.T) {
	l := newWireLab(t, Options{})
	a, b := l.pod(), l.pod()
	l.create(a)
	l.complete(a)
	l.create(b)
	l.complete(a, b)
	l.create(b) // again
	l.complete(a, b)
	l.delete(a)
	l.complete(b)
	l.create(a) // revived
	l.complete(a, b)
}

// The kernel must not answer for, or forward, what another switch reads at the host end.
func TestBareHostEndsHaveNothingOfTheKernel(t *testing.T) {
	l := newWireLab(t, Options{BareHostEnds: true})
	p := l.pod()
	l.create(p)
	l.complete(p)
	l.must(l.host.Do(func() error {
		link, err := netlink.LinkByName(p.value.Wire.HostIfName)
		l.must(err)
		l.Expect(link.Attrs().HardwareAddr.String()).NotTo(Equal(p.value.Wire.HostMac))
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(link, family)
			l.must(err)
			for _, r := range routes {
				l.Expect(r.Protocol).NotTo(BeEquivalentTo(ownProtocol))
			}
			neighbours, err := netlink.NeighList(link.Attrs().Index, family)
			l.must(err)
			for _, n := range neighbours {
				l.Expect(n.State).NotTo(Equal(netlink.NUD_PERMANENT))
			}
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		l.must(err)
		l.Expect(addresses).To(BeEmpty())
		return nil
	}))
	l.must(p.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		l.must(err)
		neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
		l.must(err)
		l.Expect(neighbours).NotTo(BeEmpty())
		l.Expect(neighbours[0].HardwareAddr.String()).To(Equal(p.value.Wire.HostMac))
		return nil
	}))
	l.delete(p)
	l.complete()
}
