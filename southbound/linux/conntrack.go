// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/southbound/linux/rtnl"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	conntrackDelete = 1<<8 | 2 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
	tupleOriginal   = 1
	tupleReply      = 2
	tupleAddress    = 1
	addressSource4  = 1
	addressSource6  = 3
	filterFlags     = 25
	filterOriginal  = 1
	filterReply     = 2
	filterSource    = 1 << 0
)

// conntrack removes entries of the kernel's connection tracking.
type conntrack struct {
	ns     *rtnl.Namespace
	socket *rtnl.Socket
	absent bool // the kernel has no connection tracking, or no interface to it
	plain  bool // the kernel does not filter (before Linux 6.9)
}

func openConntrack(ns *rtnl.Namespace) (*conntrack, error) {
	c := &conntrack{ns: ns}
	err := ns.Do(func() (err error) {
		c.socket, err = rtnl.Dial(unix.NETLINK_NETFILTER)
		return err
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		c.absent, err = true, nil
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
// those to them, also through an address of a service. The kernel reads its table once
// for each request, unless the table is empty.
func (c *conntrack) forget(addresses []netip.Addr) error {
	if c.absent || len(addresses) == 0 {
		return nil
	}
	if c.plain {
		return c.forgetPlain(addresses)
	}
	var all []*rtnl.Request
	for _, a := range addresses {
		for _, side := range []uint16{tupleOriginal, tupleReply} {
			all = append(all, forgetSource(a, side))
		}
	}
	err := c.socket.Run(all)
	switch {
	case errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP):
		// the kernel wants one whole connection, and has removed nothing
		c.plain = true
		return c.forgetPlain(addresses)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		c.absent = true
		return nil
	}
	return err
}

// forgetSource returns the request that removes the entries whose packets of one direction
// come from an address.
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
		What:  fmt.Sprintf("remove the tracked connections of %s", a),
		Kind:  conntrackDelete,
		Body:  body,
		Allow: []unix.Errno{unix.ENOENT},
	}
}

// forgetPlain reads all entries, and removes those of the addresses one by one.
func (c *conntrack) forgetPlain(addresses []netip.Addr) error {
	return c.ns.Do(func() error {
		for _, a := range addresses {
			for _, kind := range []netlink.ConntrackFilterType{netlink.ConntrackOrigSrcIP, netlink.ConntrackReplySrcIP} {
				filter := &netlink.ConntrackFilter{}
				if err := filter.AddIP(kind, a.AsSlice()); err != nil {
					return fmt.Errorf("remove the tracked connections of %s: %w", a, err)
				}
				family := netlink.InetFamily(familyOf(a))
				if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter); err != nil {
					return fmt.Errorf("remove the tracked connections of %s: %w", a, err)
				}
			}
		}
		return nil
	})
}
