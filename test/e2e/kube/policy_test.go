// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	. "github.com/onsi/gomega"
	authentication "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// estateOfTwo returns the writes of the objects that are there: n1 is the agent's own
// node, n2 another one.
func estateOfTwo() []write {
	record := func(name, node string, more fields) write {
		spec := fields{"nodeName": node, "instance": "i-" + node, "generation": int64(4)}
		for k, v := range more {
			spec[k] = v
		}
		return create(v1alpha1.NodeIDs, "NodeID", name, spec)
	}
	return []write{
		record("1", "n1", nil), record("2", "n2", nil), record("3", "n2", fields{"released": "2026-11-22T12:00:00Z"}),
		record("4", "n1", fields{"instance": "before"}), record("5", "n2", fields{"released": "2026-11-22T12:00:00Z", "clean": true}),
		create(v1alpha1.NodeNames, "NodeName", "n2", fields{"id": int64(2), "instance": "i-n2", "writes": int64(1)}),
		beat("2", "n2"), beat("3", "n2"), beat("7", ""),
		create(v1alpha1.Pools, "Pool", "p", fields{"network": "default", "ranges": []any{}, "generation": int64(5)}),
		create(v1alpha1.PoolChanges, "PoolChange", v1alpha1.PoolChangeName, fields{"writes": int64(3)}),
		prefixClaim("10.1.77.0/24", "n2", fields{"held": true}), prefixClaim("10.1.78.0/24", "n2", nil),
		prefixClaim("10.1.79.0/24", "n2", fields{"held": true, "ends": "2026-11-22T12:00:00Z"}),
		create(v1alpha1.NetResourceSets, "NetResourceSet", "n2", fields{}),
		podEvent("p2", "n2", "NoAddress"),
	}
}

// attempt is a write of the agent of node n1, with the expected answer.
type attempt struct {
	what    string
	write   write
	refused string // a part of the message; "": it is allowed
}

