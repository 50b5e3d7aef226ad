// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// kubectl runs kubectl as the administrator, for what it prints.
func (c *cluster) kubectl(args ...string) (string, error) {
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(os.Getenv(assetsEnv), "kubectl"), append([]string{"--kubeconfig=" + c.kubeconfig}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	if said := strings.TrimSpace(stderr.String()); said != "" { // a warning of the API server
		return stdout.String(), fmt.Errorf("kubectl %s: %s", strings.Join(args, " "), said)
	}
	return stdout.String(), nil
}

// apply applies manifests, a file or a folder, as a person does: through
// kustomize where the folder says how. The API server refuses fields that it
// does not know, and a warning is an error. The end of the test deletes them.
func (c *cluster) apply(path string) (string, error) {
	which := []string{"--filename=" + path}
	if _, err := os.Stat(filepath.Join(path, "kustomization.yaml")); err == nil {
		which = []string{"--kustomize=" + path}
	}
	c.t.Cleanup(func() {
		cmd := exec.Command(filepath.Join(os.Getenv(assetsEnv), "kubectl"), append([]string{"--kubeconfig=" + c.kubeconfig, "delete", "--ignore-not-found", "--wait=false"}, which...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Errorf("delete what was applied of %s: %v: %s", path, err, out)
		}
	})
	return c.kubectl(append([]string{"apply", "--validate=strict"}, which...)...)
}

// account returns a kubeconfig with a token of a service account that is bound to
// no object.
func (c *cluster) account(namespace, name string) (kubeconfig string, err error) {
	return c.accountWith(namespace, name, authentication.TokenRequestSpec{})
}

// accountWith returns a kubeconfig with a token of a service account.
func (c *cluster) accountWith(namespace, name string, spec authentication.TokenRequestSpec) (kubeconfig string, err error) {
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(c.t.Context(), name, &authentication.TokenRequest{Spec: spec}, createOptions())
	if err != nil {
		return "", fmt.Errorf("ask for a token of service account %s/%s: %w", namespace, name, err)
	}
	conf := api.NewConfig()
	conf.Clusters["c"] = &api.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	conf.AuthInfos["a"] = &api.AuthInfo{Token: token.Status.Token}
	conf.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "a", Namespace: namespace}
	conf.CurrentContext = "x"
	kubeconfig = filepath.Join(c.t.TempDir(), "kubeconfig")
	return kubeconfig, clientcmd.WriteToFile(*conf, kubeconfig)
}

// as is a client of a kubeconfig.
func as(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// can reports whether an account may do something, by the API server's word.
func can(t *testing.T, client kubernetes.Interface, what authorization.ResourceAttributes) (bool, error) {
	review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &what}}
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, createOptions())
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// TestAccess: manifests are applied strictly, and an account may do what its
// role says and nothing else.
func TestAccess(t *testing.T) {
	c := newCluster(t)
	g := c.g
	const good = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-reader}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`
	folder := t.TempDir()
	write := func(name, text string) {
		g.Expect(os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600)).To(Succeed())
	}
	write("all.yaml", strings.Replace(good, "rules:", "rulez: []\nrules:", 1))
	write("kustomization.yaml", "resources: [all.yaml]\n")
	_, err := c.apply(folder)
	g.Expect(err).To(MatchError(ContainSubstring(`unknown field "rulez"`)))
	write("all.yaml", good)
	out, err := c.apply(folder)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(ContainSubstring("e2e-reader created"))

	kubeconfig, err := c.account("default", "reader")
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := as(kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { // the authorizer learns of roles a little later
		_, err := reader.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}, patience, pace).Should(Succeed())
	g.Expect(can(t, reader, authorization.ResourceAttributes{Verb: "list", Resource: "nodes"})).To(BeTrue())
	g.Expect(can(t, reader, authorization.ResourceAttributes{Verb: "patch", Resource: "nodes"})).To(BeFalse())
	_, err = c.account("default", "unknown")
	g.Expect(err).To(MatchError(ContainSubstring(`"unknown" not found`)))
}
