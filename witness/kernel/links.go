// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness"
)

// here as the ID of a namespace stands for the one that the socket belongs to.
const here int32 = -1

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
	if nsid == here {
		body = rtnl.Message(body).U32(unix.IFLA_EXT_MASK, skipStatistics)
	}
	body = target(body, unix.IFLA_TARGET_NETNSID, nsid)
	err := c.list("the links", unix.RTM_GETLINK, body, func() { links = links[:0] }, func(b []byte) error {
		l, from, err := parseLink(b)
		if err == nil {
			err = confirm(nsid, from)
		}
		links = append(links, l)
		return err
	})
	if err != nil {
		return nil, err
	}
	body = target(make([]byte, unix.SizeofIfAddrmsg), unix.IFA_TARGET_NETNSID, nsid)
	err = c.list("the addresses", unix.RTM_GETADDR, body, func() { clearAddrs(links) }, func(b []byte) error {
		index, p, from, err := parseAddr(b)
		if err == nil {
			err = confirm(nsid, from)
		}
		if err == nil {
			links = addAddr(links, index, p)
		}
		return err
	})
	return links, err
}

// target adds the ID of a namespace to a request.
func target(body []byte, attr uint16, nsid int32) []byte {
	if nsid == here {
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

// parseLink decodes a link and the ID of the namespace that the answer is about.
func parseLink(b []byte) (l witness.Link, nsid int32, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return l, here, fmt.Errorf("a message about a link has %d bytes, less than %d", len(b), unix.SizeofIfInfomsg)
	}
	l.Index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	flags := binary.NativeEndian.Uint32(b[8:])
	l.Up, l.Loopback = flags&unix.IFF_UP != 0, flags&unix.IFF_LOOPBACK != 0
	nsid = here
	below := 0
	rtnl.Attributes(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = rtnl.Text(v)
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(v).String()
		case unix.IFLA_LINK:
			below = int(number(v))
		case unix.IFLA_LINK_NETNSID: // as the socket's namespace numbers it, whatever the target is
			l.Away, l.NSID = true, int(number(v))
		case unix.IFLA_MASTER:
			l.Master = int(number(v))
		case unix.IFLA_TARGET_NETNSID:
			nsid = number(v)
		case unix.IFLA_LINKINFO:
			rtnl.Attributes(v, func(kind uint16, v []byte) {
				if kind == unix.IFLA_INFO_KIND {
					l.Kind = rtnl.Text(v)
				}
			})
		}
	})
	switch {
	case l.Kind == "veth", l.Kind == "netkit":
		l.Peer = below
	case l.Away || below != l.Index: // a tunnel without a link below names itself
		l.Lower = below
	}
	return l, nsid, nil
}

// parseAddr decodes an address, the index of its link, and the ID of the namespace that
// the answer is about.
func parseAddr(b []byte) (index int, p netip.Prefix, nsid int32, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return 0, p, here, fmt.Errorf(
			"a message about an address has %d bytes, less than %d",
			len(b),
			unix.SizeofIfAddrmsg,
		)
	}
	bits := int(b[1])
	index = int(binary.NativeEndian.Uint32(b[4:]))
	nsid = here
	var local, address netip.Addr
	rtnl.Attributes(b[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS: // of a link with two ends: the other end, beside IFA_LOCAL
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_TARGET_NETNSID:
			nsid = number(v)
		}
	})
	if !local.IsValid() {
		local = address
	}
	if p = netip.PrefixFrom(local, bits); !p.IsValid() {
		return 0, p, nsid, fmt.Errorf("link %d has an address that cannot be decoded: %x", index, b)
	}
	return index, p, nsid, nil
}

// number returns the value of an attribute with a signed number of 32 bits.
func number(value []byte) int32 { return int32(rtnl.Number(value)) }
