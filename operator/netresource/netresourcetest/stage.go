// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
)

// stage is one run of a check.
type stage struct {
	p         Provider
	world     *World
	impl      netresource.Provider
	instances map[string]string // of the nodes
	log       *slog.Logger
}

// node is a node that a check makes calls for as the manager does.
type node struct {
	s   *stage
	set *v1alpha1.NetResourceSet
}

// node returns a new node, after the provider was read.
func (s *stage) node(name string) (*node, error) {
	n := &node{s, s.object(name)}
	err := within(s.p.Patience, func() error {
		if err := s.readAll(context.Background()); err != nil {
			return err
		}
		_, _, err := n.read()
		return err
	})
	return n, err
}

// readAll makes the provider read its state.
func (s *stage) readAll(ctx context.Context) error {
	if _, err := s.impl.Read(ctx); err != nil {
		return fmt.Errorf("call Read: %w", err)
	}
	return nil
}

// state returns the provider's state of a node.
func (n *node) state() (netresource.State, error) {
	state, err := n.s.impl.State(context.Background(), n.set)
	if err == nil && state.Available == nil {
		err = errors.New("neither a map nor an error: want an empty map for a node that has nothing")
	}
	if err != nil {
		return state, fmt.Errorf("call State: %w", err)
	}
	return state, nil
}

// read returns what a node has, and how many addresses those are.
func (n *node) read() (all v1alpha1.AllocationMap, count int, err error) {
	state, err := n.state()
	if err != nil {
		return nil, 0, err
	}
	for key := range state.Available {
		p, err := handshake.ParseKey(key)
		if err != nil {
			return nil, 0, fmt.Errorf("call State: key %q %w", key, err)
		}
		count += 1 << min(p.Addr().BitLen()-p.Bits(), 20)
	}
	return state.Available, count, nil
}

// errFull is returned if a node can have no more addresses.
var errFull = errors.New(
	"call Allocate: no address and no interface is available: the suite needs twelve units for a node",
)

// take takes up to want addresses.
func (n *node) take(ctx context.Context, want int) error {
	got, err := n.s.impl.Allocate(ctx, n.set, want)
	switch {
	case err != nil:
		return fmt.Errorf("call Allocate: %w", err)
	case got.Addresses == 0:
		return errFull
	}
	return nil
}

// spare returns the addresses that the provider chooses to release.
func (n *node) spare(excess int) ([]string, error) {
	keys, err := n.s.impl.Spare(context.Background(), n.set, excess)
	if err != nil {
		return nil, fmt.Errorf("call Spare: %w", err)
	}
	return keys, nil
}

// release releases addresses of one interface or pool.
func (n *node) release(ctx context.Context, at v1alpha1.AllocationIP, keys ...string) error {
	err := n.s.impl.Release(ctx, n.set, &netresource.ReleaseAction{
		InterfaceID: at.Resource, PoolID: v1alpha1.PoolID(at.SubnetID), IPsToRelease: keys,
	})
	if err != nil {
		return fmt.Errorf("call Release of %v: %w", keys, err)
	}
	return nil
}

// machines creates the machines of three nodes, so that the first reading shows them.
func (s *stage) machines(ctx context.Context) error {
	if s.world.Machine == nil {
		return nil
	}
	for _, name := range []string{"a", "b", "c"} {
		id, err := s.world.Machine(ctx, name)
		if err != nil {
			return fmt.Errorf("create the machine of node %s: %w", name, err)
		}
		s.instances[name] = id
	}
	return nil
}

// object returns the NetResourceSet of a node.
func (s *stage) object(name string) *v1alpha1.NetResourceSet {
	n := &v1alpha1.NetResourceSet{}
	n.Name, n.Spec.InstanceID = name, s.instances[name]
	return n
}

// instance returns the ID of a node's machine.
func (s *stage) instance(name string) string { return cmp.Or(s.instances[name], name) }

