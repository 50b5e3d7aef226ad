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

// An administrator takes the address of a pod away, or moves it to another interface of the machine.
func TestTheStatusComparesTheLedgerWithTheCloud(t *testing.T) {
	for _, moved := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			conf := defaults()
			conf.WarmIPs = 2
			r := newRig(t, conf, memcloud.Config{PerInterface: 4})
			r.start()
			defer func() { r.process.stop(); <-r.process.ended }()
			r.addAll(0, 6)
			r.pass(time.Minute)
			placed := func() (different []string) {
				s := r.process.plugin.Status()
				r.g.Expect(s.Placed).To(HaveLen(8))
				r.g.Expect(time.Since(s.Read)).To(BeNumerically("<=", conf.Reconcile+10*time.Second))
				for _, b := range s.Placed {
					if b.On != b.Interface {
						different = append(different, b.Prefix.String()+" "+b.Interface+" "+b.On)
					}
				}
				return different
			}
			r.g.Expect(placed()).To(BeEmpty())
			lease := r.process.ledger.ByKey(podKey(0))[0]
			p := netip.PrefixFrom(lease.Addr, 32)
			from, to := r.cloud.Interfaces(instance)[0].ID, r.cloud.Interfaces(instance)[1].ID
			r.cloud.Change(instance, from, func(i *cloud.Interface) {
				i.Blocks = slices.DeleteFunc(slices.Clone(i.Blocks), func(b cloud.Block) bool { return b.Prefix == p })
			})
			on := ""
			if moved {
				on = to
				r.cloud.Change(instance, to, func(i *cloud.Interface) { i.Exclude = true })
				r.cloud.Change(instance, to, func(i *cloud.Interface) {
					i.Blocks = append(slices.Clone(i.Blocks), cloud.Block{Prefix: p, Subnet: "subnet-1"})
				})
			}
			seen, changed, readings := false, time.Now(), map[time.Time]bool{}
			for range 200 { // without check: the pod has lost its address
				time.Sleep(time.Second)
				synctest.Wait()
				s := r.process.plugin.Status()
				if s.Read.After(changed) && !seen {
					readings[s.Read] = true
				}
				for _, b := range s.Placed {
					seen = seen || b.Prefix == p && b.Interface == from && b.On == on
					r.g.Expect(b.Prefix == p || b.On == b.Interface).To(BeTrue(), "%v", b)
				}
			}
			r.g.Expect(seen).To(BeTrue())
			if !moved {
				r.g.Expect(len(readings)).To(BeNumerically(">=", 2), "absence in one reading proves nothing")
			}
		})
	}
}
