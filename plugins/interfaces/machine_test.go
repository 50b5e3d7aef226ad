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
)

// The disk of a machine is used in another one, which has the same node name. The addresses
// of the first machine are still its own.
func TestAnotherMachineDoesNotUseTheAddressesOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 3
		r := newRig(t, conf, memcloud.Config{})
		r.start()
		r.addAll(0, 1)
		r.pass(2 * time.Minute)
		r.remove(0, 1)
		r.pass(2 * time.Minute)
		r.end()
		before := map[netip.Addr]bool{}
		for _, u := range r.cloud.Units(instance) {
			before[u.Addr()] = true
		}
		r.cloud.AddInstance("machine-2", "subnet-1")
		r.machine = "machine-2"
		r.start()
		defer func() { r.end() }()
		time.Sleep(2 * time.Second) // the first reading
		synctest.Wait()
		r.add(0, 3)
		for _, l := range r.process.ledger.Leases() {
			r.g.Expect(before).NotTo(HaveKey(l.Addr), "an address of the other machine")
		}
	})
}
