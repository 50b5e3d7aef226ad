// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// shuffle puts everything that has no order into another one.
func (n *node) shuffle(r *rand.Rand) {
	mix := func(length int, swap func(i, j int)) { r.Shuffle(length, swap) }
	b := &n.book
	mix(len(b.Leases), func(i, j int) { b.Leases[i], b.Leases[j] = b.Leases[j], b.Leases[i] })
	mix(len(b.Blocks), func(i, j int) { b.Blocks[i], b.Blocks[j] = b.Blocks[j], b.Blocks[i] })
	mix(len(b.Pools), func(i, j int) { b.Pools[i], b.Pools[j] = b.Pools[j], b.Pools[i] })
	mix(len(b.Docker), func(i, j int) { b.Docker[i], b.Docker[j] = b.Docker[j], b.Docker[i] })
	mix(len(b.Subnets), func(i, j int) { b.Subnets[i], b.Subnets[j] = b.Subnets[j], b.Subnets[i] })
	if k := n.world.Kernel; k != nil {
		mix(len(k.Namespaces)-1, func(i, j int) { k.Namespaces[i+1], k.Namespaces[j+1] = k.Namespaces[j+1], k.Namespaces[i+1] })
		for i := range k.Namespaces {
			ns := &k.Namespaces[i]
			mix(len(ns.Links), func(i, j int) { ns.Links[i], ns.Links[j] = ns.Links[j], ns.Links[i] })
			mix(len(ns.Routes), func(i, j int) { ns.Routes[i], ns.Routes[j] = ns.Routes[j], ns.Routes[i] })
		}
	}
	if x := n.world.Runtime; x != nil {
		mix(len(x.Sandboxes), func(i, j int) { x.Sandboxes[i], x.Sandboxes[j] = x.Sandboxes[j], x.Sandboxes[i] })
	}
	if x := n.world.Cluster; x != nil {
		mix(len(x.Pods), func(i, j int) { x.Pods[i], x.Pods[j] = x.Pods[j], x.Pods[i] })
	}
	if x := n.world.Engine; x != nil {
		mix(len(x.Networks), func(i, j int) { x.Networks[i], x.Networks[j] = x.Networks[j], x.Networks[i] })
		for i := range x.Networks {
			e := x.Networks[i].Endpoints
			mix(len(e), func(i, j int) { e[i], e[j] = e[j], e[i] })
		}
	}
}

// randomNode returns a healthy node with random pods, pools, networks and containers.
func randomNode(t *rapid.T) *node {
	n := emptyNode()
	pods := rapid.IntRange(0, 12).Draw(t, "pods")
	for i := range pods {
		a := netip.AddrFrom4([4]byte{10, 1, 5, byte(2 + i)})
		n.addPod(fmt.Sprintf("pod-%d", i), "default", "10.1.5.0/24", a.String(), "10.1.5.1", 10)
	}
	if rapid.Bool().Draw(t, "second pool") {
		n.book.Pools = append(n.book.Pools, pool("blue", "10.3.0.0/16"))
		n.addBlock("blue", "10.3.5.0/24", "10.3.5.1", 12)
		for i := range rapid.IntRange(0, 3).Draw(t, "blue pods") {
			n.addPod(fmt.Sprintf("blue-%d", i), "blue", "10.3.5.0/24", fmt.Sprintf("10.3.5.%d", 9+i), "10.3.5.1", 12)
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "Docker networks") {
		name, base := fmt.Sprintf("net-%d", i), fmt.Sprintf("172.2%d.0", i)
		n.addNetwork(name, base+".0/24", base+".1", 30+i)
		for j := range rapid.IntRange(0, 4).Draw(t, "containers") {
			n.addContainer(fmt.Sprintf("c-%d-%d", i, j), name, base+".0/24", fmt.Sprintf("%s.%d", base, 2+j), 30+i)
		}
	}
	for _, name := range []witness.Name{witness.Runtime, witness.Cluster} {
		if rapid.Bool().Draw(t, "without "+string(name)) {
			n.without(name, witness.NotApplicable)
		}
	}
	return n
}

func TestAWorldThatFollowsFromTheBookHasNoFinding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := randomNode(t)
		n.shuffle(rand.New(rand.NewSource(rapid.Int64().Draw(t, "order"))))
		if found := n.compare(); len(found) > 0 {
			t.Fatalf("findings on a healthy node: %+v", found)
		}
	})
}

