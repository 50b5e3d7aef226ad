// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// An administrator deletes an interface in the cloud whose addresses pods have. They keep
// their leases, also over a restart, and no other pod gets addresses of it.
func TestAVanishedInterfaceKeepsItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 1
		r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 4})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 5)
		r.pass(10 * time.Second)
		second := r.cloud.Interfaces(instance)[1].ID
		lease := r.process.ledger.ByKey(podKey(4))[0]
		r.g.Expect(r.process.blocks()[lease.Block]).To(Equal(second))
		r.g.Expect(r.cloud.DeleteInterface(t.Context(), instance, second)).To(Succeed())
		wait := func(d time.Duration) { // without check: the pod has lost its address
			time.Sleep(d)
			synctest.Wait()
		}
		wait(4 * time.Minute)
		for range 2 {
			r.g.Expect(r.process.plugin.Status().Lost).To(Equal([]string{second}))
			r.g.Expect(r.process.ledger.ByKey(podKey(4))).To(HaveLen(1))
			r.end()
			r.start()
			wait(time.Second)
		}
		for n := 10; n < 14; n++ {
			r.add(n, n+1)
			wait(10 * time.Second)
			for _, l := range r.process.ledger.ByKey(podKey(n)) {
				r.g.Expect(r.process.blocks()[l.Block]).NotTo(Equal(second))
			}
		}
		r.remove(4, 5)
		wait(5 * time.Minute)
		r.g.Expect(r.process.plugin.Status().Lost).To(BeEmpty())
		r.agree()
	})
}

// Which unused interfaces stay, and which addresses go back although no target needs fewer.
func TestInterfacesThatAreNeverDeleted(t *testing.T) {
	for _, c := range []struct {
		name    string
		mark    func(*cloud.Interface)
		deleted bool
	}{
		{"ours", func(*cloud.Interface) {}, true},
		{"a trunk", func(i *cloud.Interface) { i.Trunk = true }, false},
		{"an EFA", func(i *cloud.Interface) { i.EFA = true }, false},
		{"of another program", func(i *cloud.Interface) { i.Owned = false }, false},
		{"excluded", func(i *cloud.Interface) { i.Exclude = true }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := defaults()
				conf.WarmIPs = 1
				r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 4})
				r.start()
				defer func() { r.end() }()
				r.addAll(0, 5)
				second := r.cloud.Interfaces(instance)[1].ID
				r.cloud.Change(instance, second, c.mark)
				r.pass(2 * time.Minute)
				r.remove(0, 5)
				r.pass(10 * time.Minute)
				r.g.Expect(r.cloud.Interfaces(instance)).To(HaveLen(map[bool]int{true: 1, false: 2}[c.deleted]))
				r.g.Expect(r.cloud.Calls()["delete"] > 0).To(Equal(c.deleted))
			})
		})
	}
}

// A node that changes to prefixes returns its single addresses, each after its pod.
func TestBlocksOfTheOtherKindGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 6, PrefixLen: 28})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 2)
		r.pass(2 * time.Minute)
		r.g.Expect(r.total()).To(Equal(4))
		r.end()
		r.conf.Prefixes = true
		r.start()
		r.pass(3 * time.Minute)
		singles := func() (n int) {
			for _, u := range r.cloud.Units(instance) {
				if u.IsSingleIP() {
					n++
				}
			}
			return n
		}
		r.g.Expect(singles()).To(Equal(2), "those of the pods")
		r.g.Expect(r.add(2, 3)).To(Equal(1))
		r.g.Expect(r.process.ledger.ByKey(podKey(2))[0].Block).NotTo(Satisfy(netip.Prefix.IsSingleIP))
		r.remove(0, 2)
		r.pass(3 * time.Minute)
		r.g.Expect(singles()).To(BeZero())
		r.agree()
	})
}

// A pod gets an address between the choice of the addresses to return and their change in the
// ledger.
func TestAnAddressThatAPodGetsMeanwhileStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 1
		r := newRig(t, conf, memcloud.Config{PerInterface: 6})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 4)
		r.pass(time.Minute)
		took := func(ev *ipam.InterfaceChange) {
			if len(ev.Returning) > 0 {
				r.onChange.Store(nil)
				r.g.Expect(r.add(10, 14)).To(BeNumerically(">=", 3))
			}
		}
		r.onChange.Store(&took)
		r.remove(1, 4)
		for range 300 {
			r.pass(time.Second)
			r.g.Expect(r.process.blocks()).NotTo(ContainElement(""), "each block is of an interface")
		}
		r.g.Expect(r.onChange.Load()).To(BeNil(), "addresses went back")
		r.addAll(10, 14)
		r.pass(5 * time.Minute)
		r.agree()
		r.g.Expect(r.total()).To(Equal(6))
	})
}

// A reading that is older than the last ones shows an address again that the cloud took.
func TestAnAddressThatWasGoneIsNotUsedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs, conf.Reconcile = 3, 10*time.Second
		r := newRig(t, conf, memcloud.Config{PerInterface: 3})
		r.start()
		defer func() { r.end() }()
		r.pass(30 * time.Second)
		var taken cloud.Block
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) {
			i.Blocks = slices.Clone(i.Blocks)
			last := len(i.Blocks) - 1
			taken, i.Blocks = i.Blocks[last], i.Blocks[:last]
		})
		has := func() bool { _, has := r.process.blocks()[taken.Prefix]; return has }
		for has() {
			r.pass(time.Second)
		}
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) {
			i.Blocks = append(slices.DeleteFunc(slices.Clone(i.Blocks), func(b cloud.Block) bool { return !b.Primary && b.Prefix.Addr().Compare(taken.Prefix.Addr()) > 0 }), taken)
		})
		for range 55 {
			r.pass(time.Second)
			r.g.Expect(has()).To(BeFalse())
		}
		r.pass(3 * time.Minute)
		r.g.Expect(has()).To(BeTrue())
		r.agree()
	})
}

// The cloud shows an address for minutes that it has taken back, so it is returned again.
func TestTheCloudKeepsAnAddressThatItShouldHaveTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 1
		r := newRig(t, conf, memcloud.Config{PerInterface: 6})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 2)
		r.pass(time.Minute)
		r.remove(1, 2)
		before := r.cloud.Calls()["unassign"]
		units := r.cloud.Units(instance)
		for r.cloud.Calls()["unassign"] == before {
			r.pass(time.Second)
		}
		left := r.cloud.Units(instance)
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) {
			i.Blocks = slices.Clone(i.Blocks)
			for _, u := range units {
				if !slices.Contains(left, u) {
					i.Blocks = append(i.Blocks, cloud.Block{Prefix: u, Subnet: "subnet-1"})
				}
			}
		})
		r.pass(5 * time.Minute)
		r.g.Expect(r.cloud.Calls()["unassign"]).To(Equal(before + 2))
		r.agree()
		r.g.Expect(r.total()).To(Equal(2))
	})
}

// One reading lacks an interface whose addresses pods have.
func TestAnInterfaceThatOneReadingLacksStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 1
		r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 4})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 5)
		r.pass(10 * time.Second)
		before := r.process.blocks()
		r.hidden.Store(r.cloud.Interfaces(instance)[1].ID)
		for r.hidden.Load() != "" {
			r.pass(time.Second)
		}
		for range 120 {
			r.g.Expect(r.process.blocks()).To(Equal(before))
			r.g.Expect(r.process.plugin.Status().Lost).To(BeEmpty())
			r.pass(time.Second)
		}
	})
}
