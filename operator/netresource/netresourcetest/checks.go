// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
)

func begun(s *stage) error {
	before := time.Now()
	switch at := s.impl.Resync(context.Background()); {
	case at.IsZero():
		return errors.New("read the provider with Resync: it returned the zero time")
	case at.Before(before) || at.After(time.Now()):
		return fmt.Errorf(
			"the time that Resync returned is %s: want the time at which it began, %s or later",
			at,
			before,
		)
	}
	return nil
}

func empty(s *stage) error {
	ops, _, err := s.node("a")
	if err != nil {
		return err
	}
	if all, _, err := s.read(ops); err != nil || len(all) > 0 {
		return errors.Join(err, fmt.Errorf("ResyncInterfacesAndIPs: %d addresses of a node that has nothing", len(all)))
	}
	return nil
}

func limited(s *stage) error {
	ops, _, err := s.node("a")
	if err != nil {
		return err
	}
	had := 0
	for _, units := range []int{3, 1, 4} {
		if err := s.take(context.Background(), ops, units*s.p.Unit); err != nil {
			return fmt.Errorf("take %d addresses: %w", units*s.p.Unit, err)
		}
		_, n, err := s.read(ops)
		if err != nil {
			return err
		}
		if got := n - had; got <= 0 || got > units*s.p.Unit {
			return fmt.Errorf(
				"take %d addresses: there are %d more: want some, and no more than were asked for",
				units*s.p.Unit,
				got,
			)
		}
		had = n
	}
	if most := ops.GetMaximumAllocatableIPv4(); most > 0 && had > most {
		return fmt.Errorf("GetMaximumAllocatableIPv4 is %d, and the node has %d addresses", most, had)
	}
	return nil
}

func disjoint(s *stage) error {
	var all [2]v1alpha1.AllocationMap
	for i, name := range []string{"a", "b"} {
		ops, _, err := s.node(name)
		if err == nil {
			err = s.take(context.Background(), ops, 4*s.p.Unit)
		}
		if err == nil {
			all[i], _, err = s.read(ops)
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
	ops, _, err := s.node("a")
	if err == nil {
		err = s.take(context.Background(), ops, 4*s.p.Unit)
	}
	if err != nil {
		return err
	}
	before, _, err := s.read(ops)
	if err != nil {
		return err
	}
	a, again := ops.PrepareIPRelease(2*s.p.Unit, s.log), ops.PrepareIPRelease(2*s.p.Unit, s.log)
	switch {
	case a == nil || len(a.IPsToRelease) == 0:
		return errors.New("PrepareIPRelease: nothing is chosen of a node that uses nothing")
	case !reflect.DeepEqual(a, again):
		return fmt.Errorf(
			"PrepareIPRelease: %v, and then %v: want the same choice while nothing changes",
			a.IPsToRelease,
			again.IPsToRelease,
		)
	case len(a.IPsToRelease) > 2:
		return fmt.Errorf("PrepareIPRelease: %d units are chosen: want 2 at most", len(a.IPsToRelease))
	}
	for _, key := range a.IPsToRelease {
		at, ok := before[key]
		if !ok {
			return fmt.Errorf("PrepareIPRelease: %q is chosen, and the node does not have it", key)
		}
		give := &netresource.ReleaseAction{
			InterfaceID:  at.Resource,
			PoolID:       v1alpha1.PoolID(at.SubnetID),
			IPsToRelease: []string{key},
		}
		for _, what := range []string{"the first time", "once more"} {
			if err := ops.ReleaseIPs(context.Background(), give); err != nil {
				return fmt.Errorf("ReleaseIPs of %q, %s: %w", key, what, err)
			}
		}
		delete(before, key)
	}
	after, _, err := s.read(ops)
	if err != nil {
		return err
	}
	want, got := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))
	if !slices.Equal(want, got) {
		return fmt.Errorf("ReleaseIPs of %v: the node has %v: want %v", a.IPsToRelease, got, want)
	}
	return nil
}

func unused(s *stage) error {
	ops, n, err := s.node("a")
	if err == nil {
		err = s.take(context.Background(), ops, 4*s.p.Unit)
	}
	if err != nil {
		return err
	}
	all, count, err := s.read(ops)
	if err != nil {
		return err
	}
	n.Spec.IPAM.Pool, n.Status.IPAM.Used = all, v1alpha1.AllocationMap{}
	for key := range all {
		p, _ := handshake.ParseKey(key)
		n.Status.IPAM.Used[p.Addr().String()] = v1alpha1.AllocationIP{Owner: "default/pod"}
	}
	if err := s.manager.Update(n); err != nil {
		return fmt.Errorf("UpdatedNode: %w", err)
	}
	if a := ops.PrepareIPRelease(count, s.log); a != nil && len(a.IPsToRelease) > 0 {
		return fmt.Errorf("PrepareIPRelease: %v are chosen, and an address of each is used", a.IPsToRelease)
	}
	if used := ops.GetUsedIPWithPrefixes(); ops.IsPrefixDelegated() && used < len(all) {
		return fmt.Errorf("GetUsedIPWithPrefixes is %d: want all addresses of %d used prefixes", used, len(all))
	}
	return nil
}

// ended calls with a context that has ended. What such a call has done is not known
// then, but it must return, and the node can be read.
func ended(s *stage) error {
	ops, _, err := s.node("a")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, call := range map[string]func(){
		"AllocateIPs or CreateInterface": func() { _ = s.take(ctx, ops, s.p.Unit) },
		"ResyncInterfacesAndIPs":         func() { _, _ = ops.ResyncInterfacesAndIPs(ctx, s.log) },
		"Resync":                         func() { s.impl.Resync(ctx) },
	} {
		err := within(s.p.Patience, func() error {
			call()
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s, with a context that has ended: %w", name, err)
		}
	}
	_, _, err = s.read(ops)
	return err
}