// faults returns an error if the check cannot plan faults, or cannot see what they do.
func (s *stage) faults() error {
	if s.world.Plan == nil || s.world.Truth == nil {
		return fmt.Errorf("the provider has no cloud with faults: %w", errors.ErrUnsupported)
	}
	return nil
}

// wait waits until a reading shows all changes so far.
func (s *stage) wait() {
	if s.p.Lag > 0 {
		time.Sleep(s.p.Lag + s.p.Lag/10)
	}
}

// agrees waits until a reading of the provider shows what a node's machine has.
func (s *stage) agrees(n *node) error {
	s.wait()
	return s.eventually("compare a reading with the cloud", func() error {
		ctx, cancel := s.deadline()
		defer cancel()
		if err := s.readAll(ctx); err != nil {
			return err
		}
		return s.agree(n)
	})
}

// eventually repeats do until it works or Recovery is over.
func (s *stage) eventually(what string, do func() error) error {
	pause := max(s.p.Lag/4, 100*time.Millisecond)
	for waited := time.Duration(0); ; waited += pause {
		err := do()
		if err == nil {
			return nil
		}
		if waited >= s.p.Recovery {
			return fmt.Errorf("%s, for %s after the faults have ended: %w", what, s.p.Recovery, err)
		}
		time.Sleep(pause)
	}
}

// truth returns the blocks of each machine, after it has compared them with the limits.
func (s *stage) truth() (map[string][]netip.Prefix, Truth, error) {
	if s.world.Truth == nil {
		return nil, Truth{}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.p.Patience)
	defer cancel()
	t, err := s.world.Truth(ctx)
	if err != nil {
		return nil, t, fmt.Errorf("read the cloud without faults: %w", err)
	}
	all, interfaces, on := map[string][]netip.Prefix{}, map[string]int{}, map[netip.Prefix]string{}
	for _, i := range t.Interfaces {
		all[i.Instance] = append(all[i.Instance], i.Blocks...)
		interfaces[i.Instance]++
		var units [2]int
		for _, b := range i.Blocks {
			if units[familyOf(b)]++; on[b] != "" {
				return nil, t, fmt.Errorf("%s is on interface %s and on %s", b, on[b], i.ID)
			}
			on[b] = i.ID
		}
		if most := s.p.Limits.Units; most > 0 && max(units[0], units[1]) > most {
			return nil, t, fmt.Errorf("interface %s has %v: want %d of a family at most", i.ID, i.Blocks, most)
		}
	}
	for instance, n := range interfaces {
		if most := s.p.Limits.Interfaces; most > 0 && n > most {
			return nil, t, fmt.Errorf("machine %s has %d interfaces: want %d at most", instance, n, most)
		}
	}
	return all, t, nil
}

func familyOf(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 1
	}
	return 0
}

// agree returns an error unless the node's reading is what its machine has.
func (s *stage) agree(n *node) error {
	if s.world.Truth == nil {
		return nil
	}
	all, _, err := s.truth()
	if err != nil {
		return err
	}
	has, _, err := n.read()
	if err != nil {
		return err
	}
	return same(n.set.Name, slices.Sorted(maps.Keys(has)), all[s.instance(n.set.Name)])
}

// same returns an error unless the keys of a node are the blocks of its machine.
func same(name string, keys []string, blocks []netip.Prefix) error {
	var want []string
	for _, b := range blocks {
		want = append(want, handshake.Key(b))
	}
	if slices.Sort(want); !slices.Equal(keys, want) {
		return fmt.Errorf("node %s: the provider shows %v, and its machine has %v", name, keys, want)
	}
	return nil
}

// clean waits until nothing is left that the provider has created and no machine has.
func (s *stage) clean() error {
	return s.eventually("wait until the provider deletes its orphans", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), s.p.Deadline)
		defer cancel()
		_ = s.readAll(ctx) // what it leaves is in the truth
		_, t, err := s.truth()
		if err == nil && len(t.Orphans) > 0 {
			err = fmt.Errorf("no machine has %v", t.Orphans)
		}
		return err
	})
}
