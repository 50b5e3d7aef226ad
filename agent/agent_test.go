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
	"go.uber.org/goleak"

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

// runningSink is a southbound with the methods that an agent calls if there are any.
type runningSink struct {
	controller.MemorySink
	run    func(context.Context) error
	closed int
}

func (s *runningSink) Run(ctx context.Context) error { return s.run(ctx) }

func (s *runningSink) Close() error {
	s.closed++
	return nil
}

// untilStopped returns when ctx ends.
func untilStopped(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// given holds what a caller opens for an agent.
type given struct {
	node      Node
	sink      *runningSink
	store     closingStore
	listeners Listeners
}

func newGiven(t *testing.T) *given {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return l
	}
	return &given{
		node:      nodeIn(t),
		sink:      &runningSink{run: untilStopped},
		store:     closingStore{mem.New(), make(chan struct{})},
		listeners: Listeners{Docker: listen(), REST: listen(), Metrics: listen()},
	}
}

func (x *given) agent(g Gomega, more ...Option) *Agent {
	a, err := New(contivconf.Default(), append([]Option{
		WithNode(x.node), WithSouthbound(x.sink), WithStore(x.store), WithListeners(x.listeners),
	}, more...)...)
	g.Expect(err).NotTo(HaveOccurred())
	return a
}

func (x *given) isClosed(g Gomega) {
	g.Expect(x.sink.closed).To(Equal(1), "the southbound")
	g.Expect(x.store.closed).To(BeClosed())
	for _, l := range []net.Listener{x.listeners.Docker, x.listeners.REST, x.listeners.Metrics} {
		g.Expect(l.Close()).To(MatchError(net.ErrClosed))
	}
}

func TestRunClosesWhatItWasGiven(t *testing.T) {
	nilHandler := WithEventHandlers(func(Plugins) []controller.EventHandler { return []controller.EventHandler{nil} })
	for name, x := range map[string]struct {
		change func(*given) []Option
		ended  bool // the context, before Run
		want   string
	}{
		"the run directory is a file": {change: func(x *given) []Option {
			_ = os.WriteFile(x.node.RunDir, nil, 0o600)
			return nil
		}, want: "start the agent: use run directory "},
		"the state directory is a file": {change: func(x *given) []Option {
			_ = os.WriteFile(x.node.StateDir, nil, 0o600)
			return nil
		}, want: "start the agent: open database "},
		"a handler is nil": {
			change: func(*given) []Option { return []Option{nilHandler} },
			want:   "start the agent: init controller: handler ",
		},
		"the southbound fails": {change: func(x *given) []Option {
			x.sink.run = func(context.Context) error { return io.ErrUnexpectedEOF }
			return nil
		}, want: "southbound: unexpected EOF"},
		"the southbound returns": {change: func(x *given) []Option {
			x.sink.run = func(context.Context) error { return nil }
			return nil
		}, want: "southbound: it returned before it was stopped"},
		"a listener is closed": {change: func(x *given) []Option {
			_ = x.listeners.REST.Close()
			return nil
		}, want: "API: answer on "},
		"the context has ended": {ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, parts := NewWithT(t), newGiven(t)
			var options []Option
			if x.change != nil {
				options = x.change(parts)
			}
			a := parts.agent(g, options...)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if x.ended {
				stop()
			}
			err := a.Run(ctx)
			if x.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(x.want)))
			}
			parts.isClosed(g)
		})
	}
}

func TestAnAgentRunsOnce(t *testing.T) {
	g, parts := NewWithT(t), newGiven(t)
	a := parts.agent(g)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	g.Eventually(func() bool { return a.ran.Load() }, soon).Should(BeTrue())
	g.Expect(a.Run(ctx)).To(MatchError(ContainSubstring("it has run before")))
	g.Expect(parts.store.closed).NotTo(BeClosed(), "the first run goes on")
	stop()
	g.Expect(<-ended).To(Succeed())
	g.Expect(a.Run(t.Context())).To(MatchError(ContainSubstring("it has run before")))
	parts.isClosed(g)
}

func TestTwoAgentsRunInOneProcess(t *testing.T) {
	g := NewWithT(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ended := make(chan error, 2)
	both := []*given{newGiven(t), newGiven(t)}
	for _, parts := range both {
		a := parts.agent(g)
		go func() { ended <- a.Run(ctx) }()
	}
	for _, parts := range both {
		g.Eventually(func() int {
			r, err := client.Get("http://" + parts.listeners.Metrics.Addr().String() + "/readyz")
			if err != nil {
				return 0
			}
			defer r.Body.Close()
			return r.StatusCode
		}, soon, 10*time.Millisecond).Should(Equal(http.StatusOK))
	}
	stop()
	for range both {
		g.Expect(<-ended).To(Succeed())
	}
	for _, parts := range both {
		parts.isClosed(g)
	}
}
