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

// conf returns contiv.conf of a node, up to the section cadastre.
func conf(keys ...string) string {
	return `ipamConfig:
  podSubnetCIDR: 10.1.0.0/16,fd00:1::/48
  podSubnetOneNodePrefixLen: 24
  vxlanCIDR: 192.168.30.0/24,fd00:4::/64
  vppHostSubnetCIDR: 172.30.0.0/16,fd00:2::/48
  nodeInterconnectCIDR: 192.168.16.0/24,fd00:3::/64
  serviceCIDR: 10.96.0.0/12,fd00:5::/108
cadastre:
  ` + strings.Join(keys, "\n  ") + "\n"
}

// few and many are the pods of a node while there are many, spare the free addresses that the
// operator keeps for it.
const few, many, spare = 8, 11, 3

// TestPodsWithTheCloudsAddresses has pods come and go on two nodes, of which one gets its
// addresses from the operator and one asks Neutron itself, while operators and an agent are
// killed and Neutron throttles, fails and loses answers. At the end Neutron, the objects and
// the ledgers agree.
func TestPodsWithTheCloudsAddresses(t *testing.T) {
	s := newStack(t, "interfaces-openstack",
		[]string{"10.1.0.0/24", "fd00:1:0:1::/64"},
		[]string{"10.1.16.0/22", "fd00:1:0:2::/64"},
	)
	operator := s.flags(
		"--controllers=netresource,nodeids,audit",
		"--kvdb-type=kubernetes",
		"--netresource-provider=openstack",
		"--enable-ipv6",
		fmt.Sprint("--pre-allocate=", spare),
		"--release-excess-ips",
		"--excess-ip-release-delay=3s",
		"--netresource-resync-interval=5s",
		"--provider-consistency=4s",
		"--provider-orphan-age=8s",
	)
	began := time.Now()
	provider, own := s.boot("machine-2")
	second := s.NewNode("node-2", "machine-2", provider, own, conf(
		"podBlocks: interfaces",
		"interfaces: {warmIPs: 3, coolDown: 2s, reconcile: 10s}",
	), s.flags("--provider-qps=5")...)
	s.Apply("netresource-openstack") // not sooner: the second node has no rights of this mode before
	s.StartOperator(operator...)
	s.StartOperator(operator...)
	provider, own = s.boot("machine-1")
	first := s.NewNode("node-1", "machine-1", provider, own, conf(
		"podBlocks: netresource",
		"netResource: {preAllocate: 3}",
		"coolDown: 2s",
	))
	t.Logf("two nodes serve after %s", time.Since(began).Round(time.Second))

	crowd := s.Crowd(s.seed, 1, 3)
	grow := func(n int, on ...*cloudlab.Node) {
		t.Helper()
		for _, node := range on {
			s.Eventually(func() int {
				s.VerifyAddresses() // what must not be ends the test at once
				return crowd.On(node)
			}, 5*time.Minute, cloudlab.Pace).
				Should(BeNumerically(">=", n), "pods of %s\n%s", node.Node, crowd.Sums())
		}
	}
	shrink := func(n int, on ...*cloudlab.Node) {
		t.Helper()
		for _, node := range on {
			s.Eventually(func() int { return crowd.On(node) }, cloudlab.Patience, cloudlab.Pace).
				Should(BeNumerically("<=", n), "pods of %s", node.Node)
		}
	}
	has := func(node *cloudlab.Node, comparison string, n int) { // addresses in the cloud
		t.Helper()
		s.Eventually(func(g Gomega) {
			s.VerifyAddresses()
			truth, err := s.truth(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(truth.Blocks(node.Machine)).To(BeNumerically(comparison, 2*n), "addresses of both families")
		}, 5*time.Minute, cloudlab.Pace).Should(Succeed(), "%s", crowd.Sums())
	}
	given := func(node *cloudlab.Node) { t.Helper(); has(node, ">=", few+spare) }
	returned := func(node *cloudlab.Node, most int) { t.Helper(); has(node, "<=", most) } // what pods do not need
	grow(2, first, second)
	s.storm()
	kill := func(leader *cloudlab.Operator) {
		t.Helper()
		s.Kill(leader)
		s.StartOperator(operator...)
	}
	for _, accident := range []struct{ growing, returning func() }{
		{growing: func() { kill(s.Leader()) }},
		{returning: func() { kill(s.Leader()) }},
		{growing: func() { // the leader stands still, and goes on when another one leads
			old := s.Leader()
			s.Freeze(old)
			grow(few, first)
			s.Thaw(old)
			kill(s.Leader())
			s.StartOperator(operator...)
		}},
	} {
		crowd.Between(few, many, cloudlab.Lively)
		grow(few/2, first)
		if accident.growing != nil {
			accident.growing()
		}
		grow(few, first, second)
		given(first)
		crowd.Between(1, 2, cloudlab.Calm)
		shrink(2, first, second)
		if accident.returning != nil {
			returned(first, few+spare-1) // it has begun
			accident.returning()
		}
		returned(first, few) // although pods come and go, and their addresses cool down
	}
	crowd.Between(few, many, cloudlab.Lively)
	grow(few/2, first, second)
	first.Kill()
	second.Kill()
	first.Start()
	second.Start()
	grow(few, first, second)
	given(first)
	crowd.Between(2, 4, cloudlab.Lively)
	shrink(4, first, second)
	s.proxy.SetPlan(nil)
	crowd.Stop()
	crowd.Verify()
	returned(first, few)
	s.Eventually(s.Agree, cloudlab.Patience, time.Second).Should(Succeed())
	s.Verify()
	s.Expect(s.Judge.Verdict().Released).NotTo(BeZero(), "releases that the judge has seen")

	v, sums := s.Judge.Verdict(), s.counts()
	for _, fault := range []faultproxy.Outcome{faultproxy.Throttle, faultproxy.Lose, faultproxy.Stale} {
		s.Expect(sums[fault]).NotTo(BeZero(), "requests with the outcome %v", fault)
	}
	requests := 0
	for _, n := range sums {
		requests += n
	}
	fmt.Printf("OpenStack, end to end: %d ADDs and %d DELs, %d addresses, held twice %d, taken away under a pod %d (%d readings), released %d\n",
		v.Adds, v.Dels, v.Addresses, len(v.Twice), len(v.Foreign), v.Readings, v.Released)
	fmt.Printf("  %s\n", crowd.Sums())
	fmt.Printf("  requests to Neutron: %d, throttled %d, answers lost %d, failed %d, old readings %d\n", requests,
		sums[faultproxy.Throttle], sums[faultproxy.Lose], sums[faultproxy.Fail], sums[faultproxy.Stale])
	fmt.Printf("  leaders killed 3, stopped for a while 1, agents killed 2, orphaned ports 0, %s\n", time.Since(began).Round(time.Second))
}
