// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

func TestQuarantinesThatAreWanted(t *testing.T) {
	const web = "default 10.1.5.2"
	docker := "docker/LocalDefault/172.20.0.0/24 172.20.0.9"
	blue := &findings.Subnet{Pool: "blue", Prefix: prefix("10.1.5.0/24")}
	lost := func(n *node) { n.dropLease("10.1.5.2") }
	for name, c := range map[string]struct {
		change func(n *node)
		want   []string
	}{
		"each use has its lease":   {func(*node) {}, nil},
		"the lease is lost":        {lost, []string{web}},
		"a reclaim is pending":     {func(n *node) { n.leaseOf("10.1.5.2").State = ledger.Pending }, nil},
		"it is quarantined":        {func(n *node) { *n.leaseOf("10.1.5.2") = quarantine("10.1.5.2") }, nil},
		"it cools":                 {func(n *node) { n.leaseOf("10.1.5.2").State = ledger.Cooling }, []string{web}},
		"it cools since a moment":  {func(n *node) { l := n.leaseOf("10.1.5.2"); l.State, l.Since = ledger.Cooling, now() }, []string{web}},
		"it is excluded":           {func(n *node) { lost(n); n.exclude("default", "10.1.5.2") }, nil},
		"it is excluded elsewhere": {func(n *node) { lost(n); n.exclude("blue", "10.1.5.2") }, []string{web}},
		"the block drains":         {func(n *node) { lost(n); n.book.Blocks[0].State = ledger.Draining }, nil},
		"another pool has its lease": {func(n *node) {
			n.book.Blocks = append(n.book.Blocks, ledger.BlockStat{Pool: blue.Pool, Block: blue.Prefix})
		}, []string{"blue 10.1.5.1", "blue 10.1.5.2", "blue 10.1.5.3"}},
		"the host has it":            {func(n *node) { addLink(n.host(), "x0", "dummy", "10.1.5.9/32") }, []string{"default 10.1.5.9"}},
		"the host has one of Docker": {func(n *node) { addLink(n.host(), "x0", "dummy", "172.20.0.9/32") }, []string{docker}},
		"nothing leads to it": {func(n *node) {
			n.world.Kernel.Namespaces = append(n.world.Kernel.Namespaces, witness.Namespace{NSID: 99})
			addLink(&n.world.Kernel.Namespaces[len(n.world.Kernel.Namespaces)-1], "x0", "", "10.1.5.78/32")
		}, nil},
		"only the runtime shows it":       {func(n *node) { lost(n); n.dropNamespace("/var/run/netns/web") }, []string{web}},
		"only a sandbox that ends has it": {func(n *node) { lost(n); n.dropNamespace("/var/run/netns/web"); n.sandbox("web").Ready = false }, nil},
		"only the cluster shows it":       {func(n *node) { lost(n); n.dropNamespace("/var/run/netns/web"); n.dropSandbox("web") }, nil},
		"the kernel cannot be read":       {func(n *node) { lost(n); n.without(witness.Kernel, witness.Missing) }, []string{web}},
		"only the engine has an endpoint": {func(n *node) { n.endpoint("172.20.0.9") }, []string{docker}},
		"an auxiliary address of a network": {func(n *node) {
			n.world.Engine.Networks[2].Pools[0].Aux = map[string]netip.Addr{"router": addr("172.20.0.9")}
		}, []string{docker}},
		"the gateway of a network":        {func(n *node) { n.world.Engine.Networks[2].Pools[0].Gateway = addr("172.20.0.9") }, []string{docker}},
		"a container with it has stopped": {func(n *node) { n.stopped("172.20.0.9") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := healthyNode()
			c.change(n)
			wanted, unused := findings.Quarantines(n.book, &n.world)
			g.Expect(placesOf(wanted)).To(Equal(c.want))
			g.Expect(unused).To(BeEmpty())
			for _, u := range wanted {
				g.Expect(u.Reason).To(ContainSubstring(u.Addr.String()))
				g.Expect(u.Key).To(Equal(witness.QuarantineKey(u.Addr)))
			}
		})
	}
}

