// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// routeChange changes the routes of one value. It has no undo: if it fails on the way, the next
// one finds the routes by their protocol. It removes nothing before it knows that no route of
// another program is there, because nothing could restore what it has removed then.
type routeChange struct {
	host  *rtnl.Socket
	table *routeTable
	place routePlace
}

// converge makes the wanted route the only own one to its destination. It appends the route and
// then removes the others, so that packets find one at each moment. NLM_F_REPLACE would take one
// request, but may replace a route of another program.
func (c *routeChange) converge(w routeWant) error {
	if foreign := c.table.foreign[c.place]; len(foreign) > 0 {
		return fmt.Errorf("%w: %s", southbound.ErrForeign, routeText(foreign[0]))
	}
	wanted, err := w.way.route(c.place, c.table.links)
	if err != nil {
		return southbound.Unchanged(err)
	}
	ours, err := c.single(c.table.ours[c.place])
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		return c.add(nil, wanted)
	}
	same := func(r rtnl.Route) bool { way, plain := c.table.way(r); return plain && way == w.way }
	keep := slices.IndexFunc(ours, func(r rtnl.Route) bool { return same(r) && c.table.reaches(r, w.way) })
	if keep >= 0 {
		_, err := c.remove(slices.Delete(slices.Clone(ours), keep, keep+1))
		return err
	}
	alike := func(r rtnl.Route) bool { return r.Gateway == wanted.Gateway }
	switch err := c.run(addRoute(wanted, unix.NLM_F_APPEND)); {
	case !errors.Is(err, unix.EEXIST):
		if err != nil {
			return err
		}
	case slices.ContainsFunc(ours, same): // the kernel would choose the same interface again
		_, err := c.remove(slices.DeleteFunc(slices.Clone(ours), same))
		return err
	case slices.ContainsFunc(ours, alike): // with other settings, which IPv6 does not compare
		return c.add(ours, wanted)
	default:
		return fmt.Errorf("%w, made a moment ago: %w", southbound.ErrForeign, err)
	}
	all, err := c.remove(ours)
	if err != nil || all {
		return err
	}
	// Another program removed ours, so wanted may be beside a route of that program.
	return c.add([]rtnl.Route{wanted}, wanted)
}

// single removes own hops until no IPv6 route has several. The kernel shows such routes as one,
// with the protocol of the first. Whose the others are it tells only if they are to be removed:
// if one of them is not ours, the first stays too.
func (c *routeChange) single(ours []rtnl.Route) ([]rtnl.Route, error) {
	var rest []rtnl.Route
	for _, r := range ours {
		all := hops(r)
		gone, err := c.remove(all[1:])
		if err != nil {
			return nil, err
		}
		if !gone {
			return nil, fmt.Errorf("%w: %s has a hop of it", southbound.ErrForeign, routeText(r))
		}
		rest = append(rest, all[0])
	}
	return rest, nil
}

// add adds a route if there is none of its metric, after it has removed others.
func (c *routeChange) add(former []rtnl.Route, r rtnl.Route) error {
	var all []*rtnl.Request
	for _, f := range former {
		remove := removeRoute(f)
		remove.Allow = []unix.Errno{unix.ESRCH}
		all = append(all, remove)
	}
	err := c.run(append(all, addRoute(r, unix.NLM_F_EXCL))...)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w, made a moment ago: %w", southbound.ErrForeign, err)
	}
	return err
}

// remove removes own routes. all is false if some were gone already, or are foreign.
func (c *routeChange) remove(routes []rtnl.Route) (all bool, err error) {
	var requests []*rtnl.Request
	for _, r := range routes {
		for _, hop := range hops(r) {
			requests = append(requests, removeRoute(hop))
		}
	}
	err = c.run(requests...)
	all = true
	for _, r := range requests {
		switch {
		case errors.Is(r.Err, unix.ESRCH):
			all = false
		case r.Err != nil:
			return false, r.Err
		}
	}
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	return all, err
}

// run sends requests. If the kernel has refused all of them, the error says that nothing was
// changed.
func (c *routeChange) run(requests ...*rtnl.Request) error {
	if len(requests) == 0 {
		return nil
	}
	err := c.host.Run(requests)
	if err == nil || slices.ContainsFunc(requests, func(r *rtnl.Request) bool { return r.Err == nil }) {
		c.table.requested[c.place] = false
		return err
	}
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		err = fmt.Errorf("%w: no connected route reaches the gateway", err)
	}
	if c.table.requested[c.place] {
		return southbound.Unchanged(err)
	}
	return err
}
