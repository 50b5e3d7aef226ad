// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
)

// apiServer is the API server of a test, as kubectl sees it.
type apiServer struct {
	Gomega
	url string
}

// request sends a request and reads the answer into v.
func (s apiServer) request(method, path, body string, v any) {
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	s.Expect(err).NotTo(HaveOccurred())
	resp, err := http.DefaultClient.Do(req)
	s.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	s.Expect(resp.StatusCode).To(Equal(http.StatusOK))
	s.Expect(json.NewDecoder(resp.Body).Decode(v)).To(Succeed())
}

// condition returns the condition of a type: its status, reason and message.
func (s apiServer) condition(kind string) string {
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Reason, Message string }
		}
	}
	s.request(http.MethodGet, "/api/v1/nodes/a", "", &node)
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return strings.Join([]string{c.Status, c.Reason, c.Message}, ": ")
		}
	}
	return ""
}

// warnings returns the warning events about the Node.
func (s apiServer) warnings() (all []string) {
	var events struct {
		Items []struct {
			Type, Reason, Message string
			InvolvedObject        struct{ Kind, Name, UID string }
		}
	}
	s.request(http.MethodGet, "/api/v1/namespaces/default/events", "", &events)
	for _, e := range events.Items {
		all = append(all, fmt.Sprintf("%s %s %s/%s(%s): %s", e.Type, e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.InvolvedObject.UID, e.Message))
	}
	return all
}

// kubernetesMember returns a node whose cluster store is a new API server.
func kubernetesMember(t *testing.T) (*member, apiServer) {
	server := apistoretest.New()
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	api := apiServer{NewWithT(t), server.Config().Host}
	api.request(http.MethodPost, "/api/v1/nodes", `{"metadata": {"name": "a"}}`, &struct{}{})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	api.Expect(os.WriteFile(kubeconfig, fmt.Appendf(nil, `
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, api.url), 0o600)).To(Succeed())
	m := newMember(t, "a", "http://unused")
	m.conf = strings.Replace(m.conf, `{type: etcd, endpoints: ["http://unused"]}`, fmt.Sprintf("{type: kubernetes, kubeconfig: %q}", kubeconfig), 1)
	return m, api
}

// A configuration with another pod network than the cluster uses is a condition and
// one warning event on the Node, until it is corrected. Where the store is not
// Kubernetes, status and metric show it.
func TestADifferentConfigurationIsACondition(t *testing.T) {
	g := NewWithT(t)
	m, api := kubernetesMember(t)
	right := m.conf
	const configured = "CadastreConfigurationApplied"
	same := "True: PoolsEqual: the cluster uses the pod network of this node's contiv.conf"
	m.start()
	m.follows()
	g.Eventually(func() string { return api.condition(configured) }, soon, 10*time.Millisecond).Should(Equal(same))
	g.Expect(api.warnings()).To(BeEmpty())

	differs := "contiv.conf has podSubnetCIDR 10.9.0.0/16 (a /24 for each node), but the cluster has pool default with 10.1.0.0/16 (a /24 for each node), "
	for range 2 { // the second start repeats nothing
		m.end()
		m.conf = strings.Replace(right, "10.1.0.0/16", "10.9.0.0/16", 1)
		m.start()
		m.follows()
		g.Eventually(func() string { return api.condition(configured) }, soon, 10*time.Millisecond).Should(HavePrefix("False: PoolsDiffer: " + differs))
		g.Eventually(api.warnings, soon, 10*time.Millisecond).Should(ConsistOf(HavePrefix("Warning ConfigurationDiffers Node/a(a): " + differs)))
		g.Expect(m.a.Status().ConfigProblem).To(HavePrefix(differs))
	}
	m.apply("pools: [{name: pods-2, ranges: [{cidr: 10.9.0.0/16, oneNodePrefixLen: 24}]}, {name: default, state: draining}]")
	g.Eventually(func() string { return api.condition(configured) }, soon, 10*time.Millisecond).Should(Equal(same), "the cluster has changed")

	m.end()
	m.conf = right
	m.start()
	m.follows()
	g.Eventually(func() string { return api.condition(configured) }, soon, 10*time.Millisecond).Should(HavePrefix("False: PoolsDiffer: "))
	g.Eventually(api.warnings, soon, 10*time.Millisecond).Should(HaveLen(2))
}

// The condition of the claims and the one of the configuration do not replace each
// other.
func TestTheConditionsOfANode(t *testing.T) {
	g := NewWithT(t)
	m, api := kubernetesMember(t)
	m.conf = strings.Replace(m.conf, "cadastre:\n", "cadastre:\n  podBlocks: static\n  staticPodCIDRs: [10.1.7.0/24]\n", 1)
	m.start()
	m.follows()
	g.Eventually(func() string { return api.condition("CadastrePrefixesHeld") }, soon, 10*time.Millisecond).Should(HavePrefix("True: ClaimsHeld: "))
	g.Eventually(func() string { return api.condition("CadastreConfigurationApplied") }, soon, 10*time.Millisecond).Should(HavePrefix("True: NoPools: podBlocks is static"))
	g.Expect(api.condition("CadastrePrefixesHeld")).To(HavePrefix("True: ClaimsHeld: "))
}
