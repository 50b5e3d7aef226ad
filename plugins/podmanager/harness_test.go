// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

type label string

func (l label) GetAgentLabel() string { return string(l) }

// nodeFive is a nodesync that knows this node only.
type nodeFive struct{}

func (nodeFive) GetNodeID() uint32                   { return 5 }
func (nodeFive) GetAllNodes() nodesync.Nodes         { return nil }
func (nodeFive) PublishNodeIPs([]netip.Prefix) error { return nil }

// txn is a transaction over what was wanted before it.
type txn struct{ values map[string]proto.Message }

func (t *txn) Put(key string, m proto.Message) { t.values[key] = m }
func (t *txn) Get(key string) proto.Message    { return t.values[key] }
func (t *txn) Delete(key string)               { delete(t.values, key) }
func (t *txn) FollowUp(controller.Event) error { return nil }

// loop is an event loop that comes to an event when the test says so.
type loop struct {
	mu       sync.Mutex
	queue    []controller.Event
	closed   error // of every push
	full     bool  // a push waits until its context ends
	pushed   func(controller.Event)
	handled  func() // called when an event is handled and not committed; nil: nothing
	handlers []controller.EventHandler
	stage    *ledger.Stage
	txn      *txn
	manual   bool // otherwise an event is processed when it is pushed
}

func (l *loop) PushEvent(ev controller.Event) error { return l.PushEventWait(context.Background(), ev) }

func (l *loop) PushEventWait(ctx context.Context, ev controller.Event) error {
	l.mu.Lock()
	closed, full, pushed, manual := l.closed, l.full, l.pushed, l.manual
	l.mu.Unlock()
	if closed != nil {
		return fmt.Errorf("push event %s: %w", ev.GetName(), closed)
	}
	if full {
		<-ctx.Done()
		return fmt.Errorf("push event %s: %w", ev.GetName(), context.Cause(ctx))
	}
	if pushed != nil {
		pushed(ev)
	}
	l.mu.Lock()
	l.queue = append(l.queue, ev)
	l.mu.Unlock()
	if !manual {
		l.step(0)
	}
	return nil
}

// waiting is the number of events in the queue.
func (l *loop) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// step processes event number i of the queue, as the controller does.
func (l *loop) step(i int) {
	l.mu.Lock()
	ev := l.queue[i]
	l.queue = slices.Delete(l.queue, i, i+1)
	l.mu.Unlock()
	if e, ok := ev.(controller.ExpiringEvent); ok && time.Now().After(e.Deadline()) {
		ev.Done(controller.ErrExpired)
		return
	}
	ev.Done(l.process(ev.(controller.UpdateEvent)))
}

func (l *loop) process(ev controller.UpdateEvent) error {
	handlers, finished := slices.Clone(l.handlers), []controller.EventHandler{}
	if ev.Direction() == controller.Reverse {
		slices.Reverse(handlers)
	}
	var errs []error
	for _, h := range handlers {
		if !h.HandlesEvent(ev) {
			continue
		}
		if _, err := h.Update(ev, l.txn); err != nil {
			errs = append(errs, err)
			if ev.TransactionType() == controller.RevertOnFailure {
				return errors.Join(err, l.revert(ev, finished, false))
			}
			continue
		}
		finished = append(finished, h)
	}
	if l.handled != nil {
		l.handled()
	}
	if err := l.stage.Commit(context.Background()); err != nil {
		errs = append(errs, err)
		if ev.TransactionType() == controller.RevertOnFailure {
			errs = append(errs, l.revert(ev, finished, true))
		}
	}
	return errors.Join(errs...)
}

func (l *loop) revert(ev controller.Event, finished []controller.EventHandler, committed bool) error {
	for _, h := range slices.Backward(finished) {
		if err := h.Revert(ev); err != nil {
			return err
		}
	}
	if committed {
		return l.stage.Commit(context.Background())
	}
	l.stage.Undo()
	return nil
}

