// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

func begun(s *stage) error {
	before := time.Now()
	began, err := s.impl.Read(context.Background())
	switch {
	case err != nil:
		return fmt.Errorf("call Read: %w", err)
	case began.Before(before) || began.After(time.Now()):
		return fmt.Errorf(
			"the time that Read returned is %s: want the time at which it began, %s or later",
			began,
			before,
		)
	}
	return nil
}

func empty(s *stage) error {
	n, err := s.node("a")
	if err != nil {
		return err
	}
	if all, _, err := n.read(); err != nil || len(all) > 0 {
		return errors.Join(err, fmt.Errorf("call State: %d addresses of a node that has nothing", len(all)))
	}
	return nil
}

func limited(s *stage) error {
	n, err := s.node("a")
	if err != nil {
		return err
	}
	had := 0
	for _, units := range []int{3, 1, 4} {
		if err := n.take(context.Background(), units*s.p.Unit); err != nil {
			return fmt.Errorf("take %d addresses: %w", units*s.p.Unit, err)
		}
		_, count, err := n.read()
		if err != nil {
			return err
		}
		if got := count - had; got <= 0 || got > units*s.p.Unit {
			return fmt.Errorf(
				"take %d addresses: there are %d more: want some, and no more than were asked for",
				units*s.p.Unit,
				got,
			)
		}
		had = count
	}
	state, err := n.state()
	if err == nil && state.Most > 0 && had > state.Most {
		err = fmt.Errorf("call State: the node can have %d addresses, and has %d", state.Most, had)
	}
	return err
}

func disjoint(s *stage) error {
	var all [2]v1alpha1.AllocationMap
	for i, name := range []string{"a", "b"} {
		n, err := s.node(name)
		if err == nil {
			err = n.take(context.Background(), 4*s.p.Unit)
		}
		if err == nil {
			all[i], _, err = n.read()
		}
		if err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	for x := range all[0] {
		p, _ := handshake.ParseKey(x)
		for y := range all[1] {
			if q, _ := handshake.ParseKey(y); p.Overlaps(q) {
				return fmt.Errorf("node a has %s, and node b has %s", x, y)
			}
		}
	}
	return nil
}

func released(s *stage) error {
	n, err := s.node("a")
	if err == nil {
		err = n.take(context.Background(), 4*s.p.Unit)
	}
	if err != nil {
		return err
	}
	before, _, err := n.read()
	if err != nil {
		return err
	}
	keys, err := n.spare(2 * s.p.Unit)
	if err != nil {
		return err
	}
	again, err := n.spare(2 * s.p.Unit)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return errors.New("call Spare: nothing is chosen of a node that uses nothing")
	case !slices.Equal(keys, again):
		return fmt.Errorf("call Spare: %v, and then %v: want the same choice while nothing changes", keys, again)
	case len(keys) > 2:
		return fmt.Errorf("call Spare: %d units are chosen: want 2 at most", len(keys))
	}
	for _, key := range keys {
		at, ok := before[key]
		if !ok {
			return fmt.Errorf("call Spare: %q is chosen, and the node does not have it", key)
		}
		for _, what := range []string{"the first time", "once more"} {
			if err := n.release(context.Background(), at, key); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		delete(before, key)
	}
	after, _, err := n.read()
	if err != nil {
		return err
	}
	want, got := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))
	if !slices.Equal(want, got) {
		return fmt.Errorf("call Release of %v: the node has %v: want %v", keys, got, want)
	}
	return nil
}

func unused(s *stage) error {
	n, err := s.node("a")
	if err == nil {
		err = n.take(context.Background(), 4*s.p.Unit)
	}
	if err != nil {
		return err
	}
	all, count, err := n.read()
	if err != nil {
		return err
	}
	used := n.set.DeepCopy()
	used.Spec.IPAM.Pool, used.Status.IPAM.Used = all, v1alpha1.AllocationMap{}
	for key := range all {
		p, _ := handshake.ParseKey(key)
		used.Status.IPAM.Used[p.Addr().String()] = v1alpha1.AllocationIP{Owner: "default/pod"}
	}
	n.set = used
	state, err := n.state()
	if err != nil {
		return err
	}
	if keys, err := n.spare(count); err != nil || len(keys) > 0 {
		return errors.Join(err, fmt.Errorf("call Spare: %v are chosen, and an address of each is used", keys))
	}
	if state.Prefixes && state.Used < len(all) {
		return fmt.Errorf(
			"call State: %d addresses are used: want all addresses of %d used prefixes",
			state.Used,
			len(all),
		)
	}
	return nil
}

// ended calls with a context that has ended. What such a call has done is not known
// then, but it must return, and the node can be read.
func ended(s *stage) error {
	n, err := s.node("a")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, call := range map[string]func(){
		"Allocate": func() { _ = n.take(ctx, s.p.Unit) },
		"State":    func() { _, _ = s.impl.State(ctx, n.set) },
		"Read":     func() { _ = s.readAll(ctx) },
	} {
		err := within(s.p.Patience, func() error {
			call()
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s, with a context that has ended: %w", name, err)
		}
	}
	_, _, err = n.read()
	return err
}
