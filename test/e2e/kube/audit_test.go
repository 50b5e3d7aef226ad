// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// checkCluster runs "cadastre check --cluster" against an agent and returns what it
// prints with its exit code.
func (a *agent) checkCluster() string {
	cmd := exec.Command(filepath.Join(os.Getenv(binEnv), "cadastre"), "--socket", a.socket(), "check", "--cluster")
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return err.Error()
	}
	return fmt.Sprintf("%s\nexit %d", out, cmd.ProcessState.ExitCode())
}

// claimOf returns the name of a claim of a block of pods.
func claimOf(block, node string) string {
	return kv.PrefixClaimName(kv.PodNetworkClaims, netip.MustParsePrefix(block), node)
}

// TestCheckOfTheCluster: operator and agent as the manifests of external-kubernetes run
// them, under their roles. A foreign writer contradicts them in the API server; the
// operator is killed, a person repairs the objects, and another operator takes over.
func TestCheckOfTheCluster(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	c.applyMode("external-kubernetes")
	c.create("a")
	a := newAgent(t, "a", c.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": c.agentAccount("a")}))
	g.Eventually(a.checkCluster, patience, pace).Should(And(
		HavePrefix("cannot tell: no operator has compared the objects of the cluster: start cadastre-operator"), HaveSuffix("\nexit 5")))

	account := c.mustAccount("cadastre-operator")
	args := append(c.operatorArgs(), "--audit-interval=1s")
	one := newOperator(t, account, args...)
	block := first(c.awaitNumbered("a"))[0]
	a.awaitBlocks(block + " active")
	g.Eventually(a.checkCluster, patience, pace).Should(And(MatchRegexp(`(?m)^clean: 1 node ID, 1 claim, 1 Node compared \d+s ago by operator `), HaveSuffix("\nexit 0")))

	c.create("b")
	other := first(c.awaitNumbered("b"))[0]
	c.write(fmt.Sprintf(`{apiVersion: cadastre.dev/v1alpha1, kind: PrefixClaim, metadata: {name: %s},
  spec: {network: default, prefix: %s, nodeName: a, nodeID: 1, instance: foreign, held: true, since: "2026-01-01T00:00:00Z"}}`, claimOf(other, "a"), other))
	c.write(`{apiVersion: cadastre.dev/v1alpha1, kind: NodeID, metadata: {name: "9"}, spec: {nodeName: gone, instance: i, generation: 1}}`)
	g.Eventually(a.checkCluster, patience, pace).Should(And(
		ContainSubstring("K101 block-on-two-nodes: addresses of block "+other+" are on 2 nodes: a, b\n"),
		ContainSubstring("     cluster: a: a claim has "+other+"\n"),
		ContainSubstring("K111 node-id-without-node: node ID 9 is held by node gone, which the cluster does not have\n"),
		ContainSubstring("     fix: cadastre node release gone;"),
		HaveSuffix("\nexit 4"),
	))
	g.Eventually(func(g Gomega) {
		events, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=BlockOnTwoNodes"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events.Items).To(HaveLen(1))
	}, patience, pace).Should(Succeed())
	shown, err := c.kubectl("get", "clusterchecks.cadastre.dev", "cluster")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(shown).To(MatchRegexp(`cluster +2 `))

	one.kill() // without a word: the report of this leader stays, and becomes old
	for _, object := range []string{"nodeids.cadastre.dev/9", "prefixclaims.cadastre.dev/" + claimOf(other, "a")} {
		_, err = c.kubectl("delete", "--ignore-not-found", object)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(a.checkCluster, 2*patience, pace).Should(And(
		ContainSubstring("K101"), ContainSubstring("\ncannot tell: the last comparison is from "), HaveSuffix("\nexit 5")))
	two := newOperator(t, account, args...)
	g.Eventually(a.checkCluster, patience, pace).Should(And(ContainSubstring("\nclean: "), HaveSuffix("\nexit 0")), "no finding of the first leader stays")

	two.stop(g)
	a.process.stop(g)
	g.Expect(a.checkCluster()).To(HaveSuffix("\nexit 3"))
	for _, p := range []*process{one, two, a.process} {
		said, err := os.ReadFile(p.log)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(said)).NotTo(ContainSubstring("forbidden"), "%s needs what its role does not say", p.name)
	}
}
