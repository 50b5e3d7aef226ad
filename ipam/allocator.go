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

// own refuses an address of the other family.
func (a *allocator) own(ip net.IP) error {
	x, ok := netip.AddrFromSlice(ip)
	if ok && ledger.FamilyOf(x.Unmap()) != a.family {
		return &callError{"use", ip.String(), "", disabledHere(a.family)}
	}
	return nil
}

type disabledHere ledger.Family

func (f disabledHere) Error() string {
	return "it is no address of the allocator's family, " + ledger.Family(f).String()
}

func (a *allocator) Allocate(ip net.IP, owner string) (*AllocationResult, error) {
	if err := a.own(ip); err != nil {
		return nil, err
	}
	return a.m.certain(ip, owner, true)
}

func (a *allocator) AllocateWithoutSyncUpstream(ip net.IP, owner string) (*AllocationResult, error) {
	if err := a.own(ip); err != nil {
		return nil, err
	}
	return a.m.certain(ip, owner, false)
}

func (a *allocator) Release(ip net.IP) error {
	if err := a.own(ip); err != nil {
		return err
	}
	return a.m.ReleaseIP(ip)
}

func (a *allocator) AllocateNext(owner string) (*AllocationResult, error) {
	return a.m.nextOf(Family(a.family.String()), owner, true)
}

func (a *allocator) AllocateNextWithoutSyncUpstream(owner string) (*AllocationResult, error) {
	return a.m.nextOf(Family(a.family.String()), owner, false)
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
