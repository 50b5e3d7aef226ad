// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/gomega"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names of the shipped manifests.
const (
	namespace       = "cadastre-system"
	accountOfAgents = "cadastre-agent"
	accountOfLeader = "cadastre-operator"
	labelOfAll      = "app.kubernetes.io/part-of=cadastre"
)

// Apply applies a mode of k8s/, such as netresource-openstack, as an administrator does, and
// waits until the API server grants what its roles say. Nothing runs the Deployment and the
// DaemonSet: the lab starts the programs with tokens of their accounts.
func (l *Lab) Apply(mode string) {
	l.t.Helper()
	l.Kubectl("apply", "--validate=strict", "--kustomize="+filepath.Join(l.config.Root, "..", "..", "k8s", mode))
	bindings, err := l.Client.RbacV1().ClusterRoleBindings().List(
		l.t.Context(),
		metav1.ListOptions{LabelSelector: labelOfAll},
	)
	l.must(err)
	l.Expect(bindings.Items).NotTo(BeEmpty())
	for _, b := range bindings.Items {
		role, err := l.Client.RbacV1().ClusterRoles().Get(l.t.Context(), b.RoleRef.Name, metav1.GetOptions{})
		l.must(err)
		for _, r := range role.Rules {
			l.Eventually(l.granted, Patience, Pace).WithArguments(b.Subjects[0].Name, r).
				Should(BeTrue(), "%s of %s", role.Name, b.Subjects[0].Name)
		}
	}
}

// granted reports whether an account has the first right of a rule.
func (l *Lab) granted(account string, r rbac.PolicyRule) (bool, error) {
	resource, sub, _ := strings.Cut(r.Resources[0], "/")
	answer, err := l.Client.AuthorizationV1().SubjectAccessReviews().Create(
		l.t.Context(),
		&authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":" + account,
			ResourceAttributes: &authorization.ResourceAttributes{
				Verb:        r.Verbs[0],
				Group:       r.APIGroups[0],
				Resource:    resource,
				Subresource: sub,
			},
		}},
		metav1.CreateOptions{},
	)
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// account writes a kubeconfig with a token of a service account, bound to an object or not,
// and returns its path.
func (l *Lab) account(name, file string, to *authentication.BoundObjectReference) string {
	l.t.Helper()
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{BoundObjectRef: to}}
	token, err := l.Client.CoreV1().ServiceAccounts(namespace).CreateToken(
		l.t.Context(),
		name,
		request,
		metav1.CreateOptions{},
	)
	l.must(err)
	path := filepath.Join(l.dir, file)
	l.must(os.WriteFile(path, []byte(kubeconfigWith(l.plane.port, token.Status.Token)), 0o600))
	return path
}

// agentAccount returns the kubeconfig of a node's agent, whose token is bound to a pod of the
// node, as that of a DaemonSet.
func (l *Lab) agentAccount(node string) string {
	l.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: accountOfAgents + "-" + node, Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeName:           node,
			ServiceAccountName: accountOfAgents,
			Containers:         []corev1.Container{{Name: "agent", Image: accountOfAgents}},
		},
	}
	pod, err := l.Client.CoreV1().Pods(namespace).Create(l.t.Context(), pod, metav1.CreateOptions{})
	l.must(err)
	return l.account(accountOfAgents, "kubeconfig-"+node, &authentication.BoundObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Name:       pod.Name,
		UID:        pod.UID,
	})
}

// operatorAccount returns the kubeconfig of the operators.
func (l *Lab) operatorAccount() string {
	l.t.Helper()
	return l.account(accountOfLeader, "kubeconfig-operator", nil)
}

// refusals returns the lines of the programs' logs that tell of a missing right.
func (l *Lab) refusals() (lines []string) {
	lines = l.Logs("forbidden")
	for _, n := range l.nodes {
		for line := range strings.Lines(tail(n.Log(), 1<<30)) {
			if strings.Contains(line, "forbidden") {
				lines = append(lines, fmt.Sprintf("%s: %s", n.Node, line))
			}
		}
	}
	return lines
}
