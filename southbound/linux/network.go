// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// networks makes pod networks with a routing table of their own. Such a table
// ends with blackhole default routes, so that no packet of the network continues to the main
// table. They are not unreachable ones: the node would send its answer by the main table, to
// another pod with the same address or out of the node. A closed network in the main table has
// an unreachable route to each of its ranges, for packets whose route is missing or pending. Any
// other one there has no object and is always made.
type networks struct {
	host    *rtnl.Socket
	monitor *monitor
}

// newNetworks opens the node's network namespace. It changes nothing.
func newNetworks(opt Options) (*networks, error) {
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, err
	}
	s, err := ns.Dial()
	if err = errors.Join(err, ns.Close()); err != nil {
		return nil, err
	}
	return &networks{s, opt.withDefaults().monitor}, nil
}

// kind returns the kind of networks.
func (n *networks) kind() southbound.Kind[network] {
	return southbound.Kind[network]{
		Name:     "linux network",
		Prefix:   kv.SinkNetworkPrefix,
		Read:     readNetwork,
		Create:   n.create,
		Update:   n.update,
		Delete:   n.remove,
		Retrieve: n.retrieve,
		Watch:    n.watch,
		Close:    n.host.Close,
	}
}

// create closes a network.
func (n *networks) create(_ context.Context, _ string, want network) error {
	if len(want.closed) == 0 {
		return nil
	}
	have, err := tableRoutes(n.host, want.table)
	if err != nil {
		return err
	}
	foreign := func(p parsed) bool { return !p.ours && p.protocol != unix.RTPROT_KERNEL }
	if i := slices.IndexFunc(have, foreign); i >= 0 && want.custom() {
		return fmt.Errorf("%w: table %d has the %s", southbound.ErrForeign, want.table, have[i])
	}
	var all []*rtnl.Request
	for _, o := range want.closed {
		if !slices.ContainsFunc(have, func(p parsed) bool { return p.object == o }) {
			all = append(all, o.add(linkID{}))
		}
	}
	return n.host.Run(all)
}

// update closes the network as it is wanted, then removes the other routes that it had.
func (n *networks) update(ctx context.Context, key string, was southbound.Made[network], want network) error {
	if err := n.create(ctx, key, want); err != nil {
		return err
	}
	return n.open(
		slices.DeleteFunc(
			slices.Clone(was.Plan.closed),
			func(o object) bool { return slices.Contains(want.closed, o) },
		),
	)
}

// remove removes the last routes of a network.
func (n *networks) remove(_ context.Context, _ string, was southbound.Made[network]) error {
	return n.open(was.Plan.closed)
}

// open removes routes that close a network.
func (n *networks) open(routes []object) error {
	var all []*rtnl.Request
	for _, o := range routes {
		all = append(all, o.remove(linkID{}))
	}
	return n.host.Run(all)
}

// retrieve returns the wanted networks that are closed as they say. A network with fewer
// routes, or with a table of other routes, differs. Routes of the main table that no wanted
// network has are those of a network without a name.
func (n *networks) retrieve(_ context.Context, wanted []southbound.Wanted[network]) ([]controller.Value, error) {
	have, err := tableRoutes(n.host, 0)
	if err != nil {
		return nil, err
	}
	closed := map[uint32][]object{}
	for _, p := range have {
		if p.last() && p.ours && !kv.IsUplinkTable(p.table) {
			closed[p.table] = append(closed[p.table], p.object)
		}
	}
	var all []controller.Value
	var claimed []object // by wanted networks
	for _, v := range wanted {
		want := v.Plan
		found := closed[want.table]
		if !want.custom() { // networks share the main table: of its routes only its own count
			foreign := func(o object) bool { return !slices.Contains(want.closed, o) }
			found = slices.DeleteFunc(slices.Clone(found), foreign)
		}
		claimed = append(claimed, found...)
		missing := slices.ContainsFunc(want.closed, func(o object) bool { return !slices.Contains(found, o) })
		switch {
		case !missing && len(found) == len(want.closed):
			all = append(all, controller.Value{Key: v.Key, Message: v.Message})
		case len(found) > 0 || !want.custom():
			all = append(all, controller.Value{Key: v.Key, Message: describeClosed(want.table, found)})
		}
	}
	for table, found := range closed {
		found = slices.DeleteFunc(found, func(o object) bool { return slices.Contains(claimed, o) })
		if len(found) == 0 {
			continue
		}
		key := fmt.Sprintf("%stable-%d", kv.SinkNetworkPrefix, table)
		all = append(all, controller.Value{Key: key, Message: describeClosed(table, found)})
	}
	return all, nil
}

// watch calls changed if a route that closes a network is removed.
func (n *networks) watch(ctx context.Context, changed func(key string)) error {
	return n.monitor.follow(ctx, changed, watch{damaged: func(a announcement) (key string, is bool) {
		p := a.object
		return "", a.kind == unix.RTM_DELROUTE && p.ours && p.last() && !kv.IsUplinkTable(p.table)
	}})
}

// describeClosed returns a value without a name whose routes are found.
func describeClosed(table uint32, found []object) *kv.Network {
	m := &kv.Network{Table: table}
	if table == unix.RT_TABLE_MAIN {
		m.Table, m.Closed = 0, len(found) > 0
		for _, o := range found {
			m.Subnets = append(m.Subnets, o.prefix.String())
		}
	}
	return m
}

// network holds what a value says.
type network struct {
	table  uint32
	closed []object // the last routes of the network
}

// custom reports whether the network has a table of its own.
func (n network) custom() bool { return n.table != unix.RT_TABLE_MAIN }

// readNetwork reads a value.
func readNetwork(_ string, value proto.Message) (n network, err error) {
	m, ok := value.(*kv.Network)
	if !ok {
		return n, fmt.Errorf("the value is a %T, want a Network", value)
	}
	if n.table, err = readTable(m.GetTable()); err != nil {
		return n, err
	}
	if n.table == unix.RT_TABLE_MAIN {
		if !m.GetClosed() {
			return n, nil
		}
		for _, text := range m.GetSubnets() {
			p, err := routeDestination(text)
			if err != nil {
				return n, fmt.Errorf("subnets: %w", err)
			}
			n.closed = append(n.closed, object{kind: rejectObject, prefix: p, table: n.table})
		}
		return n, nil
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		n.closed = append(n.closed, object{kind: closedObject, prefix: defaultRoute(family), table: n.table})
	}
	return n, nil
}

// readTable reads the number of a table; 0 is the main one.
func readTable(table uint32) (uint32, error) {
	switch table {
	case unix.RT_TABLE_LOCAL, unix.RT_TABLE_DEFAULT:
		return 0, fmt.Errorf("table %d belongs to the kernel: want another one", table)
	case 0:
		return unix.RT_TABLE_MAIN, nil
	}
	return table, nil
}

// tableRoutes returns the routes of a table, or with table 0 those of ours in all tables.
func tableRoutes(s *rtnl.Socket, table uint32) (all []parsed, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := make(rtnl.Message, unix.SizeofRtMsg)
		body[0] = family
		if table == 0 {
			body[5] = ownProtocol
		} else {
			body = body.U32(unix.RTA_TABLE, table)
		}
		var found []parsed
		err := s.Dump("routes", unix.RTM_GETROUTE, body, func() { found = nil }, func(b []byte) {
			if p, ok := parseRoute(b); ok {
				found = append(found, p)
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // there is no such table yet
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
