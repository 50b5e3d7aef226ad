// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// write applies an object, as a person does.
func (c *cluster) write(object string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "object.yaml")
	c.g.Expect(os.WriteFile(file, []byte(object), 0o600)).To(Succeed())
	_, err := c.kubectl("apply", "--validate=strict", "--filename="+file)
	c.g.Expect(err).NotTo(HaveOccurred())
}

// beats has the agent of instance "one" have beaten last at a time.
func (c *cluster) beats(at time.Time) {
	c.t.Helper()
	c.write(fmt.Sprintf(`{apiVersion: cadastre.dev/v1alpha1, kind: NodeBeat, metadata: {name: "1"},
  spec: {instance: one, generation: 1, session: s, at: %q}}`, at.UTC().Format(time.RFC3339Nano)))
}

// TestClaims: the operator, as the manifests of external-kubernetes run it, in a
// network of one block. A block with a claim goes to no other node, and back to
// its own; the claim ends when Node object and agent are gone.
func TestClaims(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	_, err := c.apply(filepath.Join("..", "..", "..", "k8s", "external-kubernetes"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.kubectl("wait", "--for=condition=Established", "--all", "crd")
	g.Expect(err).NotTo(HaveOccurred())
	c.awaitRoles()
	args := c.operatorArgs()
	g.Expect(args).To(ContainElement("--node-id-expire=6m"), "a bit more than the agents' 5 minutes")
	operator := newOperator(t, c.mustAccount("cadastre-operator"), append(args, "--cluster-cidr=10.1.77.0/24", "--node-id-expire=1s")...)

	a := c.create("a")
	g.Expect(first(c.awaitNumbered("a"))).To(Equal([]string{"10.1.77.0/24"}))
	c.beats(time.Now().Add(time.Hour)) // an agent that is there
	c.write(fmt.Sprintf(`{apiVersion: cadastre.dev/v1alpha1, kind: PrefixClaim, metadata: {name: default.10-1-77-0-24.a},
  spec: {network: default, prefix: 10.1.77.0/24, nodeName: a, nodeID: 1, instance: one, nodeUID: %q, held: true, since: "2026-01-01T00:00:00Z"}}`, a.UID))

	c.remove("a")
	c.create("b")
	g.Eventually(func() string { return problem(c.node("b")) }, patience, pace).Should(Equal(nodeipam.ReasonNotAvailable))
	c.create("a")
	g.Expect(first(c.awaitNumbered("a"))).To(Equal([]string{"10.1.77.0/24"}), "its home block")
	g.Expect(c.node("b").Spec.PodCIDRs).To(BeEmpty())

	c.remove("a")
	c.beats(time.Now().Add(-time.Hour))
	g.Expect(first(c.awaitNumbered("b"))).To(Equal([]string{"10.1.77.0/24"}))
	out, err := c.kubectl("get", "prefixclaims", "--output=name")
	g.Expect(err).To(Or(BeNil(), MatchError(ContainSubstring("No resources found"))))
	g.Expect(out).To(BeEmpty(), "the claim has ended")

	operator.stop(g)
	said, err := os.ReadFile(operator.log)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(said)).NotTo(ContainSubstring("forbidden"), "the operator needs what its role does not say")
	g.Expect(string(said)).To(And(ContainSubstring("their claims have ended"), ContainSubstring("default.10-1-77-0-24.a")))
}
