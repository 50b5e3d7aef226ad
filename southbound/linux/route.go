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

// routes makes the routes to pod subnets of other nodes, the values below "route/".
type routes struct {
	host    *rtnl.Socket
	monitor *monitor
	table   *routeTable // as read for this transaction; nil: to be read

	mu sync.Mutex // because Watch reads what follows
	// watched holds the wanted values, and those that stand in. IPv6 shows a route of these
	// places without our protocol if another program adds a hop.
	watched map[routePlace]routeWay
}

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

// kind returns the kind of routes.
func (d *routes) kind() southbound.Kind[routeWant] {
	return southbound.Kind[routeWant]{
		Name:     "linux route",
		Prefix:   kv.SinkRoutePrefix,
		Read:     readRoute,
		Needs:    routeWant.tunnel,
		Same:     routeWant.same,
		StandIn:  routeWant.unreachable,
		Prepare:  d.prepare,
		Create:   d.create,
		Delete:   d.remove,
		Retrieve: d.retrieve,
		Watch:    d.follow,
		Close:    d.host.Close,
	}
}

// prepare reads the kernel's routes of the families of keys.
func (d *routes) prepare(ctx context.Context, keys []string) error {
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

// create makes the route of a value, or corrects the present one.
func (d *routes) create(ctx context.Context, _ string, want routeWant) error {
	d.watch(want)
	t, err := d.current(ctx, want.place, want.way.routeLink)
	if err != nil {
		return southbound.Unchanged(err)
	}
	return (&routeChange{d.host, t, want.place}).converge(want)
}

// remove removes the own routes to the destination of a value.
func (d *routes) remove(ctx context.Context, key string, _ southbound.Made[routeWant]) error {
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

// retrieve returns the values of the own routes. A route of a form that this package never
// makes, or beside a foreign one, has a description as its gateway.
func (d *routes) retrieve(ctx context.Context, wanted []southbound.Wanted[routeWant]) ([]controller.Value, error) {
	requested, wants := d.places(), map[routePlace]routeWant{}
	made := maps.Clone(requested)
	for _, v := range wanted {
		wants[v.Plan.place], requested[v.Plan.place] = v.Plan, true
		d.watch(v.Plan)
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
