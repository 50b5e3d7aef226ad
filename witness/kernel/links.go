// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness"
)

// skipStatistics (RTEXT_FILTER_SKIP_STATS) leaves the counters out of links: they are
// two thirds of the message. For each request with it the kernel computes the size of all
// links of the socket's namespace, 250 times 250 on a full node: it is for the host only.
const skipStatistics = 1 << 3

// conn is a routing socket, with which one goroutine reads.
type conn struct{ *rtnl.Socket }

// dial opens a socket in the network namespace of the calling thread.
func dial() (*conn, error) {
	s, err := rtnl.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &conn{s}, nil
}

// list lists all objects of a kind. Its error is also the first one of each.
func (c *conn) list(what string, kind uint16, body []byte, reset func(), each func(body []byte) error) error {
	var failed error
	again := func() { reset(); failed = nil }
	err := c.Dump(what, kind, body, again, func(b []byte) {
		if err := each(b); err != nil && failed == nil {
			failed = fmt.Errorf("list %s: %w", what, err)
		}
	})
	return cmp.Or(err, failed)
}

// links returns the links of the namespace that has an ID, with their addresses.
func (c *conn) links(nsid int32) ([]witness.Link, error) {
	var links []witness.Link
	body := make([]byte, unix.SizeofIfInfomsg)
	if nsid == rtnl.Here {
		body = rtnl.Message(body).U32(unix.IFLA_EXT_MASK, skipStatistics)
	}
	body = target(body, unix.IFLA_TARGET_NETNSID, nsid)
	err := c.list("the links", unix.RTM_GETLINK, body, func() { links = links[:0] }, func(b []byte) error {
		l, err := rtnl.DecodeLink(b)
		if err == nil {
			err = confirm(nsid, l.Target)
		}
		links = append(links, shown(l))
		return err
	})
	if err != nil {
		return nil, err
	}
	body = target(make([]byte, unix.SizeofIfAddrmsg), unix.IFA_TARGET_NETNSID, nsid)
	err = c.list("the addresses", unix.RTM_GETADDR, body, func() { clearAddrs(links) }, func(b []byte) error {
		a, err := rtnl.DecodeAddress(b)
		if err == nil {
			err = confirm(nsid, a.Target)
		}
		if err == nil {
			links = addAddr(links, int(int32(a.Link)), a.Prefix)
		}
		return err
	})
	return links, err
}

// target adds the ID of a namespace to a request.
func target(body []byte, attr uint16, nsid int32) []byte {
	if nsid == rtnl.Here {
		return body
	}
	return rtnl.Message(body).U32(attr, uint32(nsid))
}

// confirm checks that an answer comes from the namespace that the request names.
func confirm(want, got int32) error {
	if want != got {
		return fmt.Errorf("the kernel answered for namespace ID %d, not %d (Linux 4.20 or newer is needed)", got, want)
	}
	return nil
}

func clearAddrs(links []witness.Link) {
	for i := range links {
		links[i].Addrs = nil
	}
}

// addAddr adds an address to its link. A link that came after the dump of the links has
// no name here; its address counts.
func addAddr(links []witness.Link, index int, p netip.Prefix) []witness.Link {
	for i := range links {
		if links[i].Index == index {
			links[i].Addrs = append(links[i].Addrs, p)
			return links
		}
	}
	return append(links, witness.Link{Index: index, Name: fmt.Sprintf("link %d", index), Addrs: []netip.Prefix{p}})
}

// shown returns a link as a view shows it.
func shown(l rtnl.Link) witness.Link {
	w := witness.Link{
		Index:    int(int32(l.Index)),
		Name:     l.Name,
		Kind:     l.Kind,
		MAC:      net.HardwareAddr(l.MAC).String(),
		Up:       l.Flags&unix.IFF_UP != 0,
		Loopback: l.Flags&unix.IFF_LOOPBACK != 0,
		Master:   int(int32(l.Master)),
		Away:     l.Away,
	}
	if l.Away { // as the socket's namespace numbers it, whatever the target is
		w.NSID = int(l.LowerNSID)
	}
	switch below := int(int32(l.Lower)); {
	case l.Kind == "veth", l.Kind == "netkit":
		w.Peer = below
	case l.Away || below != w.Index: // a tunnel without a link below names itself
		w.Lower = below
	}
	return w
}
