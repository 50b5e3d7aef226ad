// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// The totals that the documentation of the AWS VPC CNI names, by the number of pods.
func TestSteadyStates(t *testing.T) {
	warm := func(interfaces, ips, minimum int) contivconf.Interfaces {
		c := defaults()
		c.WarmInterfaces, c.WarmIPs, c.MinimumIPs = interfaces, ips, minimum
		return c
	}
	prefixes := func(c contivconf.Interfaces) contivconf.Interfaces { c.Prefixes = true; return c }
	for _, c := range []struct {
		conf                     contivconf.Interfaces
		interfaces, perInterface int
		pods, totals             []int
	}{
		{warm(1, 0, 0), 3, 3, []int{0, 5, 9}, []int{3, 9, 9}},
		{warm(1, 1, 1), 3, 3, []int{0, 5, 9}, []int{1, 6, 9}},
		{warm(1, 2, 5), 3, 3, []int{0, 5, 9}, []int{5, 7, 9}},
		{warm(1, 0, 0), 4, 49, []int{0, 3, 95}, []int{49, 98, 147}},
		{warm(1, 5, 10), 4, 49, []int{0, 7, 15, 45}, []int{10, 12, 20, 50}},
		{prefixes(warm(1, 0, 0)), 3, 3, []int{0, 5, 16, 17, 58}, []int{1, 2, 2, 3, 5}},
		{prefixes(warm(1, 1, 1)), 3, 3, []int{0, 5, 17, 58}, []int{1, 1, 2, 4}},
		{prefixes(warm(1, 7, 20)), 3, 3, []int{0, 5, 17, 58}, []int{2, 2, 2, 5}},
		{prefixes(warm(1, 5, 10)), 15, 49, []int{0, 7, 15, 45}, []int{1, 1, 2, 4}},
	} {
		name := fmt.Sprintf("%d per interface, interfaces %d, IPs %d, minimum %d, prefixes %t", c.perInterface, c.conf.WarmInterfaces, c.conf.WarmIPs, c.conf.MinimumIPs, c.conf.Prefixes)
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, c.conf, memcloud.Config{Interfaces: c.interfaces, PerInterface: c.perInterface, PrefixLen: 28})
				r.start()
				defer r.end()
				was := 0
				for i, pods := range c.pods {
					r.addAll(was, pods)
					was = pods
					r.pass(2 * time.Minute)
					r.g.Expect(r.total()).To(Equal(c.totals[i]), "%d pods: %s", pods, r.process.plugin.Shortage())
					r.agree()
				}
			})
		})
	}
}

// The process dies before and after each call of the cloud, each event and each record.
// Half of the time the cloud shows changes late.
func TestACrashAtAnyStep(t *testing.T) {
	conf := defaults()
	conf.WarmIPs, conf.MinimumIPs = 2, 4
	run := func(t *testing.T, crashAt int, lag time.Duration) (steps int) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, conf, memcloud.Config{Interfaces: 3, PerInterface: 4, Lag: lag})
			r.crashAt = crashAt
			r.start()
			defer func() { r.end() }()
			r.pass(10 * time.Second)
			r.addAll(0, 9)
			r.pass(20 * time.Second)
			r.remove(2, 9)
			r.pass(100 * time.Second)
			r.addAll(20, 24)
			r.pass(10 * time.Second)
			steps = int(r.steps.Load())
			r.pass(5 * time.Minute)
			r.agree()
			r.g.Expect(r.total()).To(Equal(8), "6 pods and 2 free")
		})
		return steps
	}
	steps := run(t, 0, 0)
	every := max(1, 4/effort.Times(t, 4))
	for at := 1; at <= steps; at += every {
		lag := time.Duration(at%2) * 20 * time.Second
		t.Run(fmt.Sprintf("step %d of %d, late by %s", at, steps, lag), func(t *testing.T) { run(t, at, lag) })
	}
}

func TestPodsAreServedWithoutTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 4
		r := newRig(t, conf, memcloud.Config{})
		r.start()
		r.pass(10 * time.Second)
		r.addAll(0, 2)
		r.pass(10 * time.Second)
		r.end()
		r.away.Store(true)
		r.start()
		defer func() { r.end() }()
		r.g.Expect(r.process.ledger.Leases()).To(HaveLen(2))
		r.g.Expect(r.add(0, 2)).To(Equal(2), "repeated")
		r.g.Expect(r.add(2, 6)).To(Equal(4), "from the blocks that the machine has")
		r.remove(0, 6)
		r.g.Expect(r.process.plugin.Known().Uplinks).To(HaveLen(1))
		r.pass(620 * time.Second)
		r.g.Expect(r.process.plugin.Shortage()).To(ContainSubstring("the cloud is away"))
		r.away.Store(false)
		r.pass(31 * time.Second)
		r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty(), "a long absence makes no long waits")
		r.pass(5 * time.Minute)
		r.agree()
		r.g.Expect(r.total()).To(Equal(4))
	})
}

func TestAnAddressThatTheCloudTookIsNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 1
		r := newRig(t, conf, memcloud.Config{})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 3)
		r.pass(10 * time.Second)
		taken := r.process.ledger.ByKey(podKey(1))[0].Addr
		r.g.Expect(r.process.plugin.Status().Lost).To(BeEmpty())
		id := r.process.plugin.Known().Uplinks
		r.g.Expect(id).To(BeEmpty(), "the first process knew nothing")
		eni := r.first().ID
		var kept []cloud.Block
		r.cloud.Change(instance, eni, func(i *cloud.Interface) {
			for _, b := range i.Blocks {
				if b.Prefix.Addr() != taken {
					kept = append(kept, b)
				}
			}
			i.Blocks = kept
		})
		for range 200 {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		r.g.Expect(r.process.ledger.ByKey(podKey(1))).To(HaveLen(1), "a live pod keeps its lease")
		r.g.Expect(r.process.plugin.Status().Lost).To(Equal([]string{eni}))
		r.g.Expect(r.process.plugin.Status().Notes()).To(ContainElement(ContainSubstring(eni)))
		r.remove(1, 2)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		r.g.Expect(r.process.plugin.Status().Lost).To(BeEmpty())
		r.agree()
		for n := 10; n < 20; n++ {
			r.addAll(n, n+1)
			r.g.Expect(r.process.ledger.ByKey(podKey(n))[0].Addr).NotTo(Equal(taken))
			r.pass(time.Second)
		}
	})
}

func TestAbsenceInOneReadingRemovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 3
		r := newRig(t, conf, memcloud.Config{})
		r.start()
		defer func() { r.end() }()
		r.pass(2 * time.Minute)
		before := r.total()
		eni := r.first().ID
		had := r.process.blocks()
		var all []cloud.Block
		r.cloud.Change(instance, eni, func(i *cloud.Interface) { all, i.Blocks = i.Blocks, i.Blocks[:1] })
		reads := r.cloud.Calls()["describe"]
		for r.cloud.Calls()["describe"] == reads {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		r.cloud.Change(instance, eni, func(i *cloud.Interface) { i.Blocks = all })
		r.g.Expect(r.process.blocks()).To(Equal(had), "the same ones")
		r.pass(3 * time.Minute)
		r.agree()
		r.g.Expect(r.total()).To(Equal(before))
	})
}

func TestLostRepliesAndThrottling(t *testing.T) {
	for seed := range effort.Times(t, 8) {
		synctest.Test(t, func(t *testing.T) {
			conf := defaults()
			conf.WarmIPs, conf.MinimumIPs = 2, 4
			r := newRig(t, conf, memcloud.Config{Interfaces: 3, PerInterface: 6, Lag: time.Duration(seed%3) * 10 * time.Second})
			r.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
				return []memcloud.Fault{memcloud.None, memcloud.Tear, memcloud.None, memcloud.Half, memcloud.Refuse}[(c.Number*7+seed)%5]
			})
			r.start()
			defer func() { r.end() }()
			r.pass(time.Minute)
			for n := range 10 {
				r.add(n, n+1)
				r.pass(5 * time.Second)
			}
			r.remove(0, 8)
			r.pass(3 * time.Minute)
			r.cloud.SetFault(nil)
			r.pass(15 * time.Minute)
			r.agree()
			r.g.Expect(r.total()).To(Equal(max(4, r.process.plugin.Status().Families[0].Assigned+2)))
		})
	}
}

func TestTheReasonOfAShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{Interfaces: 2, PerInterface: 3})
		r.start()
		r.addAll(0, 6)
		r.pass(10 * time.Second)
		r.g.Expect(r.add(6, 7)).To(BeZero())
		r.g.Expect(r.process.plugin.Shortage()).To(ContainSubstring("the machine is full: it has 2 of 2 interfaces, each of them with at most 3"))
		r.end()
	})
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{Subnets: map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("10.0.0.0/29")}, Interfaces: 1})
		r.start()
		for range 8 {
			r.add(0, 8)
			r.pass(time.Second)
		}
		r.g.Expect(r.process.plugin.Shortage()).To(ContainSubstring("full"))
		calls := r.cloud.Calls()["assign"]
		r.pass(100 * time.Second)
		r.g.Expect(r.cloud.Calls()["assign"]).To(Equal(calls), "the cloud is not asked for two minutes")
		r.end()
	})
}

func TestDualStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 3
		r := newRig(t, conf, memcloud.Config{Second: map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("fd00::/64")}})
		r.families = []ledger.Family{ledger.IPv4, ledger.IPv6}
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 5)
		r.pass(2 * time.Minute)
		for _, f := range r.process.plugin.Status().Families {
			r.g.Expect(f.Total).To(Equal(8), f.Family.String())
			r.g.Expect(f.Assigned).To(Equal(5))
		}
		r.agree()
	})
}
