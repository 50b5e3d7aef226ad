// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// change changes the kernel's routes and can undo that.
type change struct {
	form   form
	kernel kernel
	done   []step
}

// step holds one route that was added or removed.
type step struct {
	removed bool
	route   netlink.Route
}

// apply applies one key, or undoes its steps.
func (c *change) apply(t *table, w want) error {
	began := len(c.done)
	if err := c.converge(t, w); err != nil {
		return errors.Join(err, c.undo(began))
	}
	return nil
}

func (c *change) converge(t *table, w want) error {
	ours := t.ours[w.dst]
	if w.message == nil {
		_, err := c.remove(slices.Concat(ours, t.hidden[w.dst]))
		return err
	}
	if r, taken := t.foreign[w.dst]; taken {
		return fmt.Errorf("%w: %s", errForeign, describe(r))
	}
	wanted, err := c.form.route(w.dst, w.gateway)
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		return c.add(wanted)
	}
	keep, stale := -1, -1
	for i, r := range ours {
		gateway, plain := c.form.gateway(r)
		switch {
		case !plain || gateway != w.gateway:
		case t.reaches(r, gateway):
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
func (c *change) replace(ours []netlink.Route, stale int, wanted netlink.Route) error {
	err := c.do(step{route: wanted}, c.kernel.RouteAppend)
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

func (c *change) add(r netlink.Route) error {
	err := c.do(step{route: r}, c.kernel.RouteAdd)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w, made a moment ago: %w", errForeign, err)
	}
	return err
}

// remove removes routes. all is false if some were gone already.
func (c *change) remove(routes []netlink.Route) (all bool, err error) {
	all = true
	for _, r := range routes {
		for _, hop := range hops(r) {
			err := c.do(step{removed: true, route: hop}, c.kernel.RouteDel)
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
func (c *change) do(s step, operation func(*netlink.Route) error) error {
	if err := operation(&s.route); err != nil {
		verb := "add "
		if s.removed {
			verb = "remove "
		}
		return fmt.Errorf("%s%s: %w", verb, describe(s.route), explain(err))
	}
	c.done = append(c.done, s)
	return nil
}

// undo undoes all steps from the given one on, in the opposite order.
func (c *change) undo(from int) error {
	var errs []error
	for _, s := range slices.Backward(c.done[from:]) {
		if s.removed {
			if err := c.kernel.RouteAppend(&s.route); err != nil && !errors.Is(err, unix.EEXIST) {
				errs = append(errs, fmt.Errorf("undo: put back %s: %w", describe(s.route), explain(err)))
			}
		} else if err := c.kernel.RouteDel(&s.route); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("undo: remove %s: %w", describe(s.route), explain(err)))
		}
	}
	c.done = c.done[:from]
	return errors.Join(errs...)
}

// explain adds the meaning of an error of the kernel.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: it needs CAP_NET_ADMIN in the network namespace", err)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("%w: no connected route reaches the gateway", err)
	}
	return err
}