// agent is node 5 as far as pods go.
type agent struct {
	*podmanager.PodManager
	g       Gomega
	loop    *loop
	leases  *ledger.Ledger
	ipam    *ipam.IPAM
	memory  *journal.Memory
	journal *journal.Faulty
	dir     string
	now     func() time.Time
	booted  time.Time
	kernel  podmanager.Kernel
	ready   error
	served  []podmanager.Served
	freed   int // attachments that GC has freed
	mu      sync.Mutex
}

// atOnce reclaims what GC does not list, without waiting for a second observation.
type atOnce struct{ a *agent }

func (r atOnce) Unlisted(ctx context.Context, _ string, leases []ledger.Lease) (waits []string, err error) {
	var errs []error
	for _, l := range leases {
		err := r.a.leases.StartExpiry(ctx, ledger.Selector{Key: l.Key, Generation: l.Generation}, ledger.Expiry{Token: ledger.ReclaimToken, After: time.Hour})
		if errors.Is(err, ledger.ErrNoLease) || errors.Is(err, ledger.ErrPending) { // it is over, or another address of the claim
			continue
		}
		freed := false
		if err == nil {
			freed, err = r.a.Reclaim(ctx, l, "gone")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.Key, err))
		}
		if freed {
			r.a.freed++
		}
	}
	return nil, errors.Join(errs...)
}

func (atOnce) Claimed(ledger.Key) {}

// plain is a node with one family, small one with four addresses.
const (
	plain = "{}"
	small = "ipamConfig: {podSubnetOneNodePrefixLen: 29, podSubnetCIDR: 10.1.0.0/16}"
	dual  = `ipamConfig: {podSubnetCIDR: "10.1.0.0/16,fd00:1::/48", vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",
  nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"}`
)

func newAgent(t *testing.T, conf string) *agent {
	t.Helper()
	memory := journal.NewMemory()
	a := &agent{g: NewWithT(t), memory: memory, journal: &journal.Faulty{Journal: memory}, dir: filepath.Join(t.TempDir(), "run", "del"), now: time.Now, booted: time.Now().Add(-time.Hour)}
	a.g.Expect(os.MkdirAll(a.dir, 0o700)).To(Succeed())
	a.g.Expect(os.WriteFile(filepath.Join(filepath.Dir(a.dir), cni.LockFile), nil, 0o600)).To(Succeed())
	a.start(conf)
	return a
}

// bootID is that of the machine.
const bootID = "boot-1"

func (a *agent) uptime() time.Duration { return time.Since(a.booted) }

// start is a new process over the same journal, after its first resync.
func (a *agent) start(conf string) {
	a.open(conf)
	a.resync()
}

// open is a new process over the same journal, before its first resync.
func (a *agent) open(conf string) {
	cfg, _, err := contivconf.Parse([]byte(conf))
	a.g.Expect(err).NotTo(HaveOccurred())
	a.leases, err = ledger.Open(context.Background(), a.journal, ledger.Options{Now: func() time.Time { return a.now() }, BootID: bootID, Uptime: a.uptime})
	a.g.Expect(err).NotTo(HaveOccurred())
	a.loop = &loop{stage: a.leases.Begin(), txn: &txn{values: map[string]proto.Message{}}}
	a.PodManager = podmanager.NewPlugin(podmanager.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)}, EventLoop: a.loop, Ledger: a.leases, IntentDir: a.dir, UID: os.Geteuid(),
		Timeout: time.Minute, Ready: func() error { return a.ready }, Observe: a.observe,
		Reclaims: atOnce{a}, Kernel: a.kernel,
	})
	a.ipam = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.NodeSync, d.ContivConf, d.ServiceLabel, d.PodManager = nodeFive{}, contivconf.NewPlugin(cfg), label("node-a"), a.PodManager
		d.Ledger, d.Stage = a.leases, a.loop.stage
	}))
	a.loop.handlers = []controller.EventHandler{a.PodManager, a.ipam, ipnet.NewPlugin(ipnet.Deps{NodeSync: nodeFive{}, IPAM: a.ipam, Ledger: a.leases})}
}