func attempts() []attempt {
	const net = "10.1.80.0/24"
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	problem := fields{"conditions": []any{fields{"type": "E2E", "status": "True"}}}
	own := func(node string) fields { return fields{"nodeName": node, "instance": "i", "generation": int64(1)} }
	taken := fields{"nodeName": "n1", "instance": "i-n1", "generation": int64(5), "released": nil, "clean": nil}
	return []attempt{
		{"another node's ID", update(v1alpha1.NodeIDs, "2", fields{"ipAddresses": []any{"192.168.16.9/24"}}), "NodeID 2 is of node n2: the agent of node n1 may"},
		{"another node's ID for itself", update(v1alpha1.NodeIDs, "2", fields{"nodeName": "n1", "generation": int64(9)}), "NodeID 2 is of node n2"},
		{"another node's ID released", update(v1alpha1.NodeIDs, "2", fields{"released": "2026-11-22T12:00:00Z"}), "NodeID 2 is of node n2"},
		{"its own ID for another node", update(v1alpha1.NodeIDs, "1", fields{"nodeName": "n2"}), "NodeID 1 is of node n1"},
		{"a released ID at its generation", update(v1alpha1.NodeIDs, "3", fields{"nodeName": "n1"}), "at a higher generation only, not at 4"},
		{"a released ID called clean", update(v1alpha1.NodeIDs, "3", fields{"clean": true}), "NodeID 3 was released by node n2 in generation 4"},
		{"an ID deleted", remove(v1alpha1.NodeIDs, "1"), "may not delete it"},
		{"its own ID", update(v1alpha1.NodeIDs, "1", fields{"ipAddresses": []any{"192.168.16.1/24"}}), ""},
		{"an earlier instance of its name", update(v1alpha1.NodeIDs, "4", fields{"supersededBy": int64(1)}), ""},
		{"a released ID taken", update(v1alpha1.NodeIDs, "3", taken), ""},
		{"its own ID given up", update(v1alpha1.NodeIDs, "3", fields{"released": "2026-11-22T12:00:01Z"}), ""},
		{"a record that an older store has as released", update(v1alpha1.NodeIDs, "5", fields{"generation": int64(6), "released": nil, "clean": nil}), ""},
		{"an absent ID", create(v1alpha1.NodeIDs, "NodeID", "6", own("n1")), ""},
		{"another node's absent ID", create(v1alpha1.NodeIDs, "NodeID", "7", own("n3")), ""},

		{"another node's name", update(v1alpha1.NodeNames, "n2", fields{"id": int64(9)}), "may create and update NodeName n1 only"},
		{"another node's absent name", create(v1alpha1.NodeNames, "NodeName", "n3", fields{"id": int64(3), "instance": "i", "writes": int64(1)}), "NodeName n3"},
		{"a name deleted", remove(v1alpha1.NodeNames, "n2"), "NodeName n2"},
		{"its own name", create(v1alpha1.NodeNames, "NodeName", "n1", fields{"id": int64(1), "instance": "i", "writes": int64(1)}), ""},
		{"its own name again", update(v1alpha1.NodeNames, "n1", fields{"writes": int64(2)}), ""},

		{"another node's beat", update(v1alpha1.NodeBeats, "2", fields{"at": "2026-11-22T13:00:00Z"}), `may write beats with spec.nodeName "n1" only`},
		{"a beat of no node", update(v1alpha1.NodeBeats, "2", fields{"nodeName": nil}), `NodeBeat 2 with spec.nodeName ""`},
		{"another node's first beat", beat("8", "n2"), `NodeBeat 8 with spec.nodeName "n2"`},
		{"a first beat of no node", beat("8", ""), `NodeBeat 8 with spec.nodeName ""`},
		{"a beat deleted", remove(v1alpha1.NodeBeats, "2"), "may not delete it"},
		{"its first beat", beat("1", "n1"), ""},
		{"its next beat", update(v1alpha1.NodeBeats, "1", fields{"at": "2026-11-22T13:00:00Z"}), ""},
		{"the beat of an ID that it took", update(v1alpha1.NodeBeats, "3", fields{"nodeName": "n1", "instance": "i-n1", "generation": int64(5)}), ""},
		{"an agent of before the field", update(v1alpha1.NodeBeats, "7", fields{"at": "2026-11-22T13:00:00Z"}), ""},
		{"the same agent after its update", update(v1alpha1.NodeBeats, "7", fields{"nodeName": "n1"}), ""},

		{"a pool without a higher generation", update(v1alpha1.Pools, "p", fields{"draining": true}), "Pool p has generation 5: the agent of node n1 may write it at a higher generation only, not at 5"},
		{"a pool at a lower generation", update(v1alpha1.Pools, "p", fields{"generation": int64(4)}), "not at 4"},
		{"a pool deleted", remove(v1alpha1.Pools, "p"), "may not delete it"},
		{"a pool at a higher generation", update(v1alpha1.Pools, "p", fields{"draining": true, "generation": int64(6)}), ""},
		{"an absent pool", create(v1alpha1.Pools, "Pool", "q", fields{"network": "q", "ranges": []any{}, "generation": int64(1)}), ""},
		{"the counter of pools back", update(v1alpha1.PoolChanges, v1alpha1.PoolChangeName, fields{"writes": int64(2)}), "raise its spec.writes only"},
		{"another counter", create(v1alpha1.PoolChanges, "PoolChange", "more", fields{"writes": int64(1)}), "PoolChange more"},
		{"the counter deleted", remove(v1alpha1.PoolChanges, v1alpha1.PoolChangeName), "PoolChange pools"},
		{"the counter of pools", update(v1alpha1.PoolChanges, v1alpha1.PoolChangeName, fields{"writes": int64(4)}), ""},

		{"a pending claim for another node", prefixClaim(net, "n2", nil), "is for node n2: the agent of node n1 may create claims of its own node, and absent held ones"},
		{"a claim of another node that was released", prefixClaim(net, "n2", fields{"held": true, "ends": "2026-11-22T12:00:00Z"}), "is for node n2"},
		{"another node's claim that the store lost", prefixClaim("10.1.81.0/24", "n2", fields{"held": true}), ""},
		{"another node's claim", update(v1alpha1.PrefixClaims, claimName("10.1.77.0/24", "n2"), fields{"ends": "2026-11-22T12:00:00Z"}), "is of node n2"},
		{"another node's claim withdrawn", update(v1alpha1.PrefixClaims, claimName("10.1.77.0/24", "n2"), fields{"held": nil}), "is of node n2"},
		{"another node's claim for itself", update(v1alpha1.PrefixClaims, claimName("10.1.77.0/24", "n2"), fields{"nodeName": "n1"}), "is of node n2"},
		{"another node's pending claim held", update(v1alpha1.PrefixClaims, claimName("10.1.78.0/24", "n2"), fields{"held": true}), "is of node n2"},
		{"another node's held claim deleted", remove(v1alpha1.PrefixClaims, claimName("10.1.77.0/24", "n2")), "delete those of others that are pending or whose node was released"},
		{"its claim under another node's key", namedClaim(claimName(net, "n2"), net, "n1", nil), "named NETWORK.PREFIX.NODE only, such as default.10-1-77-0-24.n1"},
		{"another node's pending claim deleted", remove(v1alpha1.PrefixClaims, claimName("10.1.78.0/24", "n2")), ""},
		{"a claim of a released node deleted", remove(v1alpha1.PrefixClaims, claimName("10.1.79.0/24", "n2")), ""},
		{"its claim", prefixClaim(net, "n1", nil), ""},
		{"its claim held", update(v1alpha1.PrefixClaims, claimName(net, "n1"), fields{"held": true}), ""},
		{"its held claim for another node", update(v1alpha1.PrefixClaims, claimName(net, "n1"), fields{"nodeName": "n2"}), "is of node n1"},
		{"its held claim deleted", remove(v1alpha1.PrefixClaims, claimName(net, "n1")), ""},

		{"another node's NetResourceSet", report(ours(v1alpha1.NetResourceSets), "n2", fields{}), "may create and update NetResourceSet n1 only"},
		{"another node's absent NetResourceSet", create(v1alpha1.NetResourceSets, "NetResourceSet", "n3", fields{}), "NetResourceSet n3"},
		{"its NetResourceSet", create(v1alpha1.NetResourceSets, "NetResourceSet", "n1", fields{}), ""},
		{"the status of its NetResourceSet", report(ours(v1alpha1.NetResourceSets), "n1", fields{}), ""},

		{"another Node's status", report(nodes, "n2", problem), "Node n2: the agent of node n1 may write the status of Node n1 only"},
		{"its Node's status", report(nodes, "n1", problem), ""},
		{"an event about another Node", nodeEvent("n2"), "the agent of node n1 may write events about Node n1, and in its own name"},
		{"an event about its Node", nodeEvent("n1"), ""},
		{"an event about a pod in the name of another node", podEvent("p1", "n2", "NoAddress"), "the agent of node n1 may write events about Node n1, and in its own name"},
		{"an event about a pod in no name", podEvent("p1", "", "NoAddress"), "and in its own name"},
		{"an event about a pod with the reason of another component", podEvent("p1", "n1", "Evicted"), "and in its own name warnings about pods that get no address"},
		{"a warning about a pod without an address", podEvent("p1", "n1", "NoAddress"), ""},
		{"its event, later", changeEvent("p1.e2e", fields{"message": "again", "count": int64(2)}), ""},
		{"its event, about another pod", changeEvent("p1.e2e", fields{"involvedObject": fields{"kind": "Pod", "name": "p3", "namespace": "default"}}), "may update its own events only"},
		{"another node's event", changeEvent("p2.e2e", fields{"message": "all is well"}), "may write events about Node n1, and in its own name"},
		{"another node's event in its own name", changeEvent("p2.e2e", fields{"source": fields{"component": "cadastre-agent", "host": "n1"}}), "may update its own events only"},
	}
}