// A quarantine ends only if each witness was read and none shows a use.
func TestQuarantinesThatNoneNeeds(t *testing.T) {
	const free = "default 10.1.5.77"
	for name, c := range map[string]struct {
		change func(n *node)
		want   []string
	}{
		"nothing has it":            {func(*node) {}, []string{free}},
		"a link has it":             {func(n *node) { addLink(n.namespace("/var/run/netns/web"), "x0", "", "10.1.5.77/24") }, nil},
		"the host has it":           {func(n *node) { addLink(n.host(), "x0", "dummy", "10.1.5.77/32") }, nil},
		"it is excluded and in use": {func(n *node) { n.exclude("default", "10.1.5.77"); addLink(n.host(), "x0", "dummy", "10.1.5.77/32") }, nil},
		"a sandbox has it":          {func(n *node) { n.sandbox("web").Addrs = []netip.Addr{addr("10.1.5.77")} }, nil},
		"a pod of the cluster":      {func(n *node) { n.world.Cluster.Pods[0].Addrs = []netip.Addr{addr("10.1.5.77")} }, nil},
		"a finished pod": {func(n *node) {
			p := &n.world.Cluster.Pods[0]
			p.Addrs, p.Finished = []netip.Addr{addr("10.1.5.77")}, true
		}, []string{free}},
		"a container of the engine": {func(n *node) { n.endpoint("10.1.5.77") }, nil},
		"the gateway of a network":  {func(n *node) { n.world.Engine.Networks[2].Pools[0].Gateway = addr("10.1.5.77") }, nil},
		"an auxiliary address": {func(n *node) {
			n.world.Engine.Networks[2].Pools[0].Aux = map[string]netip.Addr{"router": addr("10.1.5.77")}
		}, nil},
		"a stopped container":        {func(n *node) { n.stopped("10.1.5.77") }, []string{free}},
		"the kernel is missing":      {func(n *node) { n.without(witness.Kernel, witness.Missing) }, nil},
		"the kernel has no reader":   {func(n *node) { n.without(witness.Kernel, witness.NotApplicable) }, nil},
		"namespaces are hidden":      {func(n *node) { n.world.Kernel.Hidden = "/run/netns/x" }, nil},
		"the runtime is missing":     {func(n *node) { n.without(witness.Runtime, witness.Missing) }, nil},
		"the engine is missing":      {func(n *node) { n.without(witness.Engine, witness.Missing) }, nil},
		"the cluster is missing":     {func(n *node) { n.without(witness.Cluster, witness.Missing) }, nil},
		"the runtime does not apply": {func(n *node) { n.without(witness.Runtime, witness.NotApplicable) }, []string{free}},
		"the node has no runtime": {func(n *node) {
			n.without(witness.Runtime, witness.Missing)
			n.world.Reports[1].Absent = true
		}, []string{free}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := healthyNode()
			n.book.Leases = append(n.book.Leases, quarantine("10.1.5.77"))
			c.change(n)
			wanted, unused := findings.Quarantines(n.book, &n.world)
			g.Expect(placesOf(unused)).To(Equal(c.want))
			g.Expect(wanted).To(BeEmpty())
		})
	}
}

// Whatever has happened to a node, its quarantines follow from what check reports.
func TestQuarantinesAndFindingsAgree(t *testing.T) {
	all := slices.Concat(differences(), networkDifferences(), neighbours(), networkNeighbours())
	rapid.Check(t, func(t *rapid.T) {
		n := healthyNode()
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			tryChange(rapid.SampledFrom(all).Draw(t, "change"), n)
		}
		n.book.Grace, n.book.Changing = 0, nil // check alone leaves out what changes
		reported := map[string]string{}
		for _, f := range n.compare() {
			reported[f.Subject.Pool+" "+f.Subject.Addr.String()+" "+f.Number] = f.Repair
		}
		wanted, unused := findings.Quarantines(n.book, &n.world)
		for _, at := range placesOf(wanted) {
			quarantine := []string{reported[at+" C202"], reported[at+" C207"]}
			_, host := reported[at+" C211"]
			if !host && !slices.Contains(quarantine, findings.RepairQuarantine) {
				t.Fatalf("%s gets a quarantine, and check does not say why: %v", at, reported)
			}
		}
		for _, at := range placesOf(unused) {
			if reported[at+" C208"] != findings.RepairEndQuarantine {
				t.Fatalf("the quarantine of %s ends, and check does not say why: %v", at, reported)
			}
		}
	})
}

func placesOf(all []ledger.Unleased) (places []string) {
	for _, u := range all {
		places = append(places, u.Pool+" "+u.Addr.String())
	}
	return places
}

func (n *node) exclude(pool, a string) {
	n.book.Exclusions = append(n.book.Exclusions, ledger.Exclusion{Pool: pool, Addr: addr(a)})
}

// endpoint adds a container that only the engine shows.
func (n *node) endpoint(a string) {
	e := &n.world.Engine.Networks[2].Endpoints
	*e = append(*e, witness.EngineEndpoint{Name: "far", Addrs: []netip.Addr{addr(a)}})
}

// stopped adds a stopped container with a fixed address.
func (n *node) stopped(a string) {
	n.world.Engine.Containers = append(n.world.Engine.Containers, witness.EngineContainer{
		ID: "c-old", Name: "old", Fixed: map[string][]netip.Addr{"n-blue": {addr(a)}},
	})
}
