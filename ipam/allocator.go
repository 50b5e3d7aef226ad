// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// allocator allocates the addresses of one family of an IPAM from the ledger.
type allocator struct {
	m      *IPAM
	family ledger.Family
}

var _ Allocator = (*allocator)(nil)

// addr converts an address of the allocator's family.
func (a *allocator) addr(ip net.IP) (netip.Addr, error) {
	x, err := addrOf(ip)
	if err == nil && ledger.FamilyOf(x) != a.family {
		err = fmt.Errorf("use %s: it is not an address of the allocator's family, %s", ip, a.family)
	}
	return x, err
}

func (a *allocator) Allocate(ip net.IP, owner string) (*AllocationResult, error) {
	x, err := a.addr(ip)
	if err != nil {
		return nil, err
	}
	return a.m.claimAddr(x, owner, true)
}

func (a *allocator) AllocateWithoutSyncUpstream(ip net.IP, owner string) (*AllocationResult, error) {
	x, err := a.addr(ip)
	if err != nil {
		return nil, err
	}
	return a.m.claimAddr(x, owner, false)
}

func (a *allocator) Release(ip net.IP) error {
	x, err := a.addr(ip)
	if err != nil {
		return err
	}
	return a.m.releaseLease(x)
}

func (a *allocator) AllocateNext(owner string) (*AllocationResult, error) {
	return a.next(owner, true)
}

func (a *allocator) AllocateNextWithoutSyncUpstream(owner string) (*AllocationResult, error) {
	return a.next(owner, false)
}

func (a *allocator) next(owner string, report bool) (r *AllocationResult, err error) {
	if err = a.m.usable(a.family); err == nil {
		r, err = a.m.claimNext(a.m.families.one[a.family], owner, report)
	}
	if err != nil {
		return nil, a.m.allocation("the next address", owner, err)
	}
	return r, nil
}

func (a *allocator) Dump() (map[string]string, string) {
	four, six := a.m.dump()
	if a.family == ledger.IPv4 {
		return four.held, four.status
	}
	return six.held, six.status
}

func (a *allocator) RestoreFinished() { a.m.finished(a.family) }

// delegated is the allocator of a node whose CNI plugin has its own IPAM.
type delegated struct{}

var _ Allocator = delegated{}

func (delegated) Allocate(net.IP, string) (*AllocationResult, error) { return nil, ErrDelegated }
func (delegated) AllocateWithoutSyncUpstream(net.IP, string) (*AllocationResult, error) {
	return nil, ErrDelegated
}
func (delegated) Release(net.IP) error                           { return ErrDelegated }
func (delegated) AllocateNext(string) (*AllocationResult, error) { return nil, ErrDelegated }
func (delegated) AllocateNextWithoutSyncUpstream(string) (*AllocationResult, error) {
	return nil, ErrDelegated
}
func (delegated) Dump() (map[string]string, string) { return nil, Delegated.String() }
func (delegated) RestoreFinished()                  {}
