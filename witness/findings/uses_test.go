// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness/findings"
)

// textsOf returns the sentences of uses.
func textsOf(uses []findings.Use) []string {
	all := []string{}
	for _, u := range uses {
		all = append(all, u.Text)
	}
	return all
}

func TestUsesWithoutLease(t *testing.T) {
	web := "10.1.5.2 is on eth0 of pod default/web (/var/run/netns/web)"
	for name, c := range map[string]struct {
		change func(n *node)
		want   []string
	}{
		"each use has its lease":      {func(*node) {}, []string{}},
		"the lease of a pod is lost":  {func(n *node) { n.dropLease("10.1.5.2") }, []string{web}},
		"the address is quarantined":  {func(n *node) { *n.leaseOf("10.1.5.2") = quarantine("10.1.5.2") }, []string{web}},
		"the address cools":           {func(n *node) { n.leaseOf("10.1.5.2").State = ledger.Cooling }, []string{web}},
		"the address is excluded":     {func(n *node) { n.dropLease("10.1.5.2"); n.exclude("default", "10.1.5.2") }, []string{}},
		"another pod has the address": {func(n *node) { n.leaseOf("10.1.5.2").Key.ContainerID = "sandbox-old" }, []string{web + ", and is leased to pod default/web"}},
		"no runtime knows the pod": {func(n *node) {
			n.dropLease("10.1.5.2")
			n.dropSandbox("web")
			n.world.Cluster.Pods = nil
		}, []string{"10.1.5.2 is on eth0 of network namespace /var/run/netns/web"}},
		"the cluster knows the pod": {func(n *node) {
			n.dropLease("10.1.5.2")
			n.dropSandbox("web")
		}, []string{web}},
		"the kernel shows nothing": {func(n *node) {
			n.dropLease("10.1.5.2")
			n.dropNamespace("/var/run/netns/web")
		}, []string{"10.1.5.2 is the address of pod default/web"}},
		"an address of a lost pool": {func(n *node) {
			n.addNamespace("/var/run/netns/far", prefix("10.1.77.9/32"), netip.Addr{}, 10)
		}, []string{"10.1.77.9 is on eth0 of network namespace /var/run/netns/far"}},
		"an address of another network": {func(n *node) {
			n.addNamespace("/var/run/netns/far", prefix("10.99.0.9/32"), netip.Addr{}, 10)
		}, []string{}},
		"a container of the engine": {func(n *node) { n.dropLease("172.20.0.2") }, []string{
			"172.20.0.2 is on eth0 of network namespace /var/run/docker/netns/db",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := healthyNode()
			c.change(n)
			uses := findings.UsesWithoutLease(n.book, &n.world)
			g.Expect(textsOf(uses)).To(Equal(c.want))
			for _, u := range uses {
				g.Expect(u.Evidence).NotTo(BeEmpty())
			}
		})
	}
}

// quarantine returns the quarantined lease of an address.
func quarantine(a string) ledger.Lease {
	return ledger.Lease{Addr: addr(a), Block: prefix("10.1.5.0/24"), Pool: "default", State: ledger.Quarantined, Key: ledger.KeyOfWitness("kernel", addr(a))}
}

func TestUsesOfLeases(t *testing.T) {
	g := NewWithT(t)
	n := healthyNode()
	leases := []ledger.Lease{*n.leaseOf("10.1.5.2"), *n.leaseOf("10.1.5.3")}
	n.dropSandbox("web")
	n.dropNamespace("/var/run/netns/web")
	g.Expect(textsOf(findings.UsesOf(n.book, &n.world, leases))).To(Equal([]string{"10.1.5.3 is on eth0 of pod default/api (/var/run/netns/api)"}))
	n.dropNamespace("/var/run/netns/api")
	n.sandbox("api").Addrs = nil
	g.Expect(textsOf(findings.UsesOf(n.book, &n.world, leases))).To(Equal([]string{"10.1.5.3 is leased to a sandbox that runs"}))
	n.sandbox("api").Ready = false
	g.Expect(findings.UsesOf(n.book, &n.world, leases)).To(BeEmpty(), "the cluster keeps the address of a pod that ends")
}

// A pool without leases is in use while a network of the engine has its subnet.
func TestUsesOfAPoolOfDocker(t *testing.T) {
	g := NewWithT(t)
	n := healthyNode()
	subnet := prefix("172.20.0.0/24")
	g.Expect(textsOf(findings.UsesOfPool(n.book, &n.world, subnet, []ledger.Lease{*n.leaseOf("172.20.0.2")}))).To(HaveLen(1))
	g.Expect(textsOf(findings.UsesOfPool(n.book, &n.world, subnet, nil))).To(Equal([]string{"network blue of the engine has subnet 172.20.0.0/24"}))
	g.Expect(findings.UsesOfPool(n.book, &n.world, prefix("172.21.0.0/24"), nil)).To(BeEmpty())
}
