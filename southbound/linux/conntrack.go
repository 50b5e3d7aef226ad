// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	conntrackNew     = 1 << 8 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW
	conntrackGet     = 1<<8 | 1
	conntrackDelete  = 1<<8 | 2
	tupleOriginal    = 1
	tupleReply       = 2
	tupleAddress     = 1
	tupleProtocol    = 2
	addressSource4   = 1 // the destination follows
	addressSource6   = 3
	protocolNumber   = 1
	entryTimeout     = 7
	entryID          = 12
	entryZone        = 18
	filterFlags      = 25
	filterOriginal   = 1
	filterReply      = 2
	filterSource     = 1 << 0
	sizeofNetfilter  = 4   // nfgenmsg
	experimentNumber = 253 // a protocol for experiments (RFC 3692)
)

// conntrack removes entries of the kernel's connection tracking. Any goroutine may use it.
type conntrack struct {
	ns     *rtnl.Namespace
	socket *rtnl.Socket // nil: the kernel has no interface to its connection tracking

	mu      sync.Mutex
	filters map[byte]bool       // by family: the kernel removes by address; nil: not tested yet
	pending map[netip.Addr]bool // whose entries are still there
	// inherited has the addresses that an earlier process may have left entries of; nil:
	// not read yet. Most of them are of other hosts.
	inherited map[netip.Addr]bool
}

func openConntrack(ns *rtnl.Namespace) (*conntrack, error) {
	c := &conntrack{ns: ns, pending: map[netip.Addr]bool{}}
	err := ns.Do(func() (err error) {
		c.socket, err = rtnl.Dial(unix.NETLINK_NETFILTER)
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		c.socket, err = nil, nil
	}
	return c, err
}

func (c *conntrack) close() error {
	if c.socket == nil {
		return nil
	}
	return c.socket.Close()
}

// forget removes the entries of addresses: of connections that they have begun, and of
// those to them, also through an address of a service. If the kernel cannot do it by
// address, the entries are pending until remove or removePending: listing all entries takes
// 10 ms and more, once for any number of addresses.
func (c *conntrack) forget(addresses []netip.Addr) error {
	if c.socket == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*rtnl.Request
	for _, a := range addresses {
		if !c.filters[familyOf(a)] {
			c.pending[a] = true
			continue
		}
		all = append(all, forgetSource(a, tupleOriginal), forgetSource(a, tupleReply))
	}
	return c.socket.Run(all)
}

// inherit notes the addresses with entries, once, since an earlier process may have ended
// before it has removed those of a deleted pod. Those of live pods are not among them.
func (c *conntrack) inherit(live []netip.Addr) error {
	if c.socket == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inherited == nil {
		found := map[netip.Addr]bool{}
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			if err := listSources(c.socket, family, found); err != nil {
				return err
			}
		}
		c.inherited = found
	}
	for _, a := range live {
		delete(c.inherited, a)
	}
	return nil
}

// remove removes all pending entries if those of one of the addresses are pending, and
// those that an earlier process has left of the addresses.
func (c *conntrack) remove(addresses []netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.ContainsFunc(addresses, func(a netip.Addr) bool { return c.pending[a] }) {
		if err := c.removeEntries(c.pending); err != nil {
			return err
		}
		clear(c.pending)
	}
	left := map[netip.Addr]bool{}
	for _, a := range addresses {
		if c.inherited[a] {
			left[a] = true
		}
	}
	if err := c.removeEntries(left); err != nil {
		return err
	}
	for a := range left {
		delete(c.inherited, a)
	}
	return nil
}

// test finds out, once, what the kernel can do. It takes 20 ms.
func (c *conntrack) test() {
	c.mu.Lock()
	known := c.filters != nil || c.socket == nil
	c.mu.Unlock()
	if known {
		return
	}
	filters := testFilters()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filters = filters
}

// removePending removes all pending entries.
func (c *conntrack) removePending() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.removeEntries(c.pending); err != nil {
		return err
	}
	clear(c.pending)
	return nil
}

// removeEntries removes the entries of addresses one by one.
func (c *conntrack) removeEntries(addresses map[netip.Addr]bool) error {
	families := map[byte]bool{}
	for a := range addresses {
		families[familyOf(a)] = true
	}
	var found []*rtnl.Request
	for _, family := range slices.Sorted(maps.Keys(families)) {
		all, err := listEntries(c.socket, family, addresses)
		if err != nil {
			return err
		}
		found = append(found, all...)
	}
	const batch = 100
	for part := range slices.Chunk(found, batch) {
		if err := c.socket.Run(part); err != nil {
			return err
		}
	}
	return nil
}

// listSources adds the addresses that have begun or answer tracked connections.
func listSources(s *rtnl.Socket, family byte, found map[netip.Addr]bool) error {
	return s.Dump("tracked connections", conntrackGet, rtnl.Message{family, 0, 0, 0}, func() {}, func(b []byte) {
		if len(b) < sizeofNetfilter || b[0] != family {
			return
		}
		rtnl.Attributes(b[sizeofNetfilter:], func(kind uint16, v []byte) {
			if kind == tupleOriginal || kind == tupleReply {
				found[tupleSource(v)] = true
			}
		})
	})
}

