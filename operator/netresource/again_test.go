// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
)

// A NetResourceSet is deleted and made again for another machine while the operator does not
// hear of it. The operator's watch was interrupted, so the operator receives the new one as
// an update.
func TestAnotherMachineGetsNoAddressOfTheFirst(t *testing.T) {
	cc, config := defaults()
	simulated(t, cc, config, func(t *testing.T, g *WithT, r *rig) {
		r.cloud.AddInstance("machine-1", "")
		r.cloud.AddInstance("machine-2", "subnet-a")
		make := func(instance string) {
			nrs := &v1alpha1.NetResourceSet{}
			nrs.Name, nrs.Spec.InstanceID, nrs.Spec.IPAM.PreAllocate = "node", instance, 8
			_, err := r.api.Create(nrs)
			g.Expect(err).NotTo(HaveOccurred())
		}
		make("machine-1")
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{8, 0}))
		first := map[string]bool{}
		for _, u := range r.cloud.Units("machine-1") {
			first[u.Addr().String()] = true
		}
		changed := r.api.Changed
		r.api.Changed = func(nrs *v1alpha1.NetResourceSet) {
			if nrs.Spec.InstanceID == "machine-2" {
				for key := range nrs.Spec.IPAM.Pool {
					g.Expect(first).NotTo(HaveKey(key), "an address of the other machine")
				}
			}
			changed(nrs)
		}
		g.Expect(r.api.Delete("node")).To(Succeed())
		make("machine-2")
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{8, 0}))
	})
}

// The operator hears of the new NetResourceSet first by a conflict.
func TestAConflictWithTheNetResourceSetOfAnotherMachine(t *testing.T) {
	cc, config := defaults()
	simulated(t, cc, config, func(t *testing.T, g *WithT, r *rig) {
		r.cloud.AddInstance("machine-1", "")
		r.cloud.AddInstance("machine-2", "subnet-a")
		make := func(instance string, pre int) {
			nrs := &v1alpha1.NetResourceSet{}
			nrs.Name, nrs.Spec.InstanceID, nrs.Spec.IPAM.PreAllocate = "node", instance, pre
			_, err := r.api.Create(nrs)
			g.Expect(err).NotTo(HaveOccurred())
		}
		make("machine-1", 8)
		rest(time.Minute)
		changed := r.api.Changed
		r.api.Changed = nil // the watch is late
		g.Expect(r.api.Delete("node")).To(Succeed())
		make("machine-2", 8)
		r.manager.Recount("node")
		// The cloud gives the first machine one more address, so that there is something to write.
		i := r.cloud.Interfaces("machine-1")[0]
		r.byHand("machine-1", i.ID, "10.1.7.7")
		rest(30 * time.Second)
		nrs, err := r.api.Get("node")
		g.Expect(err).NotTo(HaveOccurred())
		for _, u := range r.cloud.Units("machine-1") {
			g.Expect(nrs.Spec.IPAM.Pool).NotTo(HaveKey(u.Addr().String()))
		}
		r.api.Changed = changed
		changed(nrs)
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{8, 0}))
	})
}

// byHand adds an address to an interface, as its owner could.
func (r *rig) byHand(machine, iface, address string) {
	p := netip.PrefixFrom(netip.MustParseAddr(address), 32)
	r.cloud.Take(p)
	r.cloud.Change(machine, iface, func(i *cloud.Interface) {
		i.Blocks = append(i.Blocks, cloud.Block{Prefix: p, Subnet: i.Subnet})
	})
}
