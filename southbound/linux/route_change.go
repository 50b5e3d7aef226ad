// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/southbound"
)

// routeChange changes the routes of one value and can undo that.
type routeChange struct {
	kernel routeKernel
	table  *routeTable
	done   []routeStep
}

// routeStep holds one route that was added or removed.
type routeStep struct {
	removed bool
	route   netlink.Route
}

// converge makes the wanted route the only own one to its destination.
func (c *routeChange) converge(w routeWant) error {
	ours := c.table.ours[w.place]
	if r, taken := c.table.foreign[w.place]; taken {
		return fmt.Errorf("%w: %s", southbound.ErrForeign, describeRoute(r))
	}
	wanted, err := kernelRoute(w, c.table)
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		return c.add(wanted)
	}
	keep, stale := -1, -1
	for i, r := range ours {
		way, plain := c.table.way(r)
		switch {
		case !plain || way != w.way:
		case c.table.reaches(r, way):
			keep = i
		default:
			stale = i
		}
	}
	if keep >= 0 {
		_, err := c.remove(slices.Delete(slices.Clone(ours), keep, keep+1))
		return err
	}
	return c.replace(ours, stale, wanted)
}

// replace replaces ours by wanted. One of them may be stale: of the same gateway, on an
// interface that seems wrong.
func (c *routeChange) replace(ours []netlink.Route, stale int, wanted netlink.Route) error {
	err := c.do(routeStep{route: wanted}, c.kernel.RouteAppend)
	if errors.Is(err, unix.EEXIST) && stale >= 0 {
		_, err := c.remove(slices.Delete(slices.Clone(ours), stale, stale+1))
		return err // the kernel would choose the same interface
	}
	if errors.Is(err, unix.EEXIST) { // it is a hop of one of them
		if _, err := c.remove(ours); err != nil {
			return err
		}
		return c.add(wanted)
	}
	if err != nil {
		return err
	}
	all, err := c.remove(ours)
	if err != nil || all {
		return err
	}
	// Another program removed ours, so wanted may be beside a route of that program: add
	// it again, with NLM_F_EXCL.
	if _, err := c.remove([]netlink.Route{wanted}); err != nil {
		return err
	}
	return c.add(wanted)
}

func (c *routeChange) add(r netlink.Route) error {
	err := c.do(routeStep{route: r}, c.kernel.RouteAdd)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w, made a moment ago: %w", southbound.ErrForeign, err)
	}
	return err
}

// remove removes routes. all is false if some were gone already.
func (c *routeChange) remove(routes []netlink.Route) (all bool, err error) {
	all = true
	for _, r := range routes {
		for _, hop := range hops(r) {
			err := c.do(routeStep{removed: true, route: hop}, c.kernel.RouteDel)
			if errors.Is(err, unix.ESRCH) {
				all = false
				continue
			}
			if err != nil {
				return false, err
			}
		}
	}
	return all, nil
}

// do does a step and records it if it succeeded.
func (c *routeChange) do(s routeStep, operation func(*netlink.Route) error) error {
	if err := operation(&s.route); err != nil {
		verb := "add "
		if s.removed {
			verb = "remove "
		}
		return fmt.Errorf("%s%s: %w", verb, describeRoute(s.route), explainRoute(err))
	}
	c.done = append(c.done, s)
	return nil
}

// undo undoes all steps, in the opposite order.
func (c *routeChange) undo() error {
	var errs []error
	for _, s := range slices.Backward(c.done) {
		if s.removed {
			if err := c.kernel.RouteAppend(&s.route); err != nil && !errors.Is(err, unix.EEXIST) {
				errs = append(errs, fmt.Errorf("undo: put back %s: %w", describeRoute(s.route), explainRoute(err)))
			}
		} else if err := c.kernel.RouteDel(&s.route); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("undo: remove %s: %w", describeRoute(s.route), explainRoute(err)))
		}
	}
	return errors.Join(errs...)
}

// explainRoute adds the meaning of an error of the kernel.
func explainRoute(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: it needs CAP_NET_ADMIN in the network namespace", err)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("%w: no connected route reaches the gateway", err)
	}
	return err
}
