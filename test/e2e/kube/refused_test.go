// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// TestARefusedPodHasOneEvent: an agent with the token and the policies of the manifests
// refuses a pod for a full node, again and again, as the kubelet retries. The pod has one
// event with the sentence of the CNI error, also after the agent has started again, and
// kubectl describe shows it.
func TestARefusedPodHasOneEvent(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	c.applyMode("derived-kubernetes")
	conf := c.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": c.agentAccount("a")})
	conf = strings.Replace(conf, "podSubnetOneNodePrefixLen: 24", "podSubnetOneNodePrefixLen: 29", 1)
	c.create("a")
	pod, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       v1.PodSpec{NodeName: "a", Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}, createOptions())
	g.Expect(err).NotTo(HaveOccurred())
	a := newAgent(t, "a", conf)
	g.Eventually(func() error { return a.sandbox("filler-0", "filler-0", "") }, patience, pace).Should(Succeed(), a.process.said())

	var refused error
	for i := 1; refused == nil && i < 20; i++ {
		refused = a.sandbox(fmt.Sprintf("filler-%d", i), fmt.Sprintf("filler-%d", i), "")
	}
	g.Expect(refused).To(MatchError(ContainSubstring("no IP address is free")))
	events := func() (all []v1.Event) {
		list, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
		g.Expect(err).NotTo(HaveOccurred())
		return list.Items
	}
	first := ""
	for run := range 2 { // the second run of the agent does not know the uid of the pod
		for try := range 5 {
			uid := string(pod.UID)
			if run == 1 {
				uid = ""
			}
			refused = a.sandbox(fmt.Sprintf("sandbox-%d-%d", run, try), "web", uid)
			g.Expect(refused).To(HaveOccurred())
			if try == 0 {
				first = refused.Error()
			}
		}
		g.Eventually(events, patience, pace).Should(ConsistOf(And(
			HaveField("Type", v1.EventTypeWarning), HaveField("Reason", "NoAddress"), HaveField("Message", first),
			HaveField("InvolvedObject.UID", pod.UID), HaveField("Source.Host", "a"),
		)), a.process.said())
		g.Expect(strings.Count(a.process.said(), "pod=default/web")).To(Equal(1), "one line in the log of each run")
		if run == 0 {
			a.process.stop(g)
			a.run()
			g.Eventually(func() error { return a.sandbox("filler-0", "filler-0", "") }, patience, pace).Should(Succeed())
		}
	}
	out, err := c.kubectl("describe", "pod", "web")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(And(ContainSubstring("NoAddress"), ContainSubstring("no IP address is free")))
}

// sandbox asks for an address for a pod in a new sandbox; a refusal is a *cni.Error.
func (a *agent) sandbox(container, pod, uid string) error {
	_, err := cniclient.Ask(context.Background(), a.http.Do, cni.Request{
		Command: "ADD", Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: metav1.NamespaceDefault, Name: pod, UID: uid},
	})
	return err
}
