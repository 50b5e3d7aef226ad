// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/traffic"
)

// end returns the place as an end of packets.
func (p place) end() traffic.Place {
	return traffic.Place{Name: p.name, Net: p.ns, Addresses: p.addresses}
}

func (c *cluster) echo(ns *netlab.Namespace, at netip.AddrPort) *traffic.Echo {
	c.t.Helper()
	return traffic.NewEcho(c.t, ns, at)
}

func (c *cluster) dial(ns *netlab.Namespace, to netip.AddrPort) *net.UDPConn {
	c.t.Helper()
	return traffic.Dial(c.t, ns, to)
}

func (c *cluster) flow(from, to place, is4 bool) *traffic.Flow {
	c.t.Helper()
	return traffic.NewFlow(c.t, from.end(), to.end(), is4)
}

func (c *cluster) reach(from, to place, is4 bool) (seen netip.Addr, err error) {
	c.t.Helper()
	return traffic.Reach(c.t, from.end(), to.end(), is4)
}

func (c *cluster) call(from place, at netip.AddrPort, server *traffic.Echo) (netip.Addr, error) {
	c.t.Helper()
	return traffic.Call(c.t, from.end(), at, server)
}

func (c *cluster) whole(from, to place, is4 bool, size int) error {
	c.t.Helper()
	return traffic.Whole(c.t, from.end(), to.end(), is4, size)
}

func (c *cluster) transfer(from, to place, is4 bool, size int) error {
	c.t.Helper()
	return traffic.Transfer(c.t, from.end(), to.end(), is4, size)
}

func (c *cluster) throughput(from, to place, is4 bool, length time.Duration) float64 {
	c.t.Helper()
	return traffic.Throughput(c.t, from.end(), to.end(), is4, length)
}
