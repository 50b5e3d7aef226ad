// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// answerTimeout bounds the wait for each answer of the kernel.
const answerTimeout = 10 * time.Second

// routes is the descriptor of the routes to pod subnets of other nodes, the values below
// "route/".
type routes struct {
	kernel routeKernel
	table  *routeTable // as read for this transaction; nil: to be read
	// tried holds the places where this process has made routes: IPv6 shows these without
	// our protocol if another program adds a hop.
	tried map[routePlace]bool
	// networks holds the links of networks that values have named.
	networks map[routeLink]bool
	monitor  *monitor

	mu      sync.Mutex              // because Watch reads what follows
	watched map[routePlace]routeWay // of the wanted values, and of those that stand in
}

var (
	_ southbound.Descriptor  = (*routes)(nil)
	_ southbound.Equaler     = (*routes)(nil)
	_ southbound.Preparer    = (*routes)(nil)
	_ southbound.Substituter = (*routes)(nil)
)

// newRoutes opens a netlink socket in the node's network namespace. It changes nothing.
func newRoutes(opt Options) (*routes, error) {
	var handle *netlink.Handle
	err := rtnl.Within(opt.Namespace, func() (err error) {
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = handle.SetSocketTimeout(answerTimeout)
	}
	if err != nil {
		if handle != nil {
			handle.Close()
		}
		return nil, fmt.Errorf("open the kernel's routes: %w", err)
	}
	return &routes{
		kernel:   handle,
		tried:    map[routePlace]bool{},
		networks: map[routeLink]bool{},
		monitor:  opt.withDefaults().monitor,
		watched:  map[routePlace]routeWay{},
	}, nil
}

// Close closes the socket. The routes stay.
func (d *routes) Close() error {
	d.kernel.Close()
	return nil
}

func (d *routes) Name() string { return "linux route" }

func (d *routes) Handles(key string) bool { return strings.HasPrefix(key, kv.SinkRoutePrefix) }

func (d *routes) Validate(key string, value proto.Message) error {
	_, err := readRoute(key, value)
	return err
}

// Equal compares what the kernel shows of a route, and its tunnel. The kernel does not show
// the name of a node.
func (d *routes) Equal(key string, x, y proto.Message) bool {
	a, errA := readRoute(key, x)
	b, errB := readRoute(key, y)
	return errA == nil && errB == nil && a.way == b.way && slices.Equal(d.Dependencies(key, x), d.Dependencies(key, y))
}

// Dependencies returns the tunnel that a route leads through.
func (d *routes) Dependencies(_ string, value proto.Message) []string {
	r, ok := value.(*kv.NodeRoute)
	if !ok || r.GetTransport() == kv.Transport_DIRECT {
		return nil
	}
	return []string{kv.SinkTunnelKey(r.GetNodeId(), r.GetNetwork())}
}

// Substitute returns an unreachable route: while the tunnel of a route is not made, packets to
// its subnet do not leave by another route, such as the default route.
func (d *routes) Substitute(_ string, value proto.Message) proto.Message {
	r, ok := value.(*kv.NodeRoute)
	if !ok || r.GetTransport() == kv.Transport_DIRECT {
		return nil
	}
	return &kv.NodeRoute{Dst: r.GetDst(), NodeId: r.GetNodeId(), NodeName: r.GetNodeName(), Table: r.GetTable()}
}

// Prepare reads the kernel's routes of the families of keys.
func (d *routes) Prepare(ctx context.Context, keys []string) (err error) {
	d.table = nil
	requested, families := map[routePlace]bool{}, map[int]bool{}
	for _, key := range keys {
		if place, err := readPlace(key); err == nil {
			requested[place] = true
			families[familyOfRoute(place.dst)] = true
		}
	}
	d.table, err = listRoutes(ctx, d.kernel, slices.Sorted(maps.Keys(families)), requested, d.linked()...)
	return err
}

// Create makes the route of a value, or corrects the present one.
func (d *routes) Create(ctx context.Context, key string, value proto.Message) error {
	want, err := readRoute(key, value)
	if err != nil {
		return err
	}
	d.tried[want.place] = true
	d.watch(want)
	d.name(want)
	if err := d.relink(ctx, want.way.routeLink); err != nil {
		return err
	}
	return d.change(ctx, key, func(c *routeChange) error { return c.converge(want) })
}

// relink looks the link of a transport up again: this transaction may have made it after
// the routes were read. The routes through a link that was removed went with it.
func (d *routes) relink(ctx context.Context, through routeLink) error {
	if d.table == nil || through.transport == kv.Transport_DIRECT {
		return nil
	}
	link, err := d.kernel.LinkByName(through.name())
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil // the change says so
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", through.name(), err)
	}
	before := d.table.links[through]
	if before == link.Attrs().Index {
		return nil
	}
	d.table.links[through] = link.Attrs().Index
	if before == 0 {
		return nil
	}
	families := []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	d.table, err = listRoutes(ctx, d.kernel, families, d.table.requested, d.linked()...)
	return err
}

