// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// nodeIn returns a node whose directories are below one of the test.
func nodeIn(t *testing.T) Node {
	node, dir := DefaultNode(), t.TempDir()
	node.Name, node.StateDir, node.RunDir = "a", filepath.Join(dir, "state"), filepath.Join(dir, "run")
	return node
}

func TestNewRefusesAnUnusableNode(t *testing.T) {
	for name, x := range map[string]struct {
		conf   *contivconf.Config
		change func(*Node)
		want   string
	}{
		"no configuration": {nil, func(*Node) {}, "new agent: the configuration is nil"},
		"no name":          {contivconf.Default(), func(n *Node) { n.Name = "" }, "Node.Name is empty"},
		"no state":         {contivconf.Default(), func(n *Node) { n.StateDir = "" }, `Node.StateDir "", RunDir "/run/cadastre": want a directory for each`},
		"no run":           {contivconf.Default(), func(n *Node) { n.RunDir = "" }, `Node.StateDir "/var/lib/cadastre", RunDir "": want a directory for each`},
		"no interval":      {contivconf.Default(), func(n *Node) { n.CheckInterval = 0 }, "Node.CheckInterval 0s: want a duration above zero"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			node := DefaultNode()
			node.Name = "a"
			x.change(&node)
			_, err := New(x.conf, WithNode(node))
			g.Expect(err).To(MatchError(ContainSubstring(x.want)))
		})
	}
}

func TestRunFailsBeforeItServes(t *testing.T) {
	g := NewWithT(t)
	node := nodeIn(t)
	g.Expect(os.WriteFile(node.RunDir, nil, 0o600)).To(Succeed())
	a, err := New(contivconf.Default(), WithNode(node))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.Run(t.Context())).To(MatchError(And(HavePrefix("start the agent: use run directory "), ContainSubstring(node.RunDir))))
}

// closingStore is a store that tells when it is closed.
type closingStore struct {
	*mem.Store
	closed chan struct{}
}

func (s closingStore) Close() error {
	close(s.closed)
	return s.Store.Close()
}

func TestOptionsReplaceParts(t *testing.T) {
	g := NewWithT(t)
	sink, store := &controller.MemorySink{}, closingStore{mem.New(), make(chan struct{})}
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	rest, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	a, err := New(contivconf.Default(),
		WithNode(nodeIn(t)),
		WithSouthbound(sink),
		WithStore(store),
		WithListeners(Listeners{REST: rest, Metrics: metrics}),
	)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(l net.Listener, path string) (code int, body string) {
		r, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		g.Expect(err).NotTo(HaveOccurred())
		return r.StatusCode, string(text)
	}
	g.Eventually(func() int { code, _ := get(metrics, "/readyz"); return code }, soon, 10*time.Millisecond).Should(Equal(http.StatusOK))
	code, _ := get(metrics, "/v1/status")
	g.Expect(code).To(Equal(http.StatusNotFound), "probes and metrics only")
	_, body := get(rest, "/v1/status")
	g.Expect(body).To(ContainSubstring(`"nodeName":"a"`))
	code, _ = get(rest, "/v1/resync")
	g.Expect(code).To(Equal(http.StatusNotFound), "read only")

	values, err := sink.Dump(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(values).To(HaveKey("node"))
	kvs, _, err := store.List(t.Context(), kv.NodeRecordPrefix)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).NotTo(BeEmpty(), "the claim of the node ID")

	stop()
	g.Expect(<-ended).To(Succeed())
	g.Expect(store.closed).To(BeClosed())
}
