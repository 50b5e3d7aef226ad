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
)

// A part of the subnet belongs to an IPPool. The cloud gives its lowest free address first,
// so it would give a returned one again.
func TestRefusedAddressesDoNotKeepPodsFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{Reuse: true})
		taken := netip.MustParsePrefix("10.0.0.4/31")
		r.refuse = func(p netip.Prefix) bool { return p.Overlaps(taken) }
		found := r.addByHand(r.first().ID, "10.0.0.5")
		r.start()
		defer func() { r.end() }()
		for n := range 12 {
			r.addAll(n, n+1)
			r.pass(10 * time.Second)
			r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty())
		}
		r.pass(3 * time.Minute)
		for _, l := range r.process.ledger.Leases() {
			r.g.Expect(taken.Contains(l.Addr)).To(BeFalse(), l.Addr.String())
		}
		refused := slices.DeleteFunc(r.cloud.Units(instance), func(p netip.Prefix) bool { return !taken.Overlaps(p) })
		r.g.Expect(refused).To(Equal([]netip.Prefix{found}), "the agent returns those that it has asked for, and no other")
		r.g.Expect(r.total()).To(Equal(12 + 2 + 1))

		r.refuse = nil // the IPPool is gone
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) { i.MAC = "fa:16:3e:00:00:77" })
		r.pass(3 * time.Minute)
		r.agree()
	})
}

// The whole subnet overlaps the network of the services. Neither the first interface nor
// further ones are filled with addresses that no pod can have.
func TestASubnetThatPodsCannotHaveIsNotEmptied(t *testing.T) {
	for _, perInterface := range []int{4, 40} {
		synctest.Test(t, func(t *testing.T) {
			conf := defaults()
			conf.WarmIPs = 2
			r := newRig(t, conf, memcloud.Config{Reuse: true, PerInterface: perInterface})
			r.refuse = func(netip.Prefix) bool { return true }
			r.start()
			defer func() { r.end() }()
			for range 5 {
				r.pass(time.Minute)
				r.g.Expect(r.process.plugin.Shortage()).To(ContainSubstring("addresses that pods cannot have: 10.0.0."))
				r.g.Expect(r.total()).To(BeZero(), "they are returned")
			}
			r.g.Expect(r.cloud.Interfaces(instance)).To(HaveLen(1))
			r.g.Expect(r.cloud.Calls()["assign"]).To(BeNumerically("<", 30))
			r.refuse = nil
			r.pass(3 * time.Minute)
			r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty())
			r.agree()
		})
	}
}

// A pod comes a moment after an address has gone back, and the cloud gives that one again.
func TestAReturnedAddressMayComeBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs, conf.CoolDown = 2, time.Second
		r := newRig(t, conf, memcloud.Config{Reuse: true})
		r.start()
		defer func() { r.end() }()
		for range 5 {
			r.addAll(0, 8)
			r.pass(5 * time.Second)
			r.remove(0, 8)
			for r.total() > 2 {
				r.pass(time.Second)
			}
			r.g.Expect(r.add(0, 2)).To(Equal(2))
			r.addAll(0, 8)
			r.pass(5 * time.Second)
			r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty())
		}
		r.pass(3 * time.Minute)
		r.agree()
	})
}