// TestPolicy: the token of one node's agent tries to write what belongs to
// another node. Its role allows everything here, so the policy alone refuses.
func TestPolicy(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	c.applyMode("netresource-kubernetes")
	c.allowAgents()
	c.create("n1")
	c.create("n2")
	admin := newWriter(t, c.kubeconfig)
	for i, w := range estateOfTwo() {
		g.Expect(w(admin, false)).To(Succeed(), "object %d", i)
	}
	agent, unbound := newWriter(t, c.agentAccount("n1")), newWriter(t, c.mustAccount("cadastre-agent"))
	for _, a := range attempts() { // the API server learns of roles and policies a little later
		if a.refused != "" {
			g.Eventually(a.write, patience, pace).WithArguments(unbound, true).Should(Or(beRefused(ofNoNode), Satisfy(apierrors.IsNotFound)), a.what)
		}
	}
	for _, a := range attempts() {
		if a.refused == "" {
			g.Expect(a.write(agent, false)).To(Succeed(), a.what)
			continue
		}
		g.Expect(a.write(agent, false)).To(beRefused(a.refused), a.what)
	}

	n1 := c.node("n1")
	onNode := newWriter(t, c.boundAccount("cadastre-agent", &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: n1.Name, UID: n1.UID}))
	g.Expect(update(v1alpha1.NodeNames, "n1", fields{"writes": int64(3)})(onNode, false)).To(Succeed(), "a token may be bound to the Node, too")
	g.Expect(update(v1alpha1.NodeNames, "n2", fields{"writes": int64(3)})(onNode, false)).To(beRefused("NodeName n2"))
	g.Expect(update(v1alpha1.NodeIDs, "2", fields{"released": "2026-11-22T12:00:00Z"})(newWriter(t, c.mustAccount("cadastre-operator")), false)).
		To(Succeed(), "the operator is not limited")
	g.Expect(remove(v1alpha1.NodeIDs, "2")(admin, false)).To(Succeed(), "nor are people")
	c.expectTypes()
}

// expectTypes expects that every field which a policy names is one of its objects',
// as Kubernetes' controller manager finds.
func (c *cluster) expectTypes() {
	c.t.Helper()
	c.startKubeControllers("validatingadmissionpolicy-status-controller")
	c.g.Eventually(func(g Gomega) {
		all, err := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(c.t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all.Items).NotTo(BeEmpty())
		for _, p := range all.Items {
			g.Expect(p.Status.ObservedGeneration).To(Equal(p.Generation), p.Name)
			g.Expect(p.Status.TypeChecking.ExpressionWarnings).To(BeEmpty(), p.Name)
		}
	}, patience, pace).Should(Succeed())
}
