// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// World is a cluster whose store is its API server, for kubestatetest. The
// store's way to the API server can be cut; the administrator has another.
type World struct {
	*harness
	line   *line
	server *Server // nil for a real one
}

// newWorld makes a World of an API server as Run wants it.
func newWorld(t *testing.T, config *rest.Config) *World {
	w := &World{harness: newHarness(t, config), line: &line{conns: map[net.Conn]bool{}}}
	w.Expect(w.store.Close()).To(Succeed())
	config = rest.CopyConfig(config)
	config.Dial = w.line.dial
	var err error
	w.store, err = apistore.Open(apistore.Config{REST: config, Node: thisNode, Log: slog.New(slog.DiscardHandler)})
	w.Expect(err).NotTo(HaveOccurred())
	return w
}

// World is a World of the Server, which ends with it.
func (s *Server) World(t *testing.T) *World {
	w := newWorld(t, s.Config())
	w.server = s
	return w
}

// Store is the store of node-a.
func (w *World) Store() kvdb.Store { return w.store }

// PutNode creates a Node; its podCIDR can be set once, as in a real API server.
func (w *World) PutNode(name, podCIDR string) { w.node(name, podCIDR) }

// DeleteNode deletes a Node.
func (w *World) DeleteNode(name string) { w.remove(nodes(), name) }

// PutPod creates a Pod or changes its address.
func (w *World) PutPod(node, name, ip string) {
	_, err := w.at(pods()).Get(w.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		w.pod(name, node, ip)
		return
	}
	w.podIP(name, ip)
}

// DeletePod deletes a Pod at once.
func (w *World) DeletePod(_, name string) { w.remove(pods(), name) }

// PutNetwork creates or changes a CustomNetwork.
func (w *World) PutNetwork(name, cidr string) { w.network(name, cidr) }

// DeleteNetwork deletes one.
func (w *World) DeleteNetwork(name string) {
	w.remove(v1alpha1.Resource(v1alpha1.CustomNetworks), name)
}

// PutNodeConfig creates or changes a NodeConfig.
func (w *World) PutNodeConfig(node, gateway string) { w.nodeConfig(node, gateway) }

// DeleteNodeConfig deletes one.
func (w *World) DeleteNodeConfig(node string) {
	w.remove(v1alpha1.Resource(v1alpha1.NodeConfigs), node)
}

// Cut cuts the store off.
func (w *World) Cut() { w.line.cut(true) }

// Heal is the reverse of Cut.
func (w *World) Heal() { w.line.cut(false) }

// BreakWatches breaks all that is under way.
func (w *World) BreakWatches() { w.Cut(); w.Heal() }

// CompactWatches has the Server forget what was; a real one does so by itself.
func (w *World) CompactWatches() {
	if w.server == nil {
		w.BreakWatches()
		return
	}
	w.server.Compact()
	w.server.Expire()
}

// Backup remembers the state of the Server; with a real one it answers nil.
func (w *World) Backup() func() {
	if w.server == nil {
		return nil
	}
	then := w.server.Snapshot()
	return func() { w.server.Restore(then, false) }
}

// Close closes the store.
func (w *World) Close() {
	w.Expect(w.store.Close()).To(Succeed())
	w.line.cut(true)
	if w.server != nil {
		w.server.Close()
	}
}

// line is a way to an API server that can be cut.
type line struct {
	mu    sync.Mutex
	away  bool
	conns map[net.Conn]bool
}

// errCut is the error of a connection while the line is cut.
var errCut = errors.New("the line is cut")

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		return nil, errors.Join(errCut, conn.Close())
	}
	l.conns[conn] = true
	return conn, nil
}

func (l *line) cut(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away = away; !away {
		return
	}
	for conn := range l.conns {
		_ = conn.Close() // it may be closed already
	}
	clear(l.conns)
}