func TestTheOrderOfTheInputsHasNoEffect(t *testing.T) {
	all := slices.Concat(differences(), networkDifferences())
	rapid.Check(t, func(t *rapid.T) {
		n := healthyNode()
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			d := rapid.SampledFrom(all).Draw(t, "change")
			if !tryChange(d, n) {
				t.Skip("the changes exclude each other")
			}
		}
		before := n.compare()
		n.shuffle(rand.New(rand.NewSource(rapid.Int64().Draw(t, "order"))))
		after := n.compare()
		if len(before) != len(after) {
			t.Fatalf("%d findings, then %d: %v\n%v", len(before), len(after), before, after)
		}
		for i := range before {
			if before[i].Signature != after[i].Signature || before[i].Text != after[i].Text {
				t.Fatalf("the order changes a finding: %+v\n%+v", before[i], after[i])
			}
		}
	})
}

// tryChange reports whether a change is possible after earlier ones.
func tryChange(d difference, n *node) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	d.change(n)
	return true
}

func TestASignatureSurvivesARestartOfTheAgent(t *testing.T) {
	g := NewWithT(t)
	n := healthyNode()
	n.dropSandbox("web")
	n.dropNamespace("/var/run/netns/web")
	before := n.compare()
	for i := range n.book.Leases {
		n.book.Leases[i].Generation += 100
	}
	n.addPod("new", "default", "10.1.5.0/24", "10.1.5.4", "10.1.5.1", 10) // changes a count in the evidence
	n.book.Now = n.book.Now.AddDate(0, 0, 1)
	after := n.compare()
	g.Expect(after).To(HaveLen(1))
	g.Expect(after[0].Signature).To(Equal(before[0].Signature))
	g.Expect(after[0].Evidence).NotTo(Equal(before[0].Evidence))
	g.Expect(after[0].Subject.Generation).To(Equal(before[0].Subject.Generation + 100))
}

func TestASignatureChangesWithTheLease(t *testing.T) {
	for name, change := range map[string]func(l *ledger.Lease){
		"another claim":   func(l *ledger.Lease) { l.Since = l.Since.Add(-1) },
		"another sandbox": func(l *ledger.Lease) { l.Key.ContainerID = "other" },
		"another pod":     func(l *ledger.Lease) { l.Pod.UID = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := healthyNode()
			n.dropSandbox("web")
			n.dropNamespace("/var/run/netns/web")
			before := n.compare()
			change(n.leaseOf("10.1.5.2"))
			after := n.compare()
			g.Expect(after).To(HaveLen(1))
			g.Expect(after[0].Signature).NotTo(Equal(before[0].Signature))
		})
	}
}

func TestOnlyTheFindingsOfTwoRoundsAreConfirmed(t *testing.T) {
	g := NewWithT(t)
	first, second := healthyNode(), healthyNode()
	first.namespace("/var/run/netns/web").Links[1].Addrs = nil // its ADD was in progress
	for _, n := range []*node{first, second} {
		addLink(n.namespace("/var/run/docker/netns/db"), "x0", "", "10.1.5.77/24")
	}
	second.namespace("/var/run/netns/api").Links[1].Addrs = nil // its DEL is in progress
	// The agent has quarantined the address between the rounds.
	second.lease(ledger.Lease{Addr: addr("10.1.5.77"), Block: prefix("10.1.5.0/24"), Pool: "default", State: ledger.Quarantined})
	found := findings.Confirm(first.compare(), second.compare())
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].Text).To(ContainSubstring("10.1.5.77"))
	g.Expect(found[0].Text).To(HaveSuffix("(it is quarantined: no pod gets it)"), "the second round counts")
	g.Expect(findings.Confirm(nil, second.compare())).To(BeEmpty())
}

func TestYoungLeasesAreCounted(t *testing.T) {
	g := NewWithT(t)
	n := healthyNode()
	g.Expect(n.book.Young()).To(BeZero())
	n.leaseOf("10.1.5.2").Since = now()
	n.leaseOf("10.1.5.1").Since = now() // of the node itself: not compared anyhow
	g.Expect(n.book.Young()).To(Equal(1))
}
