// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
)

// first returns the machine's first interface.
func (r *rig) first() *cloud.Interface { return r.cloud.Interfaces(instance)[0] }

// addByHand adds an address to an interface, as an administrator does.
func (r *rig) addByHand(iface, address string) netip.Prefix {
	a := netip.MustParseAddr(address)
	p := netip.PrefixFrom(a, a.BitLen())
	r.cloud.Take(p)
	r.cloud.Change(instance, iface, func(i *cloud.Interface) {
		i.Blocks = append(i.Blocks, cloud.Block{Prefix: p, Subnet: "subnet-1"})
	})
	return p
}

// An administrator keeps an interface for other programs, such as one with a virtual
// address of the node.
func TestAddressesOfAnExcludedForeignInterfaceStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{})
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) { i.Exclude = true })
		virtual := r.addByHand(r.first().ID, "10.0.0.77")
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 2)
		r.pass(5 * time.Minute)
		r.g.Expect(r.cloud.Units(instance)).To(ContainElement(virtual))
		for _, l := range r.process.ledger.Leases() {
			r.g.Expect(l.Addr).NotTo(Equal(virtual.Addr()))
		}
	})
}

func TestAddressesOfAFamilyThatPodsDoNotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{})
		other := r.addByHand(r.first().ID, "fd00::77")
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 2)
		r.pass(5 * time.Minute)
		for _, b := range r.process.ledger.Stats() {
			r.g.Expect(b.Block).NotTo(Equal(other), "pool %s", b.Pool)
		}
		r.g.Expect(r.cloud.Units(instance)).To(ContainElement(other), "the machine keeps it")
	})
}

// A machine may not have the permission to return addresses.
func TestPodsGetAddressesWhileNoneGoesBack(t *testing.T) {
	for _, denied := range []string{"unassign", "delete"} {
		t.Run(denied, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := defaults()
				conf.WarmIPs = 2
				r := newRig(t, conf, memcloud.Config{PerInterface: 8})
				r.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
					if c.What == denied {
						return memcloud.Refuse
					}
					return memcloud.None
				})
				r.start()
				defer func() { r.end() }()
				r.addAll(0, 9)
				r.pass(2 * time.Minute)
				r.remove(0, 9)
				r.pass(5 * time.Minute)
				r.g.Expect(r.process.plugin.Shortage()).To(ContainSubstring("injected"))
				for n := 10; n < 22; n += 2 {
					r.add(n, n+2)
					r.pass(4 * time.Minute) // above the longest wait after an error
				}
				r.g.Expect(r.add(10, 22)).To(Equal(12), r.process.plugin.Shortage())
				r.cloud.SetFault(nil)
				r.pass(10 * time.Minute)
				r.agree()
				r.g.Expect(r.total()).To(Equal(14))
			})
		})
	}
}

// A lease of the imported checkpoint that has ended stays ended, also in the next process.
func TestAnImportedLeaseEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		conf.Checkpoint = filepath.Join(t.TempDir(), "ipam.json")
		text := `{"version":"vpc-cni-ipam/1","allocations":[{"networkName":"cadastre","containerID":"c%d","ifName":"eth0","ipv4":"10.0.0.77"}]}`
		if err := os.WriteFile(conf.Checkpoint, fmt.Appendf(nil, text, 7), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, conf, memcloud.Config{})
		imported := r.addByHand(r.first().ID, "10.0.0.77")
		r.start()
		defer func() { r.end() }()
		r.pass(10 * time.Second)
		r.g.Expect(r.process.ledger.ByKey(podKey(7))).To(HaveLen(1))
		r.addAll(0, 1)
		r.remove(7, 8)
		r.pass(3 * time.Minute)
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) {
			blocks := i.Blocks[:0:0]
			for _, b := range i.Blocks {
				if b.Prefix != imported {
					blocks = append(blocks, b)
				}
			}
			i.Blocks = blocks
		})
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		r.end()
		r.start()
		r.pass(10 * time.Second)
		r.g.Expect(r.process.plugin.Status().Unplaced).To(BeZero(), "its lease has ended")
		r.addByHand(r.first().ID, "10.0.0.77")
		r.pass(3 * time.Minute)
		r.g.Expect(r.process.ledger.ByKey(podKey(7))).To(BeEmpty())
	})
}

// The ranges of a cloud's network change while the machine runs.
func TestUplinksFollowTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 2)
		r.pass(3 * time.Minute)
		r.g.Expect(r.process.uplinks()).To(HaveLen(1))
		const mac = "fa:16:3e:00:00:77"
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) { i.MAC = mac })
		r.pass(3 * time.Minute)
		r.g.Expect(r.process.uplinks()).To(HaveLen(1))
		r.g.Expect(r.process.uplinks()[0].MAC).To(Equal(mac))
		r.end()
		r.start()
		r.g.Expect(r.process.plugin.Known().Uplinks[0].MAC).To(Equal(mac))
	})
}
