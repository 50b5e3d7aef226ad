// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/southbound/linux/rtnl"
)

// Networks is the descriptor of pod networks with a routing table of their own. Such a table
// ends with blackhole default routes, so that no packet of the network continues to the main
// table. They are not unreachable ones: the node would send its answer by the main table, to
// another pod with the same address or out of the node. A network in the main table has no
// object and is always made.
type Networks struct {
	host *rtnl.Socket
}

var _ southbound.Descriptor = (*Networks)(nil)

// NewNetworks opens the node's network namespace. It changes nothing.
func NewNetworks(opt Options) (*Networks, error) {
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, err
	}
	s, err := ns.Dial()
	if err = errors.Join(err, ns.Close()); err != nil {
		return nil, err
	}
	return &Networks{host: s}, nil
}

// Close closes the socket. The tables stay.
func (n *Networks) Close() error { return n.host.Close() }

// Name returns the name of the descriptor.
func (n *Networks) Name() string { return "linux network" }

// Handles reports whether key is that of a network.
func (n *Networks) Handles(key string) bool { return strings.HasPrefix(key, kv.SinkNetworkPrefix) }

// Validate returns the reason why a value can never be made.
func (n *Networks) Validate(_ string, value proto.Message) error {
	_, err := readTable(value)
	return err
}

// Dependencies returns nothing.
func (n *Networks) Dependencies(string, proto.Message) []string { return nil }

// Create closes the table of a network.
func (n *Networks) Create(_ context.Context, _ string, value proto.Message) error {
	table, err := readTable(value)
	if err != nil || table == 0 {
		return err
	}
	have, err := tableRoutes(n.host, table)
	if err != nil {
		return err
	}
	foreign := func(p parsed) bool { return !p.ours && p.protocol != unix.RTPROT_KERNEL }
	if i := slices.IndexFunc(have, foreign); i >= 0 {
		return fmt.Errorf("%w: table %d has the %s", southbound.ErrForeign, table, have[i])
	}
	var all []*rtnl.Request
	for _, o := range closedRoutes(table) {
		if !slices.ContainsFunc(have, func(p parsed) bool { return p.object == o }) {
			all = append(all, o.add(linkID{}))
		}
	}
	return n.host.Run(all)
}

// Update closes the new table, then removes the routes of the old one.
func (n *Networks) Update(ctx context.Context, key string, before, value proto.Message) error {
	if err := n.Create(ctx, key, value); err != nil {
		return err
	}
	was, _ := readTable(before)
	if is, _ := readTable(value); was == is {
		return nil
	}
	return n.Delete(ctx, key, before)
}

// Delete removes the last routes of the table.
func (n *Networks) Delete(_ context.Context, _ string, value proto.Message) error {
	table, err := readTable(value)
	if err != nil || table == 0 {
		return nil //nolint:nilerr // such a value was never made
	}
	var all []*rtnl.Request
	for _, o := range closedRoutes(table) {
		all = append(all, o.remove(linkID{}))
	}
	return n.host.Run(all)
}

// Retrieve returns the wanted networks whose tables are closed, and one without a name for
// each other table that is.
func (n *Networks) Retrieve(_ context.Context, wanted []controller.Value) ([]controller.Value, error) {
	have, err := tableRoutes(n.host, 0)
	if err != nil {
		return nil, err
	}
	closed := map[uint32]int{}
	for _, p := range have {
		if p.kind == closedObject && p.ours {
			closed[p.table]++
		}
	}
	var all []controller.Value
	for _, v := range wanted {
		table, err := readTable(v.Message)
		if err != nil {
			continue
		}
		switch count := closed[table]; {
		case table == 0, count == len(closedRoutes(table)):
			all = append(all, v)
		case count > 0:
			all = append(all, controller.Value{Key: v.Key, Message: &kv.Network{Table: table}})
		}
		delete(closed, table)
	}
	for table := range closed {
		key := fmt.Sprintf("%stable-%d", kv.SinkNetworkPrefix, table)
		all = append(all, controller.Value{Key: key, Message: &kv.Network{Table: table}})
	}
	return all, nil
}

// readTable returns the table of a network, 0 for the main table.
func readTable(value proto.Message) (uint32, error) {
	network, ok := value.(*kv.Network)
	if !ok {
		return 0, fmt.Errorf("the value is a %T, want a Network", value)
	}
	switch table := network.GetTable(); table {
	case unix.RT_TABLE_LOCAL, unix.RT_TABLE_DEFAULT:
		return 0, fmt.Errorf("table %d belongs to the kernel: want another one", table)
	case unix.RT_TABLE_MAIN:
		return 0, nil
	default:
		return table, nil
	}
}

// closedRoutes returns the last routes of a table.
func closedRoutes(table uint32) []object {
	return []object{
		{kind: closedObject, prefix: defaultRoute(unix.AF_INET), table: table},
		{kind: closedObject, prefix: defaultRoute(unix.AF_INET6), table: table},
	}
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
