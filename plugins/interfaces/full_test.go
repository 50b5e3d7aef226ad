// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/ledger"
)

func TestAFamilyThatIsFullDoesNotKeepTheOtherFromGrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{
			PerInterface: 40, Second: map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("fd00::/127")},
		})
		r.families = []ledger.Family{ledger.IPv4, ledger.IPv6}
		r.start()
		defer func() { r.end() }()
		r.pass(5 * time.Second)
		r.addAll(0, 1) // it has both families
		r.pass(20 * time.Second)
		r.g.Expect(r.process.plugin.Shortage()).To(HavePrefix("ipv6: "))
		r.families = []ledger.Family{ledger.IPv4} // of further pods
		for n := 1; n < 20; n += 2 {
			r.g.Expect(r.add(n, n+2)).To(Equal(2), r.process.plugin.Shortage())
			r.pass(5 * time.Second)
		}
	})
}

// The answer to a call is lost that has filled the only interface, and readings do not show
// that yet. The cloud says that it is full, which it is.
func TestAFullInterfaceIsReadAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs, conf.Reconcile = 4, 10*time.Minute
		r := newRig(t, conf, memcloud.Config{Interfaces: 1, PerInterface: 4, Lag: 5 * time.Second})
		lost := false
		r.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
			if c.What != "assign" || lost {
				return memcloud.None
			}
			lost = true
			return memcloud.Tear
		})
		r.start()
		defer func() { r.end() }()
		r.pass(4 * time.Second)
		r.g.Expect(r.total()).To(Equal(4))
		r.g.Expect(r.add(0, 4)).To(BeZero())
		r.pass(26 * time.Second)
		r.g.Expect(r.add(0, 4)).To(Equal(4), r.process.plugin.Shortage())
	})
}

// CreateInterface of some clouds ignores the number of addresses: the new interface has only
// its own one, and its addresses for pods come with the next call.
func TestANewInterfaceWithoutAddressesForPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{Interfaces: 3, PerInterface: 4})
		r.bare = true
		r.start()
		defer func() { r.end() }()
		for n := range 10 {
			r.addAll(n, n+1)
			r.pass(5 * time.Second)
			r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty(), "%d pods", n+1)
		}
		r.g.Expect(r.cloud.Interfaces(instance)).To(HaveLen(3))
		r.agree()
	})
}

// The answer to the creation of an interface is lost, and readings do not show it yet. The
// cloud refuses another one, but the interface has room.
func TestAnUnknownInterfaceIsFilledSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs, conf.Reconcile = 2, 10*time.Minute
		r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 4, Lag: 5 * time.Second})
		lost := false
		r.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
			if c.What != "create" || lost {
				return memcloud.None
			}
			lost = true
			return memcloud.Tear
		})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 2)
		r.pass(10 * time.Second)
		r.g.Expect(r.add(2, 4)).To(Equal(2))
		r.pass(30 * time.Second)
		for range 6 {
			r.add(4, 8)
			r.pass(5 * time.Second)
		}
		r.g.Expect(r.add(4, 8)).To(Equal(4), r.process.plugin.Shortage())
	})
}
