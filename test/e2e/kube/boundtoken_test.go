// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	. "github.com/onsi/gomega"
	authentication "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agentAccount returns a kubeconfig with the token that the agent's pod on a node
// has. The Node need not exist.
func (c *cluster) agentAccount(node string) string {
	c.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cadastre-agent-" + node, Namespace: namespace},
		Spec:       v1.PodSpec{NodeName: node, ServiceAccountName: "cadastre-agent", Containers: []v1.Container{{Name: "agent", Image: "cadastre-agent"}}},
	}
	pod, err := c.client.CoreV1().Pods(namespace).Create(c.t.Context(), pod, createOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	return c.boundAccount("cadastre-agent", &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
}

// boundAccount returns a kubeconfig with a token of a service account that is
// bound to an object.
func (c *cluster) boundAccount(name string, to *authentication.BoundObjectReference) string {
	c.t.Helper()
	kubeconfig, err := c.accountWith(namespace, name, authentication.TokenRequestSpec{BoundObjectRef: to})
	c.g.Expect(err).NotTo(HaveOccurred())
	return kubeconfig
}
