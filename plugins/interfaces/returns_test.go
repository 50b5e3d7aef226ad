// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// refuses makes the cloud refuse one kind of call.
func (r *rig) refuses(what string) {
	r.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
		if c.What == what {
			return memcloud.Refuse
		}
		return memcloud.None
	})
}

// The machine lacks the permission to return addresses, or to delete interfaces, for ever.
// Its interfaces are full, so pods that come again can get only these addresses.
func TestAddressesThatCannotGoBackAreUsedAgain(t *testing.T) {
	for _, denied := range []string{"unassign", "delete"} {
		for _, restart := range []bool{false, true} {
			t.Run(denied, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					conf := defaults()
					conf.WarmIPs = 2
					r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 6})
					r.refuses(denied)
					r.start()
					defer func() { r.end() }()
					r.addAll(0, 12)
					r.pass(2 * time.Minute)
					r.remove(0, 12)
					r.pass(10 * time.Minute)
					if denied == "unassign" {
						r.g.Expect(r.process.plugin.Status().Returning).To(BeNumerically(">", 3))
					}
					if restart {
						r.end()
						r.start()
					}
					for range 10 { // each time pods need addresses for those that come next
						r.add(0, 12)
						r.pass(2 * time.Minute)
					}
					r.g.Expect(r.add(0, 12)).To(Equal(12), r.process.plugin.Shortage())
					r.pass(5 * time.Minute)
					r.agree()
					r.cloud.SetFault(nil)
					r.remove(0, 12)
					r.pass(15 * time.Minute)
					r.agree()
					r.g.Expect(r.total()).To(Equal(2))
				})
			})
		}
	}
}

// An address becomes the interface's own while it is on its way back.
func TestAnOwnAddressIsNotReturnedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 3)
		r.pass(2 * time.Minute)
		r.refuses("unassign")
		r.remove(0, 1)
		r.pass(2 * time.Minute)
		r.g.Expect(r.process.plugin.Status().Returning).To(Equal(1))
		var going netip.Prefix
		for _, b := range r.process.ledger.Stats() {
			if b.Pool == ipam.ReturningPool {
				going = b.Block
			}
		}
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) {
			for k := range i.Blocks {
				i.Blocks[k].Primary = i.Blocks[k].Primary || i.Blocks[k].Prefix == going
			}
		})
		r.cloud.SetFault(nil)
		r.pass(5 * time.Minute)
		r.g.Expect(r.process.plugin.Status().Returning).To(BeZero())
		r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty())
		r.agree()
	})
}

// The cloud takes addresses back, its answers are lost, and readings show them for a while
// longer. Pods that come meanwhile must not get them.
func TestAddressesThatHaveGoneBackUnnoticedAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs, conf.Reconcile = 2, 10*time.Second
		r := newRig(t, conf, memcloud.Config{Interfaces: 1, PerInterface: 12, Lag: 50 * time.Second})
		r.start()
		defer func() { r.end() }()
		for range 3 {
			for range 5 {
				r.add(0, 12)
				r.pass(30 * time.Second)
			}
			r.g.Expect(r.add(0, 12)).To(Equal(12), r.process.plugin.Shortage())
			r.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
				if c.What == "unassign" {
					return memcloud.Tear
				}
				return memcloud.None
			})
			r.remove(0, 12)
			for calls := r.cloud.Calls()["unassign"]; r.cloud.Calls()["unassign"] == calls; {
				r.pass(time.Second)
			}
			for range 20 {
				r.add(0, 12)
				r.pass(3 * time.Second) // check compares the leases with the cloud
			}
			r.cloud.SetFault(nil)
			r.pass(3 * time.Minute)
		}
		r.pass(10 * time.Minute)
		r.agree()
	})
}

// An address comes to an interface that the cloud does not delete at once, and a pod gets it.
func TestAnInterfaceWithAPodIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 1
		r := newRig(t, conf, memcloud.Config{PerInterface: 4})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 6)
		r.pass(2 * time.Minute)
		all := r.cloud.Interfaces(instance)
		r.g.Expect(all).To(HaveLen(2))
		r.refuses("delete")
		r.remove(3, 6)
		for calls := 0; calls == 0; calls = r.cloud.Calls()["delete"] {
			r.pass(time.Second)
		}
		r.addByHand(all[1].ID, "10.0.0.77")
		r.pass(3 * time.Minute)
		r.addAll(3, 5)
		r.cloud.SetFault(nil)
		r.pass(5 * time.Minute) // check compares the leases with the cloud
	})
}
