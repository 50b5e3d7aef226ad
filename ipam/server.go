// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// Server allocates addresses for the containers of a node's CNI IPAM plugin. A
// repeated ADD returns the same addresses. A DEL releases the addresses of its
// container, and none of a later container. Use NewServer; any goroutine may call
// its methods. The addresses of allocators of the caller are kept in memory only;
// Endpoints and Sweep do not see them.
type Server struct {
	m    *IPAM
	door string

	mu   sync.Mutex
	gone map[uint64]bool // generations of claims whose container the last Sweep found gone
}

var _ CNIIPAMServer = (*Server)(nil)

// cni is the suffix of the network in the keys of containers.
const cni = "/cni"

// NewServer returns a Server that allocates from m.
func NewServer(m *IPAM) *Server { return &Server{m: m, door: m.deps.Door + cni} }

func (s *Server) key(owner, containerID string) ledger.Key {
	return ledger.Key{Network: s.door, ContainerID: owner, IfName: containerID}
}

// ADD allocates an address of each enabled family, all or none, or of the named
// family. A repeated call for a container returns the same addresses.
func (s *Server) ADD(family, owner, containerID, _ string) (ipv4Result, ipv6Result *AllocationResult, err error) {
	fs, err := s.m.wanted(family)
	if err == nil && (owner == "" || containerID == "") {
		err = errors.New("an owner and a container ID are needed")
	}
	if err == nil {
		r := request{key: s.key(owner, containerID), owner: owner, container: containerID}
		ipv4Result, ipv6Result, err = s.m.allocateNext(fs, r)
	}
	if err != nil {
		return nil, nil, s.m.allocation("addresses for container "+containerID, owner, err)
	}
	return ipv4Result, ipv6Result, nil
}

// DEL releases the addresses of a container. Without any it succeeds.
func (s *Server) DEL(owner, containerID string) (err error) {
	if containerID == "" { // ADD refuses it
		return s.m.releases()
	}
	_, err = s.m.releaseAll("the addresses of container "+containerID, s.key(owner, containerID), owner)
	return err
}

// Endpoint is a container with its addresses.
type Endpoint struct {
	Owner, ContainerID string
	Addrs              []netip.Addr
}

// Endpoints returns the containers that have addresses.
func (s *Server) Endpoints() []Endpoint {
	all, _ := s.endpoints()
	return all
}

// endpoints returns the containers that have addresses, and the generations of
// their claims.
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
			all = append(all, Endpoint{Owner: l.Key.ContainerID, ContainerID: l.Key.IfName})
			generations = append(generations, l.Generation)
		}
		all[i].Addrs = append(all[i].Addrs, l.Addr)
	}
	return all, generations
}

// Sweep releases the addresses of containers that gone reports for the second
// time in a row. gone returns true only with proof that the container has ended;
// without proof it returns an error, and the container keeps its addresses.
func (s *Server) Sweep(ctx context.Context, gone func(Endpoint) (bool, error)) (released []Endpoint, err error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("release the addresses of ended containers: %w", context.Cause(ctx))
	}
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
		leases, err := s.m.deps.Ledger.Release(ctx, sel)
		if err != nil {
			errs = append(errs, &callError{"release", "the addresses of container " + e.ContainerID, e.Owner, err})
			continue
		}
		for _, l := range leases {
			s.m.deps.Metrics.count(actionRelease, ledger.FamilyOf(l.Addr), 1)
		}
		released = append(released, e)
	}
	s.gone = found
	if len(released) > 0 {
		s.m.poke()
	}
	return released, errors.Join(errs...)
}

// Dump returns the owner of each address, and the state in one line.
func (s *Server) Dump() (allocv4 map[string]string, allocv6 map[string]string, status string) {
	return s.m.Dump()
}

// DebugStatus returns the status of the IPAM and the containers.
func (s *Server) DebugStatus() string {
	text := s.m.DebugStatus()
	for _, e := range s.Endpoints() {
		text += fmt.Sprintf("container %s of %q: %v\n", e.ContainerID, e.Owner, e.Addrs)
	}
	return text
}

// RestoreFinished is IPAM.RestoreFinished.
func (s *Server) RestoreFinished() { s.m.RestoreFinished() }
