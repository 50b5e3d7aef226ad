// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// replace ends one pod and starts another one, with the next free address behind last, as
// agents do that use the addresses of a pool in turn.
func (a *agent) replace(last netip.Addr) (next netip.Addr, err error) {
	err = a.rig.api.Change(a.name, func(nrs *v1alpha1.NetResourceSet) {
		a.mu.Lock()
		var free []netip.Addr
		for key := range nrs.Spec.IPAM.Pool {
			if _, cools := a.cools[key]; !a.leases[key] && !cools && handshake.Allocatable(nrs.Status.IPAM.ReleaseIPs[key]) {
				free = append(free, netip.MustParseAddr(key))
			}
		}
		slices.SortFunc(free, netip.Addr.Compare)
		if len(free) > 0 {
			next = free[max(0, slices.IndexFunc(free, last.Less))]
			ended := slices.Min(slices.Collect(maps.Keys(a.leases)))
			delete(a.leases, ended)
			a.cools[ended] = time.Now().Add(a.cool)
			a.leases[next.String()] = true
		}
		a.mu.Unlock()
		a.act(nrs)
	})
	return next, err
}

// A node whose pods come and go uses each of its addresses within the delay. It still gives
// back those that it has had too many for the delay.
func TestExcessIsReleasedWhilePodsComeAndGo(t *testing.T) {
	cc, c := defaults()
	c.ReleaseExcess, c.ReleaseDelay = true, 10*time.Second
	simulated(t, cc, c, func(t *testing.T, g *WithT, r *rig) {
		const pods, pre, every, cool = 3, 3, 200 * time.Millisecond, time.Second
		a := r.add("a", v1alpha1.IPAMSpec{PreAllocate: pre})
		a.cool = cool
		a.use(24)
		rest(time.Minute)
		a.use(pods)
		var last netip.Addr
		for range int(2 * time.Minute / every) {
			var err error
			last, err = a.replace(last)
			g.Expect(err).NotTo(HaveOccurred())
			rest(every)
		}
		g.Expect(len(r.cloud.Units("a"))).To(BeNumerically("<=", pods+int(cool/every)+1+pre), "in use, cooling, and free")
		g.Expect(a.lacks()).To(BeZero())
		r.consistent("a")
	})
}
