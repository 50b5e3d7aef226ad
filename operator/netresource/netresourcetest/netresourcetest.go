// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package netresourcetest checks that a provider keeps the contract of
// netresource.AllocationImplementation and netresource.NetResourceOperations, as
// the manager relies on it.
//
// Each check makes a provider of its own and calls it in the order in which the
// manager does. A check fails with an error, also if the provider panics or does
// not return.
//
// Example: in a test of the provider,
//
//	netresourcetest.Run(t, netresourcetest.Provider{
//		New:  func() netresource.AllocationImplementation { return cloudpool.New(config) },
//		Unit: 1,
//	})
package netresourcetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/memapi"
	"github.com/cadastre/cadastre/operator/netresource"
)

// Provider is the provider under test.
type Provider struct {
	// New makes a provider without nodes, which can give each of two nodes at least
	// twelve units.
	New func() netresource.AllocationImplementation
	// Unit is the number of addresses of the smallest unit that the provider gives:
	// 1, or the size of a prefix.
	Unit int
	// Patience limits a call whose context has ended; 0: 30 seconds.
	Patience time.Duration
}

// Check is one part of the contract.
type Check struct {
	Name string
	run  func(*stage) error
}

// Run runs all checks.
func Run(t *testing.T, p Provider) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(p); err != nil {
				t.Error(err)
			}
		})
	}
}

// Checks returns all checks.
func Checks() []Check {
	return []Check{
		{"Resync returns when it has begun", begun},
		{"a node that has nothing has an empty map", empty},
		{"no more addresses are taken than are asked for", limited},
		{"nodes have different addresses", disjoint},
		{"addresses are released once, and again", released},
		{"used addresses are not chosen for release", unused},
		{"calls return when their context has ended", ended},
	}
}

// Run runs the check with a new provider.
func (c Check) Run(p Provider) error {
	s := &stage{p: p, impl: p.New(), log: slog.New(slog.DiscardHandler)}
	if s.p.Patience == 0 {
		s.p.Patience = 30 * time.Second
	}
	var err error
	s.manager, err = netresource.New(netresource.Config{
		Instances: s.impl, API: memapi.New(), Log: s.log, QPS: -1,
		CallTimeout: 30 * s.p.Patience, // Update waits for a thirtieth of it
	})
	if err != nil {
		return fmt.Errorf("check %q: %w", c.Name, err)
	}
	return within(10*s.p.Patience, func() error { return c.run(s) })
}

// within returns the error of do, also if it panics or does not return in time.
func within(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("the provider has panicked: %v", p)
			}
		}()
		done <- do()
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("the provider does not return within %s", limit)
	}
}

// stage is one run of a check.
type stage struct {
	p       Provider
	impl    netresource.AllocationImplementation
	manager *netresource.NetResourceSetManager // makes the nodes; it is not started
	log     *slog.Logger
}

// node returns the operations of a new node, after the provider was read.
func (s *stage) node(name string) (netresource.NetResourceOperations, *v1alpha1.NetResourceSet, error) {
	n := &v1alpha1.NetResourceSet{}
	n.Name = name
	if s.impl.Resync(context.Background()).IsZero() {
		return nil, nil, errors.New("read the provider with Resync: it returned the zero time")
	}
	s.manager.SetInstancesAPIReadiness(true)
	if err := s.manager.Update(n); err != nil {
		return nil, nil, fmt.Errorf("CreateNetResource: %w", err)
	}
	ops := s.manager.Get(name).Ops()
	if ops == nil {
		return nil, nil, fmt.Errorf(
			"CreateNetResource: the provider has panicked, or has not returned within %s",
			s.p.Patience,
		)
	}
	return ops, n, nil
}

// read returns what a node has, and how many addresses those are.
func (s *stage) read(ops netresource.NetResourceOperations) (v1alpha1.AllocationMap, int, error) {
	all, err := ops.ResyncInterfacesAndIPs(context.Background(), s.log)
	if err == nil && all == nil {
		err = errors.New("neither a map nor an error: want an empty map for a node that has nothing")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("ResyncInterfacesAndIPs: %w", err)
	}
	n := 0
	for key := range all {
		p, err := handshake.ParseKey(key)
		if err != nil {
			return nil, 0, fmt.Errorf("ResyncInterfacesAndIPs: key %q %w", key, err)
		}
		n += 1 << min(p.Addr().BitLen()-p.Bits(), 20)
	}
	return all, n, nil
}

// take takes up to want addresses as the manager does.
func (s *stage) take(ctx context.Context, ops netresource.NetResourceOperations, want int) error {
	a, err := ops.PrepareIPAllocation(s.log)
	switch {
	case err != nil:
		return fmt.Errorf("PrepareIPAllocation: %w", err)
	case a == nil:
		return errors.New("PrepareIPAllocation: neither an action nor an error: want one of them")
	}
	room := max(a.AvailableForAllocationIPv4, a.AvailableForAllocationIPv6)
	if room == 0 && a.AvailableInterfaces == 0 {
		return errors.New(
			"PrepareIPAllocation: no address and no interface is available: the suite needs twelve units for a node",
		)
	}
	if room > 0 {
		a.MaxIPsToAllocate = min(room, want)
		a.AvailableForAllocationIPv4 = min(a.AvailableForAllocationIPv4, a.MaxIPsToAllocate)
		a.AvailableForAllocationIPv6 = min(a.AvailableForAllocationIPv6, a.MaxIPsToAllocate)
		return ops.AllocateIPs(ctx, a)
	}
	a.MaxIPsToAllocate = want
	_, _, err = ops.CreateInterface(ctx, a, s.log)
	return err
}

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
