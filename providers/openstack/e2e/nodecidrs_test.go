// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/internal/testkit/clouds/cloudlab"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// TestNodeCIDRs runs the operator with each type of the CIDR allocator. With a cloud the
// allowed address pairs of a node's port are its podCIDRs, and a conflict with the pair of
// another port is reported on the Node.
func TestNodeCIDRs(t *testing.T) {
	s := newStack(t, "external-openstack", []string{"10.1.0.0/24", "fd00:1:0:1::/64"})
	for i, c := range []struct {
		kind   string
		cloud  bool
		leads  bool // the cloud decides, and the nodes follow
		result string
	}{
		{"RangeAllocator", false, false, "podCIDRs of the operator, and no pairs"},
		{"CloudAllocator", true, true, "podCIDRs are the ports' pairs"},
		{"IPAMFromCluster", true, false, "pairs are the nodes' podCIDRs"},
		{"IPAMFromCloud", true, true, "podCIDRs are the ports' pairs"},
	} {
		x := &nodeCIDRs{stack: s, kind: c.kind, number: i}
		nodes := []string{x.name("a"), x.name("b")}
		for k, node := range nodes {
			x.machine(node)
			if c.leads {
				x.route(node, x.cidr(k))
			}
			x.create(node, "")
		}
		flags := []string{
			"--controllers=nodeipam",
			"--allocate-node-cidrs",
			"--cidr-allocator-type=" + c.kind,
			fmt.Sprintf("--cluster-cidr=10.2%d.0.0/16", i),
		}
		if c.cloud {
			flags = append(append(flags, "--cloud-provider=openstack"), s.flags()...)
		}
		s.StartOperator(flags...)
		for _, node := range nodes {
			x.agree(node, c.cloud)
		}
		if c.cloud {
			x.conflict(c.leads)
		}
		s.StopOperators()
		s.Kubectl("delete", "nodes", "--all")
		fmt.Printf("OpenStack, node CIDRs: --cidr-allocator-type=%s: %s\n", c.kind, c.result)
	}
}

// nodeCIDRs is the test of one type.
type nodeCIDRs struct {
	*stack
	kind   string
	number int
}

func (x *nodeCIDRs) name(suffix string) string { return fmt.Sprintf("node-%d-%s", x.number, suffix) }

// cidr returns a CIDR inside of the cluster's.
func (x *nodeCIDRs) cidr(k int) string { return fmt.Sprintf("10.2%d.%d.0/24", x.number, 100+k) }

func (x *nodeCIDRs) machine(node string) { x.server.Boot(x.t, x.networks[0], "machine-of-"+node) }

// port returns the port of a node's machine.
func (x *nodeCIDRs) port(node string) ports.Port {
	for _, p := range x.server.Ports(x.t) {
		if p.DeviceID == "machine-of-"+node {
			return p
		}
	}
	x.t.Fatalf("%s has no port", node)
	return ports.Port{}
}

// pairs returns the allowed address pairs of a node's port.
func (x *nodeCIDRs) pairs(node string) (all []string) {
	for _, a := range x.port(node).AllowedAddressPairs {
		all = append(all, a.IPAddress)
	}
	slices.Sort(all)
	return all
}

// route adds a pair to the port of a node, as an administrator does.
func (x *nodeCIDRs) route(node, cidr string) {
	pairs := []ports.AddressPair{{IPAddress: cidr}}
	opts := ports.UpdateOpts{AllowedAddressPairs: &pairs}
	x.Expect(ports.Update(x.t.Context(), x.server.Client(), x.port(node).ID, opts).Err).NotTo(HaveOccurred())
}

// create creates a Node object, with a podCIDR or without.
func (x *nodeCIDRs) create(node, cidr string) {
	spec := corev1.NodeSpec{ProviderID: "openstack:///machine-of-" + node, PodCIDR: cidr}
	if cidr != "" {
		spec.PodCIDRs = []string{cidr}
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: spec}
	_, err := x.Client.CoreV1().Nodes().Create(x.t.Context(), object, metav1.CreateOptions{})
	x.Expect(err).NotTo(HaveOccurred())
}

func (x *nodeCIDRs) get(node string) *corev1.Node {
	n, err := x.Client.CoreV1().Nodes().Get(x.t.Context(), node, metav1.GetOptions{})
	x.Expect(err).NotTo(HaveOccurred())
	return n
}

// agree waits until a node has podCIDRs, and the cloud the same pairs, or none without a cloud.
func (x *nodeCIDRs) agree(node string, cloud bool) {
	x.t.Helper()
	x.Eventually(func(g Gomega) {
		cidrs := x.get(node).Spec.PodCIDRs
		g.Expect(cidrs).NotTo(BeEmpty())
		if !cloud {
			cidrs = nil
		}
		g.Expect(x.pairs(node)).To(Equal(cidrs))
	}, cloudlab.Patience, cloudlab.Pace).Should(Succeed(), "%s of %s", node, x.kind)
}

// conflict makes a node whose podCIDR is a pair of another port: node c has it, node d wants it.
func (x *nodeCIDRs) conflict(leads bool) {
	x.t.Helper()
	first, second, cidr := x.name("c"), x.name("d"), x.cidr(50)
	x.machine(first)
	x.machine(second)
	x.route(first, cidr)
	if leads { // both ports have it, and the second node comes later
		x.route(second, cidr)
		x.create(first, "")
		x.agree(first, true)
		x.create(second, "")
	} else {
		x.create(second, cidr)
	}
	x.Eventually(func(g Gomega) {
		g.Expect(x.get(second).Status.Conditions).To(ContainElement(And(
			HaveField("Type", nodeipam.ConditionProblem),
			HaveField("Status", corev1.ConditionTrue),
			HaveField("Reason", nodeipam.ReasonConflict),
		)))
		events, err := x.Client.CoreV1().Events("").List(x.t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events.Items).To(ContainElement(And(
			HaveField("InvolvedObject.Name", second),
			HaveField("Reason", nodeipam.ReasonConflict),
		)))
	}, cloudlab.Patience, cloudlab.Pace).Should(Succeed(), "conflict of %s", x.kind)
	x.Expect(x.pairs(first)).To(Equal([]string{cidr}), "the port that had the pair keeps it")
	if !leads {
		x.Expect(x.pairs(second)).To(BeEmpty())
	} else {
		x.Expect(x.get(second).Spec.PodCIDRs).To(BeEmpty())
	}
}
