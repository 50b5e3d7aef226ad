// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// networks is a host.
type networks []netip.Prefix

func (n networks) Networks() []netip.Prefix { return n }

// node is an agent's part that serves Docker: loop, ledger, driver, socket.
type node struct {
	Gomega
	t       testing.TB
	ledger  *ledger.Ledger
	journal *journal.Faulty
	failing atomic.Bool // the disk is full
	records *ipamapi.MemoryRecords
	host    networks
	config  ipamapi.Config
	deps    dockeripam.Deps // what a test sets beforehand
	plugin  *dockeripam.DockerIPAM
	loop    *controller.Controller
	socket  string
	cancel  context.CancelFunc
	ended   chan error
	running int
}

// newNode is a node whose parts do not run yet.
func newNode(t testing.TB) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "dockeripam-") // a test's own directory is too long for a socket
	n := &node{
		Gomega: NewWithT(t), t: t, journal: &journal.Faulty{Journal: journal.NewMemory()}, records: ipamapi.NewMemoryRecords(),
		socket: filepath.Join(dir, "plugins", "cadastre.sock"),
	}
	n.Expect(err).NotTo(HaveOccurred())
	n.journal.Plan = func(int64) journal.Fault {
		if n.failing.Load() {
			return journal.Fail
		}
		return journal.None
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return n
}

// assemble makes the parts on what is durable.
func (n *node) assemble() {
	var err error
	n.ledger, err = ledger.Open(context.Background(), n.journal, ledger.Options{})
	n.Expect(err).NotTo(HaveOccurred())
	stage := n.ledger.Begin()
	deps := n.deps
	deps.Stage, deps.EventLoop, deps.Socket = stage, n, n.socket
	if deps.NewDriver == nil {
		deps.NewDriver = n.newDriver
	}
	n.plugin = dockeripam.NewPlugin(deps)
	n.loop = controller.New(controller.DefaultConfig(), controller.Deps{Handlers: []controller.EventHandler{n.plugin}, Committers: []controller.Committer{stage}})
}

func (n *node) newDriver(ctx context.Context, opener ipamapi.PoolOpener) (dockeripam.Driver, error) {
	return ipamapi.New(ctx, ipamapi.Deps{Ledger: n.ledger, Pools: opener, Records: n.records, Host: n.host, Config: n.config})
}

// PushEvent and PushEventWait break the circle between the loop and the plugin.
func (n *node) PushEvent(ev controller.Event) error { return n.loop.PushEvent(ev) }

func (n *node) PushEventWait(ctx context.Context, ev controller.Event) error {
	return n.loop.PushEventWait(ctx, ev)
}

// start runs some parts until stop.
func (n *node) start(parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.running, n.ended = cancel, len(parts), make(chan error, len(parts))
	for _, part := range parts {
		go func() { n.ended <- part(ctx) }()
	}
	n.t.Cleanup(func() { n.Expect(n.stop()).To(BeEmpty()) })
}

// stop ends what runs, for the errors that came of it.
func (n *node) stop() (errs []error) {
	n.cancel()
	for ; n.running > 0; n.running-- {
		select {
		case err := <-n.ended:
			if err != nil {
				errs = append(errs, err)
			}
		case <-time.After(20 * time.Second):
			n.t.Fatal("a part does not end")
		}
	}
	return errs
}

// run is a whole node after its first resync, and its client.
func run(t testing.TB) (*node, *engine) {
	t.Helper()
	n := newNode(t)
	return n, n.begin()
}

// begin begins a process on what is durable.
func (n *node) begin() *engine {
	n.assemble()
	n.start(n.loop.Run, n.plugin.Run, n.plugin.Serve)
	n.resync()
	return n.engine()
}

// engine is a client, once the socket is there.
func (n *node) engine() *engine {
	n.Eventually(n.socket, 10*time.Second).Should(BeAnExistingFile())
	return newEngine(n.t, n.socket)
}

func (n *node) resync() {
	done := make(chan error, 1)
	n.Expect(n.loop.PushEvent(&controller.DBResync{KubeState: controller.KubeStateData{}, OnDone: func(err error) { done <- err }})).To(Succeed())
	n.Expect(<-done).To(Succeed())
}

// leases are the addresses of Docker's pools that are held.
func (n *node) leases() (all []string) {
	all = []string{}
	for _, l := range n.ledger.Leases() {
		if l.State != ledger.Cooling {
			all = append(all, l.Addr.String())
		}
	}
	slices.Sort(all)
	return all
}

// recorded are the IDs of pools that are on record, without their space.
func (n *node) recorded() (all []string) {
	all = []string{}
	n.Expect(n.records.Load(context.Background(), func(id string, _ []byte) error {
		all = append(all, strings.TrimPrefix(id, "LocalDefault/"))
		return nil
	})).To(Succeed())
	return all
}

// pools are the ledger's pools that have a block.
func (n *node) pools() (all []string) {
	all = []string{}
	for _, s := range n.ledger.Stats() {
		all = append(all, strings.TrimPrefix(s.Pool, "docker/LocalDefault/"))
	}
	slices.Sort(all)
	return all
}

func (n *node) expectSound() {
	n.t.Helper()
	findings, err := n.ledger.Check(context.Background())
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(findings).To(BeEmpty())
}