func (a *agent) observe(s podmanager.Served) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served = append(a.served, s)
}

func (a *agent) resync() {
	for _, h := range a.loop.handlers {
		a.g.Expect(h.Resync(&controller.DBResync{}, controller.KubeStateData{}, 1, a.loop.txn)).To(Succeed())
	}
	a.g.Expect(a.loop.stage.Commit(context.Background())).To(Succeed())
}

// request is a CNI request for eth0 of a container of network "pods".
func request(command, container string) cni.Request {
	return cni.Request{
		Command: command, Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: "ns", Name: "pod-" + container},
	}
}

func key(container string) ledger.Key {
	return ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}
}

func pod(name string) kv.PodID { return kv.PodID{Namespace: "ns", Name: name} }

// serve is a request whose answer is delivered.
func (a *agent) serve(r cni.Request) (cni.Reply, error) {
	reply, err := a.Serve(context.Background(), r)
	a.Delivered(r, reply, nil)
	reply.Claim, reply.Ticket = 0, 0
	return reply, err
}

// add is an ADD that succeeds; it returns the first address.
func (a *agent) add(container string) string {
	reply, err := a.serve(request("ADD", container))
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(reply.IPs).NotTo(BeEmpty())
	return reply.IPs[0].Address
}

func (a *agent) del(container string) {
	_, err := a.serve(request("DEL", container))
	a.g.Expect(err).NotTo(HaveOccurred())
}

// held are the containers that hold an address.
func (a *agent) held() []string {
	all := []string{}
	for _, l := range a.leases.Leases() {
		if l.Purpose == ledger.ForPod && l.InUse() && !slices.Contains(all, l.Key.ContainerID) {
			all = append(all, l.Key.ContainerID)
		}
	}
	slices.Sort(all)
	return all
}

// code is the CNI code of an error; 0 for none.
func code(g Gomega, err error) uint {
	if err == nil {
		return 0
	}
	var cerr *cni.Error
	g.Expect(errors.As(err, &cerr)).To(BeTrue(), "%v", err)
	return cerr.Code
}

// errGone is the error of an answer whose caller is gone.
var errGone = errors.New("broken pipe")

// call is a request that is under way.
type call struct {
	cancel context.CancelFunc
	done   bool // the caller has its answer, or is gone
	reply  cni.Reply
	err    error
}

// begin serves a request in the background, as far as it goes by itself.
func (a *agent) begin(r cni.Request) *call {
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{cancel: cancel}
	go func() {
		c.reply, c.err = a.Serve(ctx, r)
		c.done = true
	}()
	synctest.Wait()
	return c
}

// leave is the caller of a request going away.
func (c *call) leave() {
	c.cancel()
	synctest.Wait()
}

// abandon lets the loop process a new ADD, whose caller leaves before its commit.
func (a *agent) abandon(container string) *call {
	add := a.begin(request("ADD", container))
	a.leaveInLoop(add)
	return add
}

// leaveInLoop lets the loop process an ADD that is next in its queue. The ADD's caller
// leaves when the handlers are done, before the commit.
func (a *agent) leaveInLoop(add *call) {
	a.loop.handled = add.leave
	a.steps(1)
	a.loop.handled = nil
}

// steps lets the loop process n events, the first of the queue each time.
func (a *agent) steps(n int) {
	for range n {
		a.loop.step(0)
		synctest.Wait()
	}
}

// drain lets the loop process all queued events.
func (a *agent) drain() {
	for a.loop.waiting() > 0 {
		a.steps(1)
	}
}

// slowly runs f with an agent whose loop moves on request, and that releases orphans.
func slowly(t *testing.T, f func(g Gomega, a *agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, plain)
		a.loop.manual = true
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		f(a.g, a)
	})
}
