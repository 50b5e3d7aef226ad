// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Scenario 4: a node is cut off with a pod of a StatefulSet, which is created again on
// another node. The first node comes back, and its kubelet deletes the old sandbox: the
// pod keeps the address that it has now.
func TestAStatefulPodMovesFromANodeThatComesBack(t *testing.T) {
	server := etcdtest.Start(t)
	conf := fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre: {nodeIDs: {quarantine: 0s}, kvdb: {type: etcd, endpoints: [%q]}, controller: {remoteDBProbingInterval: 1s}}
`, server.Endpoint())
	first, second := newNode(t, "node-1", conf), newNode(t, "node-2", conf)
	old := first.add(sandbox{"web-0", "s1", "eth0"})
	first.kill()
	moved := second.add(sandbox{"web-0", "s2", "eth0"})
	second.Expect(moved).NotTo(Equal(old))

	first.start(t)
	first.Expect(first.holders(t)).To(Equal(map[string]string{old.String(): "s1 eth0"}), "the node has it until its kubelet says otherwise")
	for _, s := range []string{"s1", "s2", "s1"} { // also a DEL that is late, repeated or of the other node
		_, err := first.cni("DEL", sandbox{"web-0", s, "eth0"})
		first.Expect(err).NotTo(HaveOccurred())
	}
	first.Expect(first.holders(t)).To(BeEmpty())
	second.Expect(second.holders(t)).To(Equal(map[string]string{moved.String(): "s2 eth0"}))
	second.Expect(second.add(sandbox{"web-0", "s2", "eth0"})).To(Equal(moved))
	second.Expect(first.add(sandbox{"db-0", "s3", "eth0"})).NotTo(Equal(moved))
}

// Scenario 16: the credentials of the agent expire. ADD and DEL go on, also after the
// agent has started again: the way of a pod uses the socket only.
func TestTheCredentialsExpire(t *testing.T) {
	server := apistoretest.New()
	t.Cleanup(server.Close)
	to, err := url.Parse(server.Config().Host)
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	var expired atomic.Bool
	var refused atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !expired.Load() {
			proxy.ServeHTTP(w, r)
			return
		}
		refused.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}`)
	}))
	t.Cleanup(front.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(kubeconfig, fmt.Appendf(nil, `
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: expires}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, front.URL), 0o600)).To(Succeed())
	resp, err := http.Post(front.URL+"/api/v1/nodes", "application/json", strings.NewReader(`{"metadata": {"name": "node-1"}}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(resp.Body.Close()).To(Succeed())
	n := newNode(t, "node-1", fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre:
  coolDown: 0s
  nodeIDs: {quarantine: 0s}
  kvdb: {type: kubernetes, kubeconfig: %q}
  controller: {remoteDBProbingInterval: 1s, delayLocalResync: 100ms}
`, kubeconfig))
	web := n.add(sandbox{"web", "s1", "eth0"})

	expired.Store(true)
	server.CutWatches()
	for range 2 {
		g.Eventually(func() bool { return n.status(t).KVDBConnected }, patience).Should(BeFalse())
		before := refused.Load()
		g.Eventually(refused.Load, patience).Should(BeNumerically(">", before), "the agent goes on asking")
		db := n.add(sandbox{"db", "s2", "eth0"})
		g.Expect(db).NotTo(Equal(web))
		_, err = n.cni("DEL", sandbox{"db", "s2", "eth0"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(n.holders(t)).To(Equal(map[string]string{web.String(): "s1 eth0"}))
		n.kill()
		n.start(t) // from its copy of the cluster's state
	}
	_, err = n.cni("DEL", sandbox{"web", "s1", "eth0"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.holders(t)).To(BeEmpty())
}

func (n *node) status(t *testing.T) (s localapi.Status) {
	_, err := n.Read(t.Context(), &s, "status")
	n.Expect(err).NotTo(HaveOccurred())
	return s
}
