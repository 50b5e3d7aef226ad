// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// kept are the kinds of objects that come back after the store was wiped.
func kept() []string {
	return []string{v1alpha1.NodeIDs, v1alpha1.NodeBeats, v1alpha1.Pools, v1alpha1.PrefixClaims}
}

// shared are all kinds that agents write: kept, and those which only order claims
// of one name and changes of pools, and come back with the next one.
func shared() []string { return append(kept(), v1alpha1.NodeNames, v1alpha1.PoolChanges) }

// wipe deletes all objects of these kinds.
func (w writer) wipe(g Gomega) {
	for _, resource := range shared() {
		g.Expect(w.client.Resource(ours(resource)).DeleteCollection(w.t.Context(), deleteOptions(), metav1.ListOptions{})).To(Succeed(), resource)
	}
}

// names returns "RESOURCE NAME" of the objects of some kinds, with the node of those
// that have one.
func (w writer) names(resources ...string) (all []string, err error) {
	for _, resource := range resources {
		list, err := w.client.Resource(ours(resource)).List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, u := range list.Items {
			text := resource + " " + u.GetName()
			if node, ok := u.Object["spec"].(fields)["nodeName"].(string); ok {
				text += " of " + node
			}
			all = append(all, text)
		}
	}
	return all, nil
}

