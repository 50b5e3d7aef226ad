// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"
	"net/netip"

	"go.fd.io/govpp/binapi/fib"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip_neighbor"
)

// setNeighbours makes the neighbours of an interface the wanted ones.
func (x *change) setNeighbours(l *link, a *actual) error {
	for ip := range a.neighbours {
		if _, wanted := l.neighbours[ip]; !wanted {
			if err := x.changeNeighbour(a, ip, a.neighbours[ip], false); err != nil {
				return err
			}
		}
	}
	for ip, m := range l.neighbours {
		if have, found := a.neighbours[ip]; !found || have != m {
			if err := x.changeNeighbour(a, ip, m, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *change) changeNeighbour(a *actual, address netip.Addr, m mac, add bool) error {
	err := x.do("neighbour "+address.String(), &ip_neighbor.IPNeighborAddDel{
		IsAdd: add,
		Neighbor: ip_neighbor.IPNeighbor{
			SwIfIndex:  interface_types.InterfaceIndex(a.index),
			Flags:      ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC,
			MacAddress: m,
			IPAddress:  vppAddr(address),
		},
	}, removals(add)...)
	if err != nil {
		return err
	}
	if add {
		a.neighbours[address] = m
	} else {
		delete(a.neighbours, address)
	}
	return nil
}

// register makes the source of own routes known to VPP, once: each registration is another
// source.
func (x *change) register() error {
	if x.st.source != 0 {
		return nil
	}
	reply, err := x.call("register the source of routes", &fib.FibSourceAdd{
		Src: fib.FibSource{Priority: sourcePriority, Name: sourceName},
	})
	if err == nil {
		x.st.source = reply.(*fib.FibSourceAddReply).ID
	}
	return err
}

// makeNeighbours adds neighbours to an interface of another value.
func (x *change) makeNeighbours(n *neighbours) error {
	if n == nil {
		return nil
	}
	a := x.st.byTag[n.link]
	if a == nil {
		return fmt.Errorf("interface %s is missing", n.link)
	}
	for ip, m := range n.all {
		if have, found := a.neighbours[ip]; !found || have != m {
			if err := x.changeNeighbour(a, ip, m, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeNeighbours removes those that kept does not have.
func (x *change) removeNeighbours(n, kept *neighbours) error {
	if n == nil {
		return nil
	}
	a := x.st.byTag[n.link]
	if a == nil {
		return nil
	}
	for ip, m := range n.all {
		if kept != nil && kept.link == n.link && kept.all[ip] == m {
			continue
		}
		if a.neighbours[ip] == m {
			if err := x.changeNeighbour(a, ip, m, false); err != nil {
				return err
			}
		}
	}
	return nil
}
