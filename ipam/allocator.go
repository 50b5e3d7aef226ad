// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// allocator is one family of an IPAM.
type allocator struct {
	m      *IPAM
	family ledger.Family
}

var _ Allocator = (*allocator)(nil)

// own parses an address, and refuses one of the other family.
func (a *allocator) own(ip net.IP) (netip.Addr, error) {
	x, ok := netip.AddrFromSlice(ip)
	if !ok {
		return x, badBytes(ip)
	}
	if x = x.Unmap(); ledger.FamilyOf(x) != a.family {
		return x, &callError{"use", ip.String(), "", disabledHere(a.family)}
	}
	return x, nil
}

type disabledHere ledger.Family

func (f disabledHere) Error() string {
	return "it is not an address of the allocator's family, " + ledger.Family(f).String()
}

func (a *allocator) take(ip net.IP, owner string, report bool) (*AllocationResult, error) {
	x, err := a.own(ip)
	if err != nil {
		return nil, err
	}
	return a.m.takeOwn(x, owner, report)
}

func (a *allocator) Allocate(ip net.IP, owner string) (*AllocationResult, error) {
	return a.take(ip, owner, true)
}

func (a *allocator) AllocateWithoutSyncUpstream(ip net.IP, owner string) (*AllocationResult, error) {
	return a.take(ip, owner, false)
}

func (a *allocator) Release(ip net.IP) error {
	x, err := a.own(ip)
	if err != nil {
		return err
	}
	return a.m.releaseOwn(x)
}

func (a *allocator) next(owner string, report bool) (*AllocationResult, error) {
	if err := a.m.usable(a.family); err != nil {
		return nil, allocation("the next address", owner, err)
	}
	return a.m.nextOwn(a.m.families.one[a.family], owner, report)
}

func (a *allocator) AllocateNext(owner string) (*AllocationResult, error) {
	return a.next(owner, true)
}

func (a *allocator) AllocateNextWithoutSyncUpstream(owner string) (*AllocationResult, error) {
	return a.next(owner, false)
}

func (a *allocator) Dump() (map[string]string, string) {
	four, six := a.m.dump()
	if a.family == ledger.IPv4 {
		return four.held, four.status
	}
	return six.held, six.status
}

func (a *allocator) RestoreFinished() { a.m.finished(a.family) }

// delegated is the allocator of a node whose CNI plugin has an IPAM of its own.
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
