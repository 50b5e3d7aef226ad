// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// end returns the place as an end of packets.
func (p place) end() netlab.Place {
	return netlab.Place{Name: p.name, Net: p.ns, Addresses: p.addresses}
}

func (c *cluster) echo(ns *netlab.Namespace, at netip.AddrPort) *netlab.Echo {
	c.t.Helper()
	return netlab.NewEcho(c.t, ns, at)
}

func (c *cluster) dial(ns *netlab.Namespace, to netip.AddrPort) *net.UDPConn {
	c.t.Helper()
	return netlab.Dial(c.t, ns, to)
}

func (c *cluster) flow(from, to place, is4 bool) *netlab.Flow {
	c.t.Helper()
	return netlab.NewFlow(c.t, from.end(), to.end(), is4)
}

func (c *cluster) reach(from, to place, is4 bool) (seen netip.Addr, err error) {
	c.t.Helper()
	return netlab.Reach(c.t, from.end(), to.end(), is4)
}

func (c *cluster) call(from place, at netip.AddrPort, server *netlab.Echo) (netip.Addr, error) {
	c.t.Helper()
	return netlab.Call(c.t, from.end(), at, server)
}

func (c *cluster) whole(from, to place, is4 bool, size int) error {
	c.t.Helper()
	return netlab.Whole(c.t, from.end(), to.end(), is4, size)
}

func (c *cluster) transfer(from, to place, is4 bool, size int) error {
	c.t.Helper()
	return netlab.Transfer(c.t, from.end(), to.end(), is4, size)
}

func (c *cluster) throughput(from, to place, is4 bool, length time.Duration) float64 {
	c.t.Helper()
	return netlab.Throughput(c.t, from.end(), to.end(), is4, length)
}