// has expects all of these objects.
func (w writer) has(want []string) func(g Gomega) {
	return func(g Gomega) {
		have, err := w.names(kept()...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(have).To(ContainElements(want))
	}
}

// limited are agents whose tokens are those of their pods.
type limited struct {
	*cluster
	agents map[string]*agent
}

// join creates a node with podCIDR 10.1.I.0/24, and starts its agent.
func (l *limited) join(i int) *agent {
	l.t.Helper()
	name := fmt.Sprint("n", i)
	l.create(name)
	l.setPodCIDRs(name, fmt.Sprintf("10.1.%d.0/24", i))
	a := newAgent(l.t, name, l.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": l.agentAccount(name)}))
	a.awaitBlocks(fmt.Sprintf("10.1.%d.0/24 active", i))
	l.agents[name] = a
	return a
}

// nodeID returns the node ID of an agent that follows the API server, and is sure of it.
func (a *agent) nodeID() uint32 {
	a.t.Helper()
	var s localapi.Status
	a.g.Eventually(func(g Gomega) {
		var err error
		s, err = a.status()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.StateFrom).To(Equal("remote"), s.KVDBError)
		g.Expect(s.NodeIDProblem).To(BeEmpty())
	}, patience, pace).Should(Succeed())
	return s.NodeID
}

// TestAWipedStoreUnderThePolicy: three agents with the tokens of their pods lose
// all that they shared, first while they are down, then while they run. The first
// that is back writes the records of all, and a newcomer takes an ID of none of
// them. In the end everything is there again under the IDs of before.
func TestAWipedStoreUnderThePolicy(t *testing.T) {
	mayRun(t)
	l := &limited{cluster: openCluster(t, newPlane(t).kubeconfig), agents: map[string]*agent{}}
	g := l.g
	l.applyMode("external-kubernetes")
	admin := newWriter(t, l.kubeconfig)
	g.Expect(create(v1alpha1.CustomNetworks, "CustomNetwork", "blue", fields{"subnetCIDR": "10.5.0.0/16", "subnetOneNodePrefixLen": int64(24)})(admin, false)).To(Succeed())
	ids, held := map[string]uint32{}, map[string]map[string]string{}
	for i := range 3 {
		a := l.join(i + 1)
		a.add("p1")
		ids[a.name], held[a.name] = a.nodeID(), a.held()
	}
	g.Expect(ids).To(Equal(map[string]uint32{"n1": 1, "n2": 2, "n3": 3}))
	before := l.awaitRecords(admin, 3)
	g.Expect(admin.names(v1alpha1.NodeNames, v1alpha1.PoolChanges)).To(ConsistOf("nodenames n1", "nodenames n2", "nodenames n3", "poolchanges pools"))
	for _, a := range l.agents { // each has read the records of the other ones
		a.process.stop(g)
	}
	for _, a := range l.agents {
		a.run()
		a.nodeID()
	}
	for _, a := range l.agents {
		a.process.stop(g)
	}

	admin.wipe(g)
	l.agents["n1"].run()
	g.Eventually(func() ([]string, error) { return admin.names(v1alpha1.NodeIDs, v1alpha1.Pools, v1alpha1.PrefixClaims) }, patience, pace).
		Should(ConsistOf("nodeids 1 of n1", "nodeids 2 of n2", "nodeids 3 of n3", "pools blue", "prefixclaims default.10-1-1-0-24.n1 of n1",
			"prefixclaims default.10-1-2-0-24.n2 of n2", "prefixclaims default.10-1-3-0-24.n3 of n3"), "the records and claims of all nodes")
	g.Expect(l.join(4).nodeID()).To(BeNumerically("==", 4), "the others are not back")
	l.agents["n2"].run()
	l.agents["n3"].run()
	g.Eventually(admin.has(before), patience, pace).Should(Succeed())
	before = l.awaitRecords(admin, 4)
	admin.wipe(g)
	g.Eventually(admin.has(before), 2*patience, pace).Should(Succeed(), "while all run")
	for name, id := range ids {
		a := l.agents[name]
		g.Expect(a.nodeID()).To(Equal(id), name)
		g.Expect(a.held()).To(Equal(held[name]), name)
		a.add("p2")
	}
	l.older(admin)
	l.release(admin)
}

// older has the store come back with an earlier generation of the record of a node
// that is away. The agents of other nodes may not write that record, and follow
// the store.
func (l *limited) older(admin writer) {
	l.t.Helper()
	away, other := l.agents["n2"], l.agents["n1"]
	away.process.stop(l.g)
	record, err := admin.client.Resource(ours(v1alpha1.NodeIDs)).Get(l.t.Context(), "2", getOptions())
	l.g.Expect(err).NotTo(HaveOccurred())
	generation := record.Object["spec"].(fields)["generation"].(int64)
	l.g.Expect(update(v1alpha1.NodeIDs, "2", fields{"generation": generation + 5})(admin, false)).To(Succeed())
	other.process.stop(l.g)
	other.run() // and reads it
	other.nodeID()
	other.process.stop(l.g)
	l.g.Expect(update(v1alpha1.NodeIDs, "2", fields{"generation": generation})(admin, false)).To(Succeed())
	other.run()
	l.g.Expect(other.nodeID()).To(BeNumerically("==", 1), other.process.said())
	away.run()
	l.g.Expect(away.nodeID()).To(BeNumerically("==", 2))
}

// awaitRecords waits until n nodes have written all kept records, and returns them.
func (l *limited) awaitRecords(admin writer, n int) (all []string) {
	l.t.Helper()
	all = []string{"pools blue"}
	for i := 1; i <= n; i++ {
		all = append(all, fmt.Sprintf("nodeids %d of n%d", i, i), fmt.Sprintf("nodebeats %d of n%d", i, i),
			fmt.Sprintf("prefixclaims %s of n%d", claimName(fmt.Sprintf("10.1.%d.0/24", i), fmt.Sprint("n", i)), i))
	}
	l.g.Eventually(func() ([]string, error) { return admin.names(kept()...) }, patience, pace).Should(ConsistOf(all))
	return all
}

// release has the ID of a node that is gone released: an agent may not, and says
// what does; the operator's account may.
func (l *limited) release(admin writer) {
	l.t.Helper()
	gone, other := l.agents["n4"], l.agents["n1"]
	gone.process.stop(l.g)
	err := other.request(http.MethodPost, localapi.PathNodeRelease, localapi.NodeReleaseRequest{Name: "n4", Force: true}, nil)
	l.g.Expect(err).To(MatchError(And(ContainSubstring("403"), ContainSubstring("NodeID 4 is of node n4: the agent of node n1 may"),
		ContainSubstring("exec deployment/cadastre-operator -- /cadastre-operator node release n4"))))
	out, err := exec.CommandContext(l.t.Context(), filepath.Join(os.Getenv(binEnv), "cadastre-operator"), "node", "release", "n4",
		"--kubeconfig="+l.mustAccount("cadastre-operator")).CombinedOutput()
	l.g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	l.g.Expect(string(out)).To(Equal("released node ID 4 of n4\n"))
	u, err := admin.client.Resource(ours(v1alpha1.NodeIDs)).Get(l.t.Context(), "4", getOptions())
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Expect(u.Object["spec"]).To(And(HaveKeyWithValue("clean", true), HaveKey("released")))
	all, err := admin.client.Resource(ours(v1alpha1.PrefixClaims)).List(l.t.Context(), metav1.ListOptions{})
	l.g.Expect(err).NotTo(HaveOccurred())
	for _, u := range all.Items {
		if spec := u.Object["spec"].(fields); spec["nodeName"] == "n4" {
			l.g.Expect(spec).To(HaveKey("ends"), "its claims end, too")
		}
	}
	l.create("n5")
	five := newAgent(l.t, "n5", l.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": l.agentAccount("n5")}))
	l.g.Expect(five.nodeID()).To(BeNumerically("==", 4), "the ID that was released")
}
