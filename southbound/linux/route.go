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

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// routes is the descriptor of the routes to pod subnets of other nodes, the values below
// "route/".
type routes struct {
	host    *rtnl.Socket
	monitor *monitor
	table   *routeTable // as read for this transaction; nil: to be read

	mu sync.Mutex // because Watch reads what follows
	// watched holds the wanted values, and those that stand in. IPv6 shows a route of these
	// places without our protocol if another program adds a hop.
	watched map[routePlace]routeWay
}

var (
	_ southbound.Descriptor  = (*routes)(nil)
	_ southbound.Equaler     = (*routes)(nil)
	_ southbound.Preparer    = (*routes)(nil)
	_ southbound.Substituter = (*routes)(nil)
)

// newRoutes opens a netlink socket in the node's network namespace. It changes nothing.
func newRoutes(opt Options) (*routes, error) {
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's routes: %w", err)
	}
	host, err := ns.Dial()
	if err = errors.Join(err, ns.Close()); err != nil {
		return nil, fmt.Errorf("open the kernel's routes: %w", err)
	}
	return &routes{host: host, monitor: opt.withDefaults().monitor, watched: map[routePlace]routeWay{}}, nil
}

// Close closes the socket. The routes stay.
func (d *routes) Close() error { return d.host.Close() }

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
func (d *routes) Prepare(ctx context.Context, keys []string) error {
	requested := map[routePlace]bool{}
	for _, key := range keys {
		if place, err := readPlace(key); err == nil {
			requested[place] = true
		}
	}
	return d.read(ctx, requested, familiesOf(requested))
}

func familiesOf(places map[routePlace]bool) []byte {
	families := map[byte]bool{}
	for place := range places {
		families[familyOf(place.dst.Addr())] = true
	}
	return slices.Sorted(maps.Keys(families))
}

// read reads the routes of families, of foreign ones only those to requested destinations.
func (d *routes) read(ctx context.Context, requested map[routePlace]bool, families []byte) error {
	d.table = nil
	links, err := routeLinks(d.host, d.throughLinks())
	if err != nil {
		return err
	}
	t := &routeTable{
		requested,
		links,
		map[routePlace][]rtnl.Route{},
		map[routePlace][]rtnl.Route{},
		map[uint32][]netip.Prefix{},
	}
	for _, family := range families {
		if ctx.Err() != nil {
			return fmt.Errorf("list routes: %w", context.Cause(ctx))
		}
		found, err := listRoutes(d.host, family)
		if err != nil {
			return err
		}
		for _, r := range found {
			t.sort(r)
		}
	}
	d.table = t
	return nil
}

// current returns the routes as they are. It reads them again if this transaction has changed
// those of place, or has made the link of a tunnel again: its former routes went with it.
func (d *routes) current(ctx context.Context, place routePlace, through routeLink) (*routeTable, error) {
	valid := d.table != nil && d.table.requested[place]
	if valid && through.name() != "" {
		links, err := routeLinks(d.host, map[routeLink]bool{through: true})
		if err != nil {
			return nil, err
		}
		valid = links[through] == d.table.links[through]
	}
	if valid {
		return d.table, nil
	}
	requested := map[routePlace]bool{place: true}
	if d.table != nil {
		for other := range d.table.requested {
			requested[other] = true
		}
	}
	err := d.read(ctx, requested, familiesOf(requested))
	return d.table, err
}

// Create makes the route of a value, or corrects the present one.
func (d *routes) Create(ctx context.Context, key string, value proto.Message) error {
	want, err := readRoute(key, value)
	if err != nil {
		return err
	}
	d.watch(want)
	t, err := d.current(ctx, want.place, want.way.routeLink)
	if err != nil {
		return southbound.Unchanged(err)
	}
	return (&routeChange{d.host, t, want.place}).converge(want)
}

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
	way, watched := d.unwatch(place)
	t, err := d.current(ctx, place, routeLink{})
	if err == nil {
		_, err = (&routeChange{d.host, t, place}).remove(slices.Concat(t.ours[place], t.hidden(place)))
	}
	if err != nil && watched {
		d.watch(routeWant{place: place, way: way})
	}
	return err
}

// Retrieve returns the values of the own routes. A route of a form that this package never
// makes, or beside a foreign one, has a description as its gateway.
func (d *routes) Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error) {
	requested, wants := d.places(), map[routePlace]routeWant{}
	made := maps.Clone(requested)
	for _, v := range wanted {
		want, err := readRoute(v.Key, v.Message)
		if err != nil {
			return nil, fmt.Errorf("value of %s: %w", v.Key, err)
		}
		wants[want.place], requested[want.place] = want, true
		d.watch(want)
	}
	if err := d.read(ctx, requested, []byte{unix.AF_INET, unix.AF_INET6}); err != nil {
		return nil, err
	}
	t := d.table
	var all []controller.Value
	for place := range t.foreign {
		if have := t.hidden(place); len(have) > 0 && made[place] && t.ours[place] == nil {
			all = append(all, controller.Value{Key: place.key(), Message: t.describe(place, have)})
		}
	}
	for place, have := range t.ours {
		t.requested[place] = true
		value := proto.Message(wants[place].value)
		if way, right := t.made(place, have); !right || wants[place].value == nil || way != wants[place].way {
			value = t.describe(place, have)
		}
		all = append(all, controller.Value{Key: place.key(), Message: value})
	}
	return all, nil
}

// made returns the way to a destination if its own routes are one complete route.
func (t *routeTable) made(place routePlace, have []rtnl.Route) (way routeWay, complete bool) {
	if len(have) != 1 || len(t.foreign[place]) > 0 {
		return way, false
	}
	way, plain := t.way(have[0])
	return way, plain && t.reaches(have[0], way)
}

// describe returns a value that shows own routes which are not the wanted ones.
func (t *routeTable) describe(place routePlace, have []rtnl.Route) *kv.NodeRoute {
	value := &kv.NodeRoute{Dst: place.dst.String(), Table: place.table}
	if way, complete := t.made(place, have); complete {
		value.Transport, value.Vni = way.transport, way.vni
		if way.gateway.IsValid() {
			value.Gateway = way.gateway.String()
		}
		return value
	}
	var all []string
	for _, r := range have {
		all = append(all, routeText(r))
	}
	if foreign := t.foreign[place]; len(foreign) > 0 {
		all = append(all, "beside "+routeText(foreign[0]))
	}
	value.Gateway = strings.Join(all, "; ")
	return value
}

// routePlace identifies the routes of one value.
type routePlace struct {
	table uint32 // 0: the main table
	dst   netip.Prefix
}

func (p routePlace) key() string { return kv.SinkRouteKey(p.dst.String(), p.table) }

// id returns the number of the table in the kernel.
func (p routePlace) id() uint32 {
	if p.table == 0 {
		return unix.RT_TABLE_MAIN
	}
	return p.table
}
