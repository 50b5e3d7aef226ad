// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// agent leases addresses of its node's pool to pods, and answers releases. Its own lock
// guards it, so that any goroutine may call its methods.
type agent struct {
	name     string
	families int // 2: a pod has an address of each

	mu     sync.Mutex
	want   int // pods
	leases [2]map[netip.Addr]bool
}

func newAgent(name string, families int) *agent {
	return &agent{name: name, families: families, leases: [2]map[netip.Addr]bool{{}, {}}}
}

// lacks returns the number of pods without all of their addresses.
func (a *agent) lacks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lacking()
}

// lacking is lacks for callers that hold the lock.
func (a *agent) lacking() int {
	if a.families == 2 {
		return a.want - min(len(a.leases[0]), len(a.leases[1]))
	}
	return a.want - len(a.leases[0]) - len(a.leases[1])
}

// leased returns all addresses that are leased.
func (a *agent) leased() map[netip.Addr]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := maps.Clone(a.leases[0])
	maps.Copy(all, a.leases[1])
	return all
}

// leasedIn reports whether an address of a block is leased.
func (a *agent) leasedIn(key string) bool {
	p, err := handshake.ParseKey(key)
	if err != nil {
		return true // the agent does not answer for a key that it cannot read
	}
	for l := range a.leases[familyOf(p)] {
		if p.Contains(l) {
			return true
		}
	}
	return false
}

// answers reports whether the agent has something to do.
func (a *agent) answers(object *v1alpha1.NetResourceSet) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lacking() > 0 {
		return true
	}
	for key, state := range object.Status.IPAM.ReleaseIPs {
		if a.answer(object, key, state) != state {
			return true
		}
	}
	return false
}

func (a *agent) answer(object *v1alpha1.NetResourceSet, key string, state handshake.State) handshake.State {
	_, in := object.Spec.IPAM.Pool[key]
	return handshake.Answer(state, handshake.Seen{InPool: in, Leased: a.leasedIn(key)})
}

// act changes the newest version of the object as the agent does: it leases, answers, and
// reports use.
func (a *agent) act(object *v1alpha1.NetResourceSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ipam := &object.Status.IPAM
	for _, leases := range a.leases {
		for _, l := range slices.SortedFunc(maps.Keys(leases), netip.Addr.Compare) {
			if len(leases) > a.want {
				delete(leases, l)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(object.Spec.IPAM.Pool)) {
		if handshake.Allocatable(ipam.ReleaseIPs[key]) {
			a.lease(key)
		}
	}
	for key, state := range ipam.ReleaseIPs {
		if next := a.answer(object, key, state); next == handshake.None {
			delete(ipam.ReleaseIPs, key)
		} else {
			ipam.ReleaseIPs[key] = next
		}
	}
	ipam.Used = v1alpha1.AllocationMap{}
	for _, leases := range a.leases {
		for l := range leases {
			ipam.Used[l.String()] = v1alpha1.AllocationIP{Owner: "default/pod"}
		}
	}
}

// lease leases addresses of a key until all pods have one.
func (a *agent) lease(key string) {
	p, err := handshake.ParseKey(key)
	if err != nil {
		return
	}
	leases := a.leases[familyOf(p)]
	for at := p.Addr(); p.Contains(at) && len(leases) < a.want; at = at.Next() {
		leases[at] = true
	}
}
