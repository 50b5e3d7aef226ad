// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// Server is the node's side of a CNI IPAM plugin: addresses by container. An
// ADD can be repeated, a DEL frees what its container holds and nothing of a
// later one. Use NewServer; any goroutine may call it. Of allocators of the caller
// it remembers in memory what each container holds; Endpoints and Sweep do not see it.
type Server struct {
	m    *IPAM
	door string

	mu   sync.Mutex
	gone map[uint64]bool // claims that were found to be gone by the last Sweep
}

var _ CNIIPAMServer = (*Server)(nil)

// cni is what the door of a Server has behind that of its IPAM.
const cni = "/cni"

// NewServer makes a Server of m.
func NewServer(m *IPAM) *Server { return &Server{m: m, door: m.deps.Door + cni} }

func (s *Server) key(owner, containerID string) ledger.Key {
	return ledger.Key{Network: s.door, ContainerID: owner, IfName: containerID}
}

// ADD takes an address of each enabled family, all or none, or of the one
// named. Once more for the same container, it answers the same.
func (s *Server) ADD(family, owner, containerID, _ string) (ipv4Result, ipv6Result *AllocationResult, err error) {
	m := s.m
	fs, err := m.wanted(family)
	if err == nil && (owner == "" || containerID == "") {
		err = errors.New("an owner and a container ID are needed")
	}
	v := m.view.Load()
	external := m.hasExternal(fs)
	if err == nil && !external && v.strict && v.set == nil {
		err = errNoSet()
	}
	if err == nil && external {
		ipv4Result, ipv6Result, err = m.nextOfEach(fs, claim{owner: owner, container: containerID, key: s.key(owner, containerID)})
	}
	if err != nil {
		return nil, nil, allocation("addresses for container "+containerID, owner, err)
	}
	if external {
		return ipv4Result, ipv6Result, nil
	}
	leases, _, err := m.deps.Ledger.Claim(context.Background(), ledger.Request{
		Pool: m.pool.Name, Key: s.key(owner, containerID), Families: fs, Within: v.within,
	})
	for _, f := range fs {
		if err == nil && !slices.ContainsFunc(leases, func(l ledger.Lease) bool { return ledger.FamilyOf(l.Addr) == f }) {
			err = fmt.Errorf("%w: it was given addresses before, and none of %s", ledger.ErrKeyHeld, f)
		}
	}
	if err != nil {
		return nil, nil, allocation("addresses for container "+containerID, owner, err)
	}
	m.poke()
	for i := range leases {
		f := ledger.FamilyOf(leases[i].Addr)
		switch {
		case !slices.Contains(fs, f):
		case f == ledger.IPv4:
			ipv4Result = m.result(v, leases[i].Addr, leases[i].Expiry.Token)
		default:
			ipv6Result = m.result(v, leases[i].Addr, leases[i].Expiry.Token)
		}
	}
	return ipv4Result, ipv6Result, nil
}

// DEL gives back what a container holds. One that holds nothing is no error.
func (s *Server) DEL(owner, containerID string) (err error) {
	if s.m.broken != nil {
		return s.m.broken
	}
	if s.m.mode == Delegated && !s.m.hasExternal(s.m.families.both) {
		return ErrDelegated
	}
	if containerID != "" {
		if _, err := s.m.releaseOwner(owner, containerID); err != nil {
			return &callError{"release", "the addresses of container " + containerID, owner, err}
		}
	}
	if _, err := s.m.deps.Ledger.Release(context.Background(), ledger.Selector{Key: s.key(owner, containerID)}); err != nil {
		return &callError{"release", "the addresses of container " + containerID, owner, err}
	}
	s.m.poke()
	return nil
}

// Endpoint is a container with what it holds.
type Endpoint struct {
	Owner, ContainerID string
	Addrs              []netip.Addr
}

// Endpoints are all containers that hold something, by owner and container.
func (s *Server) Endpoints() []Endpoint {
	all, _ := s.endpoints()
	return all
}

// endpoints are all containers with the generations of their claims.
func (s *Server) endpoints() (all []Endpoint, generations []uint64) {
	if s.m.broken != nil {
		return nil, nil
	}
	at := map[ledger.Key]int{}
	for _, l := range s.m.leases() {
		if l.Key.Network != s.door {
			continue
		}
		i, ok := at[l.Key]
		if !ok {
			i = len(all)
			at[l.Key] = i
			all, generations = append(all, Endpoint{Owner: l.Key.ContainerID, ContainerID: l.Key.IfName}), append(generations, l.Generation)
		}
		all[i].Addrs = append(all[i].Addrs, l.Addr)
	}
	return all, generations
}

// Sweep releases what containers hold that are gone for the second time in a
// row. gone is to say true only where it has proof; where it does not know, it
// returns an error, and nothing is done about that container.
func (s *Server) Sweep(ctx context.Context, gone func(Endpoint) (bool, error)) (released []Endpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, generations := s.endpoints()
	found := map[uint64]bool{}
	var errs []error
	for i, e := range all {
		is, err := gone(e)
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s of %q: %w", e.ContainerID, e.Owner, err))
		}
		if err != nil || !is {
			continue
		}
		found[generations[i]] = true
		if !s.gone[generations[i]] {
			continue
		}
		sel := ledger.Selector{Key: s.key(e.Owner, e.ContainerID), Generation: generations[i]}
		if _, err := s.m.deps.Ledger.Release(ctx, sel); err != nil {
			errs = append(errs, &callError{"release", "the addresses of container " + e.ContainerID, e.Owner, err})
			continue
		}
		released = append(released, e)
	}
	s.gone = found
	if len(released) > 0 {
		s.m.poke()
	}
	return released, errors.Join(errs...)
}

// Dump is who holds which address.
func (s *Server) Dump() (allocv4 map[string]string, allocv6 map[string]string, status string) {
	return s.m.Dump()
}

// DebugStatus is that of the IPAM, with the containers.
func (s *Server) DebugStatus() string {
	text := s.m.DebugStatus()
	for _, e := range s.Endpoints() {
		text += fmt.Sprintf("container %s of %q: %v\n", e.ContainerID, e.Owner, e.Addrs)
	}
	return text
}

// RestoreFinished is that of the IPAM.
func (s *Server) RestoreFinished() { s.m.RestoreFinished() }
