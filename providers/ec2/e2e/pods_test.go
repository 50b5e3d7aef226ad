// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/cloudlab"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
)

// few and many are the pods of a node while there are many. A machine has 15 addresses for pods.
const few, many = 9, 12

// conf returns contiv.conf of a node, up to the section cadastre. range6 is the VPC's.
func conf(range6 string, keys ...string) string {
	return `ipamConfig:
  podSubnetCIDR: 10.7.0.0/16,` + range6 + `
  podSubnetOneNodePrefixLen: 24
  vxlanCIDR: 192.168.30.0/24,fd00:4::/64
  vppHostSubnetCIDR: 172.30.0.0/16,fd00:2::/48
  nodeInterconnectCIDR: 192.168.16.0/24,fd00:3::/64
  serviceCIDR: 10.96.0.0/12,fd00:5::/108
cadastre:
  ` + strings.Join(keys, "\n  ") + "\n"
}

// TestPodsWithTheCloudsAddresses has pods come and go on two nodes, of which one gets its
// addresses from the operator and one asks EC2 itself, while operators and agents are killed
// and EC2 throttles, fails and loses answers. At the end EC2, the objects and the ledgers
// agree, with the pods and again without any.
func TestPodsWithTheCloudsAddresses(t *testing.T) {
	s := newStack(t)
	operator := s.flags(
		"--controllers=netresource",
		"--netresource-provider=ec2",
		"--enable-ipv6",
		"--release-excess-ips",
		"--excess-ip-release-delay=3s",
		"--netresource-resync-interval=5s",
		"--provider-consistency=4s",
		"--provider-orphan-age=15s",
	)
	s.StartOperator(operator...)
	s.StartOperator(operator...)
	began := time.Now()
	machine, provider, own := s.boot()
	first := s.NewNode("node-1", machine, provider, own, conf(s.range6,
		"podBlocks: netresource",
		"netResource: {preAllocate: 2}",
		"coolDown: 2s",
	), s.flags()...)
	machine, provider, own = s.boot()
	second := s.NewNode("node-2", machine, provider, own, conf(s.range6,
		"podBlocks: interfaces",
		"interfaces: {warmIPs: 2, coolDown: 2s, reconcile: 10s}",
	), s.flags("--provider-qps=5")...)
	t.Logf("two nodes serve after %s", time.Since(began).Round(time.Second))

	s.storm() // before the first pods, for which the nodes get further interfaces
	crowd := s.Crowd(s.seed, 1, 3)
	grow := func(n int, on ...*cloudlab.Node) {
		t.Helper()
		for _, node := range on {
			s.Eventually(func() int { return crowd.On(node) }, 5*time.Minute, cloudlab.Pace).
				Should(BeNumerically(">=", n), func() string { return fmt.Sprintf("pods of %s\n%s", node.Node, crowd.Sums()) })
		}
	}
	shrink := func(n int, on ...*cloudlab.Node) {
		t.Helper()
		for _, node := range on {
			s.Eventually(func() int { return crowd.On(node) }, cloudlab.Patience, cloudlab.Pace).
				Should(BeNumerically("<=", n), "pods of %s", node.Node)
		}
	}
	grow(2, first, second)
	for range 3 { // the leader dies while the first node gets addresses
		leader := s.Leader()
		crowd.Between(few, many, cloudlab.Lively)
		s.busy()
		grow(few/2, first)
		s.Kill(leader)
		s.StartOperator(operator...)
		s.fail(4)
		grow(few, first, second)
		crowd.Between(1, 3, cloudlab.Lively)
		shrink(3, first, second)
	}
	for range 10 { // whether a reading follows a change at once is chance
		if s.counts()[faultproxy.Stale] > 0 {
			break
		}
		crowd.Between(few, many, cloudlab.Lively)
		grow(few, first, second)
		crowd.Between(1, 3, cloudlab.Lively)
		shrink(3, first, second)
	}
	crowd.Between(few, many, cloudlab.Lively)
	grow(few/2, first, second)
	first.Kill()
	second.Kill()
	first.Start()
	second.Start()
	grow(few, first, second)
	s.Leader()
	s.proxy.SetPlan(nil)
	crowd.Stop()
	crowd.Verify()
	s.Eventually(s.Agree, cloudlab.Patience, time.Second).Should(Succeed())
	with := crowd.Live()
	crowd.Drain()
	s.Eventually(s.Agree, cloudlab.Patience, time.Second).Should(Succeed())
	s.Verify()

	v, sums := s.Judge.Verdict(), s.counts()
	for _, outcome := range []faultproxy.Outcome{faultproxy.Throttle, faultproxy.Lose, faultproxy.Fail, faultproxy.Stale} {
		s.Expect(sums[outcome]).NotTo(BeZero(), "the cloud was not as bad as it should be: %s", outcome)
	}
	s.Expect(sums[faultproxy.Throttle]).To(BeNumerically(">=", 3*enough))
	s.Expect(s.proxy.Counts()[faultproxy.Count{Operation: "CreateNetworkInterface", Outcome: faultproxy.Lose}]).NotTo(BeZero())
	requests := 0
	for _, n := range sums {
		requests += n
	}
	fmt.Printf("EC2, end to end: %d ADDs and %d DELs, %d addresses, held twice %d, taken away under a pod %d (%d readings)\n",
		v.Adds, v.Dels, v.Addresses, len(v.Twice), len(v.Foreign), v.Readings)
	fmt.Printf("  %s\n", crowd.Sums())
	fmt.Printf("  requests to EC2: %d, throttled by an empty bucket %d, answers lost %d, failed %d, old readings %d\n", requests,
		sums[faultproxy.Throttle], sums[faultproxy.Lose], sums[faultproxy.Fail], sums[faultproxy.Stale])
	load, refused := s.load()
	fmt.Printf("  requests of other programs: %d, throttled %d; the bucket has %d tokens, %d come in a second\n", load, refused, bucket, refill)
	fmt.Printf("  cloud, objects and ledgers agree with %d pods and with none; leaders killed 3, agents killed 2, orphaned interfaces 0, %s\n",
		with, time.Since(began).Round(time.Second))
}