// name notes the link of a network that a route leads through.
func (d *routes) name(w routeWant) {
	if w.way.vni != 0 {
		d.networks[w.way.routeLink] = true
	}
}

// linked returns the links of networks that values have named.
func (d *routes) linked() []routeLink { return slices.Collect(maps.Keys(d.networks)) }

// Update changes the route of a value.
func (d *routes) Update(ctx context.Context, key string, _, value proto.Message) error {
	return d.Create(ctx, key, value)
}

// Delete removes the own routes to the destination of a value.
func (d *routes) Delete(ctx context.Context, key string, _ proto.Message) error {
	place, err := readPlace(key)
	if err != nil {
		return nil //nolint:nilerr // an impossible value was never made
	}
	d.unwatch(place)
	err = d.change(ctx, key, func(c *routeChange) error {
		_, err := c.remove(slices.Concat(c.table.ours[place], c.table.hidden[place]))
		return err
	})
	if err == nil {
		delete(d.tried, place)
	}
	return err
}

// change calls f with the routes as they are, and undoes the steps of f if it fails.
func (d *routes) change(ctx context.Context, key string, f func(*routeChange) error) error {
	place, err := readPlace(key)
	if err != nil {
		return err
	}
	if d.table == nil || !d.table.requested[place] || d.table.stale[place] {
		if err := d.Prepare(ctx, []string{key}); err != nil {
			return err
		}
	}
	c := &routeChange{kernel: d.kernel, table: d.table}
	err = f(c)
	if len(c.done) > 0 {
		d.table.stale[place] = true
	}
	if err != nil {
		return errors.Join(err, c.undo())
	}
	return nil
}

// Retrieve returns the values of the own routes. A route of a form that this package never
// makes, or beside a foreign one, has a description as its gateway.
func (d *routes) Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error) {
	d.table = nil
	wants, requested := map[routePlace]routeWant{}, maps.Clone(d.tried)
	for _, v := range wanted {
		want, err := readRoute(v.Key, v.Message)
		if err != nil {
			return nil, fmt.Errorf("value of %s: %w", v.Key, err)
		}
		wants[want.place], requested[want.place] = want, true
		d.watch(want)
		d.name(want)
	}
	t, err := listRoutes(ctx, d.kernel, []int{netlink.FAMILY_V4, netlink.FAMILY_V6}, requested, d.linked()...)
	if err != nil {
		return nil, err
	}
	var all []controller.Value
	for place, have := range t.hidden {
		if d.tried[place] && t.ours[place] == nil {
			all = append(all, controller.Value{Key: place.key(), Message: t.describe(place, have)})
		}
	}
	for place, have := range t.ours {
		t.requested[place] = true
		want, is := wants[place]
		value := proto.Message(want.value)
		if !is || !t.right(have, want) {
			value = t.describe(place, have)
		}
		all = append(all, controller.Value{Key: place.key(), Message: value})
	}
	d.table = t
	return all, nil
}

// right reports whether the own routes to a destination are exactly the wanted one.
func (t *routeTable) right(have []netlink.Route, want routeWant) bool {
	if _, taken := t.foreign[want.place]; taken || len(have) != 1 {
		return false
	}
	way, plain := t.way(have[0])
	return plain && way == want.way && t.reaches(have[0], way)
}

// describe returns a value that shows own routes which are not the wanted ones.
func (t *routeTable) describe(place routePlace, have []netlink.Route) *kv.NodeRoute {
	value := &kv.NodeRoute{Dst: place.dst.String(), Table: place.table}
	if way, plain := t.way(have[0]); plain && len(have) == 1 {
		if _, taken := t.foreign[place]; !taken && t.reaches(have[0], way) {
			value.Gateway, value.Transport, value.Vni = "", way.transport, way.vni
			if way.gateway.IsValid() {
				value.Gateway = way.gateway.String()
			}
			return value
		}
	}
	for _, r := range have {
		value.Gateway += describeRoute(r) + "; "
	}
	if r, taken := t.foreign[place]; taken {
		value.Gateway += "beside " + describeRoute(r)
	}
	value.Gateway = strings.TrimSuffix(value.Gateway, "; ")
	return value
}

// routePlace identifies the routes of one value.
type routePlace struct {
	table uint32 // 0: the main table
	dst   netip.Prefix
}

func (p routePlace) key() string { return kv.SinkRouteKey(p.dst.String(), p.table) }

// id returns the number of the table in the kernel.
func (p routePlace) id() int {
	if p.table == 0 {
		return unix.RT_TABLE_MAIN
	}
	return int(p.table)
}