// listEntries returns the requests that remove the entries of addresses one by one.
func listEntries(s *rtnl.Socket, family byte, addresses map[netip.Addr]bool) (all []*rtnl.Request, err error) {
	header := rtnl.Message{family, 0, 0, 0}
	err = s.Dump("tracked connections", conntrackGet, header, func() { all = nil }, func(b []byte) {
		if len(b) < sizeofNetfilter || b[0] != family {
			return
		}
		body, matches := slices.Clone(header), false
		rtnl.Attributes(b[sizeofNetfilter:], func(kind uint16, v []byte) {
			switch kind {
			case tupleOriginal:
				matches = matches || addresses[tupleSource(v)]
				body = body.Nest(kind, slices.Clone(v))
			case tupleReply:
				matches = matches || addresses[tupleSource(v)]
			case entryID, entryZone:
				body = body.Attr(kind, v)
			}
		})
		if matches {
			all = append(all, &rtnl.Request{
				What:  "remove a tracked connection",
				Kind:  conntrackDelete,
				Body:  body,
				Allow: []unix.Errno{unix.ENOENT},
			})
		}
	})
	return all, err
}

// tupleSource returns the address that the packets of one direction come from.
func tupleSource(tuple []byte) (source netip.Addr) {
	rtnl.Attributes(tuple, func(kind uint16, v []byte) {
		if kind != tupleAddress {
			return
		}
		rtnl.Attributes(v, func(kind uint16, v []byte) {
			if kind == addressSource4 || kind == addressSource6 {
				source, _ = netip.AddrFromSlice(v)
			}
		})
	})
	return source
}

// forgetSource returns the request that removes the entries whose packets of one direction
// come from an address. Kernels before 6.9 answer EINVAL and remove nothing.
func forgetSource(a netip.Addr, side uint16) *rtnl.Request {
	attribute, flags := uint16(addressSource4), [2]uint32{}
	if a.Is6() {
		attribute = addressSource6
	}
	flags[side-tupleOriginal] = filterSource
	address := rtnl.Message(nil).Attr(attribute, a.AsSlice())
	body := rtnl.Message{familyOf(a), 1, 0, 0} // version 1: only this family
	body = body.Nest(side, rtnl.Message(nil).Nest(tupleAddress, address))
	body = body.Nest(filterFlags, rtnl.Message(nil).U32(filterOriginal, flags[0]).U32(filterReply, flags[1]))
	return &rtnl.Request{
		What: fmt.Sprintf("remove the tracked connections of %s", a),
		Kind: conntrackDelete,
		Body: body,
	}
}

// testFilters tries the removal by address in a network namespace of its own, and reports
// for each family whether the kernel does it. Linux 6.18 removes the wrong entries of IPv6:
// all those of other addresses.
func testFilters() map[byte]bool {
	works := map[byte]bool{}
	err := rtnl.Apart(func() error {
		s, err := rtnl.Dial(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		for _, pair := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
			gone, stays := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
			works[familyOf(gone)] = testFilter(s, gone, stays) == nil
		}
		return s.Close()
	})
	if err != nil {
		return map[byte]bool{}
	}
	return works
}

// testFilter makes two entries of one address and three of another, and removes the two.
func testFilter(s *rtnl.Socket, gone, stays netip.Addr) error {
	family := familyOf(gone)
	third := stays.Next()
	fourth := third.Next()
	err := s.Run([]*rtnl.Request{
		newEntry(gone, third), newEntry(stays, third), newEntry(fourth, gone),
		newEntry(fourth, stays), newEntry(fourth.Next(), stays),
		forgetSource(gone, tupleOriginal), forgetSource(gone, tupleReply),
	})
	if err != nil {
		return err
	}
	all, err := listEntries(s, family, map[netip.Addr]bool{gone: true, stays: true})
	if want := 3; err != nil || len(all) != want {
		return errors.Join(err, fmt.Errorf("%d entries remain, want %d", len(all), want))
	}
	return nil
}

// newEntry returns the request that makes an entry.
func newEntry(from, to netip.Addr) *rtnl.Request {
	const seconds = 60
	tuple := func(x, y netip.Addr) rtnl.Message {
		source := uint16(addressSource4)
		if x.Is6() {
			source = addressSource6
		}
		addresses := rtnl.Message(nil).Attr(source, x.AsSlice()).Attr(source+1, y.AsSlice())
		return rtnl.Message(nil).Nest(tupleAddress, addresses).
			Nest(tupleProtocol, rtnl.Message(nil).U8(protocolNumber, experimentNumber))
	}
	body := rtnl.Message{familyOf(from), 0, 0, 0}.
		Nest(tupleOriginal, tuple(from, to)).
		Nest(tupleReply, tuple(to, from)).
		Attr(entryTimeout, []byte{0, 0, 0, seconds})
	return &rtnl.Request{
		What:  fmt.Sprintf("make an entry from %s to %s", from, to),
		Kind:  conntrackNew,
		Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		Body:  body,
	}
}
