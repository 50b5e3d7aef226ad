// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// small is a range of four blocks, allocated again at once, the lowest first.
func small() nodeipam.Options {
	return nodeipam.Options{Allocate: true, Cluster: "10.20.0.0/22", Order: "lowest"}
}

// each runs a test for every controller that gives nodes their CIDRs.
func each(t *testing.T, test func(t *testing.T, c *cluster, who numberer)) {
	mayRun(t)
	for _, who := range numberers() {
		t.Run(who.name, func(t *testing.T) { test(t, newCluster(t), who) })
	}
}

// TestNodesComeAndGo: created before and after the start, with podCIDRs and
// without, deleted, and created again.
func TestNodesComeAndGo(t *testing.T) {
	each(t, func(t *testing.T, c *cluster, who numberer) {
		g := c.g
		c.create("early")
		c.create("numbered", func(n *v1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.20.2.0/24", []string{"10.20.2.0/24"} })
		who.start(t, c, small())
		g.Expect(first(c.awaitNumbered("early", "numbered"))).To(Equal([]string{"10.20.0.0/24", "10.20.2.0/24"}))
		c.create("third")
		c.create("fourth")
		g.Expect(first(c.awaitNumbered("third", "fourth"))).To(ConsistOf("10.20.1.0/24", "10.20.3.0/24"))

		c.create("fifth") // there is nothing left for it
		g.Eventually(func() string { return problem(c.node("fifth")) }, patience, pace).Should(Equal(nodeipam.ReasonNotAvailable))
		c.remove("numbered")
		g.Expect(first(c.awaitNumbered("fifth"))).To(Equal([]string{"10.20.2.0/24"}), "what was given back")
		g.Eventually(func() string { return problem(c.node("fifth")) }, patience, pace).Should(BeEmpty(), "it is over")

		before := c.node("early")
		c.remove("early")
		after := c.create("early")
		g.Expect(after.UID).NotTo(Equal(before.UID))
		g.Expect(first(c.awaitNumbered("early"))).To(Equal([]string{"10.20.0.0/24"}), "the only one that is free")
	})
}

// problem is the reason for which a node has ours, "" for none.
func problem(n *v1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == nodeipam.ConditionProblem && c.Status == v1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// TestFinalizedNodesKeepTheirBlocks: a node that is being deleted holds its
// block until it is gone; one without gets none.
func TestFinalizedNodesKeepTheirBlocks(t *testing.T) {
	each(t, func(t *testing.T, c *cluster, who numberer) {
		g := c.g
		const finalizer = "example.org/hold"
		held := func(n *v1.Node) { n.Finalizers = []string{finalizer} }
		for _, name := range []string{"a", "b", "c"} {
			c.create(name, held)
		}
		c.create("going", held) // deleted before a controller gives it a CIDR
		c.remove("going")
		who.start(t, c, small())
		have := c.awaitNumbered("a", "b", "c")
		c.remove("b")
		c.create("last")
		g.Expect(first(c.awaitNumbered("last"))).NotTo(ContainElement(BeElementOf(first(have))), "the fourth block")
		c.create("waits")
		g.Consistently(func() []string { return c.node("waits").Spec.PodCIDRs }, "2s", pace).Should(BeEmpty(), "b is still there")
		g.Expect(c.node("going").Spec.PodCIDRs).To(BeEmpty())
		g.Expect(c.finalize(t.Context(), "b", nil)).To(Succeed())
		g.Expect(c.awaitNumbered("waits")).To(Equal(have[1:2]))
	})
}

// TestNodesOfTwoFamilies: a block of each, none of the services'.
func TestNodesOfTwoFamilies(t *testing.T) {
	mayRun(t)
	for _, who := range append(numberers(), numberer{"kube-controller-manager", startUpstream}) {
		t.Run(who.name, func(t *testing.T) {
			c := newCluster(t)
			who.start(t, c, nodeipam.Options{Allocate: true, Cluster: "10.30.0.0/16,fd00:10:30::/56", Service: "10.30.0.0/20,fd00:10:30::/112", MaskIPv4: 25})
			c.create("a")
			c.g.Expect(c.awaitNumbered("a")).To(Equal([][]string{{"10.30.16.0/25", "fd00:10:30:1::/64"}}))
			c.create("b")
			c.g.Expect(c.awaitNumbered("b")).To(Equal([][]string{{"10.30.16.128/25", "fd00:10:30:2::/64"}}))
		})
	}
}

// TestABadNodeHarmsNobody: what it has is respected and reported.
func TestABadNodeHarmsNobody(t *testing.T) {
	each(t, func(t *testing.T, c *cluster, who numberer) {
		c.create("foreign", func(n *v1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "192.168.7.0/24", []string{"192.168.7.0/24"} })
		who.start(t, c, small())
		c.create("good")
		c.awaitNumbered("good")
		c.g.Eventually(func() string { return problem(c.node("foreign")) }, patience, pace).Should(Equal(nodeipam.ReasonOutOfRange))
	})
}

// TestTheAPIServerDies: it is killed while nodes are created and deleted, and
// comes back with what it had.
func TestTheAPIServerDies(t *testing.T) {
	mayRun(t)
	for _, who := range numberers() {
		t.Run(who.name, func(t *testing.T) {
			p := newPlane(t)
			c := openCluster(t, p.kubeconfig)
			g := c.g
			revive := who.start(t, c, nodeipam.Options{Allocate: true, Cluster: "10.40.0.0/16"})
			c.create("first")
			c.awaitNumbered("first")
			for round := range 3 {
				before, created := len(c.names()), make(chan []string)
				go func() { created <- c.createSome(fmt.Sprint("round-", round), 60) }()
				g.Eventually(func() int { return len(c.names()) }, patience, pace).Should(BeNumerically(">=", before+20))
				p.kill(g)
				some := <-created
				p.restart(g)
				c.await()
				for i, name := range some {
					if i%3 == 0 {
						c.remove(name)
					}
				}
				c.create(fmt.Sprint("after-", round))
				g.Eventually(func() []string {
					revive() // a leader that could not renew its lease has ended
					return c.unnumbered()
				}, patience, pace).Should(BeEmpty())
			}
			t.Logf("%d nodes were numbered", len(c.names()))
		})
	}
}

// createSome creates nodes until the API server is gone, and answers which of
// them were created for sure.
func (c *cluster) createSome(prefix string, n int) (sure []string) {
	for _, name := range series(prefix, n) {
		if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), newNode(name), createOptions()); err != nil {
			return sure
		}
		sure = append(sure, name)
	}
	return sure
}

// TestManyCreatedAgain: nodes are deleted and created again under their names
// all the time, faster than a controller can look.
func TestManyCreatedAgain(t *testing.T) {
	each(t, func(t *testing.T, c *cluster, who numberer) {
		who.start(t, c, nodeipam.Options{Allocate: true, Cluster: "10.50.0.0/19"}) // 32 blocks
		c.g.Expect(crowd(8, series("n", 24), func(name string) error {
			rnd := rand.New(rand.NewPCG(uint64(name[len(name)-1]), uint64(name[len(name)-2])))
			for range 10 {
				if _, err := c.client.CoreV1().Nodes().Create(t.Context(), newNode(name), createOptions()); err != nil {
					return err
				}
				for range rnd.IntN(4) { // some are numbered when they go, some are not
					if _, err := c.client.CoreV1().Nodes().Get(t.Context(), name, getOptions()); err != nil {
						return err
					}
				}
				if err := c.client.CoreV1().Nodes().Delete(t.Context(), name, deleteOptions()); err != nil {
					return err
				}
			}
			_, err := c.client.CoreV1().Nodes().Create(t.Context(), newNode(name), createOptions())
			return err
		})).To(Succeed())
		c.awaitNumbered(series("n", 24)...)
		c.createAll(series("m", 8))
		c.awaitNumbered(series("m", 8)...)
	})
}
