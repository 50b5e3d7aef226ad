// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKubectlCadastreFindsTheAgent runs the plugin with kubectl and an API server. There is
// no kubelet, so exec itself fails; what comes before it succeeds or says what is wrong.
func TestKubectlCadastreFindsTheAgent(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	c.applyMode("derived-kubernetes")
	c.create("a")
	dir := t.TempDir()
	plugin := filepath.Join(dir, "kubectl-cadastre")
	g.Expect(os.Link(filepath.Join(os.Getenv(binEnv), "cadastre"), plugin)).To(Succeed())
	explain := func(kubeconfig string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), plugin, append([]string{"--kubeconfig", kubeconfig, "explain"}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+os.Getenv(assetsEnv)+string(os.PathListSeparator)+os.Getenv("PATH"), "CADASTRE_SOCKET=")
		out, err := cmd.CombinedOutput()
		g.Expect(err).To(HaveOccurred(), "%s", out)
		return string(out)
	}
	pod := func(namespace, name, node string, labels map[string]string) *v1.Pod {
		p, err := c.client.CoreV1().Pods(namespace).Create(t.Context(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "agent", Image: "i"}}},
		}, createOptions())
		g.Expect(err).NotTo(HaveOccurred())
		return p
	}
	pod(metav1.NamespaceDefault, "web", "a", nil)
	pod(metav1.NamespaceDefault, "waits", "", nil)
	g.Expect(explain(c.kubeconfig, "pod", "default/none")).To(ContainSubstring("find pod default/none: it does not exist: "))
	g.Expect(explain(c.kubeconfig, "pod", "default/waits")).To(ContainSubstring("pod default/waits has no node yet"))
	g.Expect(explain(c.kubeconfig, "pod", "default/web")).To(ContainSubstring("node a has no agent pod in namespace cadastre-system"))
	_, err := c.kubectl("create", "serviceaccount", "dev")
	g.Expect(err).NotTo(HaveOccurred())
	dev, err := c.account(metav1.NamespaceDefault, "dev")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(explain(dev, "pod", "default/web")).To(ContainSubstring(
		"find pod default/web: kubectl's user may not: it needs the permission to get pods in namespace default"))

	labels := map[string]string{"app.kubernetes.io/name": "cadastre-agent"}
	agent := pod(namespace, "cadastre-agent-x7f", "a", labels)
	g.Expect(explain(c.kubeconfig, "pod", "default/web")).To(ContainSubstring(
		"the agent of node a does not run: pod cadastre-agent-x7f is Pending"))
	agent.Status.Phase = v1.PodRunning
	_, err = c.client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), agent, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	said := explain(c.kubeconfig, "pod", "default/web")
	g.Expect(said).To(ContainSubstring("run a command in pod cadastre-agent-x7f of node a: kubectl: "))
	g.Expect(strings.Count(said, "\n")).To(Equal(1), said)
}
