// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// How long claims count in these tests.
const (
	refresh = time.Minute
	fresh   = 3 * time.Minute
	expire  = 24 * time.Hour
	term    = expire * 5 / 6
)

// began returns the time at which tests begin, as simulated time does.
func began() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

func limit(n uint32) func([]*kv.Pool) uint32 { return func([]*kv.Pool) uint32 { return n } }

// who is the first run of a node whose instance follows from its name.
func who(name string) nodesync.Identity {
	return nodesync.Identity{Name: name, Instance: "uuid-of-" + name, Session: "run-1-of-" + name, Machine: machineOf(name), Limit: limit(254), Fresh: fresh}
}

// machineOf is the machine of a node in its first boot.
func machineOf(name string) nodesync.Machine {
	return nodesync.Machine{ProductUUID: "product-of-" + name, BootID: "boot-1-of-" + name}
}

// with is w, changed.
func with(w nodesync.Identity, change func(*nodesync.Identity)) nodesync.Identity {
	change(&w)
	return w
}

func pinned(name string, id uint32) nodesync.Identity {
	return with(who(name), func(w *nodesync.Identity) { w.Pinned = id })
}

// again is the next run of w.
func again(w nodesync.Identity) nodesync.Identity {
	return with(w, func(w *nodesync.Identity) { w.Session += "+" })
}

// reinstalled is a node of this name that has lost its disk.
func reinstalled(name string) nodesync.Identity {
	return with(who(name), func(w *nodesync.Identity) { w.Instance, w.Session = "new-"+w.Instance, "new-"+w.Session })
}

func claim(t *testing.T, s kvdb.Store, w nodesync.Identity) nodesync.Held {
	t.Helper()
	held, err := nodesync.Claim(t.Context(), s, w, nodesync.Held{}, began())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return held
}

// records are the node records of a store, by ID.
func records(g Gomega, s kvdb.Store) map[uint32]*kv.NodeRecord {
	kvs, _, err := s.List(context.Background(), kv.NodeRecordPrefix)
	g.Expect(err).NotTo(HaveOccurred())
	all := map[uint32]*kv.NodeRecord{}
	for _, x := range kvs {
		m := &kv.NodeRecord{}
		g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
		g.Expect(x.Key).To(Equal(kv.NodeRecordKey(m.Id)))
		all[m.Id] = m
	}
	return all
}

// beatOf is the last beat of an ID, nil for none.
func beatOf(g Gomega, s kvdb.Store, id uint32) *kv.NodeBeat {
	x, found, err := s.Get(context.Background(), kv.BeatKey(id))
	g.Expect(err).NotTo(HaveOccurred())
	if !found {
		return nil
	}
	m := &kv.NodeBeat{}
	g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
	return m
}

func put(g Gomega, s kvdb.Store, key string, m proto.Message) {
	value, err := proto.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = s.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	g.Expect(err).NotTo(HaveOccurred())
}

func revision(g Gomega, s kvdb.Store) int64 {
	_, rev, err := s.List(context.Background(), "nothing")
	g.Expect(err).NotTo(HaveOccurred())
	return rev
}

// wipe leaves nothing in the store.
func wipe(g Gomega, s kvdb.Store) {
	kvs, _, err := s.List(context.Background(), "")
	g.Expect(err).NotTo(HaveOccurred())
	for _, x := range kvs {
		_, err := s.Txn(context.Background(), nil, []kvdb.Op{kvdb.Delete(x.Key)})
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// disk holds what a node remembers.
type disk struct {
	mu     sync.Mutex
	values map[string]string
	full   error // of every write
	writes int
}

func newDisk() *disk { return &disk{values: map[string]string{}} }

func (d *disk) Local(name string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.values[name], nil
}

func (d *disk) SetLocal(name, value string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full != nil {
		return d.full
	}
	d.values[name] = value
	d.writes++
	return nil
}

// written returns the number of writes.
func (d *disk) written() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

// copied is another disk with the same content.
func (d *disk) copied() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newDisk()
	for k, v := range d.values {
		c.values[k] = v
	}
	return c
}

// node is an agent as far as its ID goes.
type node struct {
	*nodesync.IDClaimer
	g        Gomega
	disk     *disk
	identity nodesync.Identity
	stop     func() // ends Run and waits for it

	mu        sync.Mutex
	suspended string
	told      []string // problems of NodeIDChange events, in order
	busy      bool
	offset    time.Duration // of the clock
	uses      []*kv.PoolUse
	log       strings.Builder
}

// newNode makes a node of w that is not run yet.
func newNode(t *testing.T, store kvdb.Store, w nodesync.Identity, d *disk, changes ...func(*nodesync.IDClaimerDeps)) *node {
	t.Helper()
	n := &node{g: NewWithT(t), disk: d, identity: w}
	deps := depsOf(n, store, w)
	for _, change := range changes {
		change(&deps)
	}
	var err error
	n.IDClaimer, err = nodesync.NewIDClaimer(deps)
	n.g.Expect(err).NotTo(HaveOccurred())
	n.Attach(nil, n)
	return n
}

// depsOf returns the dependencies of a node's claimer.
func depsOf(n *node, store kvdb.Store, w nodesync.Identity) nodesync.IDClaimerDeps {
	return nodesync.IDClaimerDeps{
		Log: slog.New(slog.NewTextHandler(n, nil)), Store: store, Disk: n.disk, EventLoop: n, Identity: w,
		Refresh: refresh, Expire: expire, Now: n.now, Random: func() float64 { return 0.5 },
		Leases: n,
	}
}

// run runs it until its stop is called, or the test ends.
func (n *node) run(t *testing.T) *node {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		n.g.Expect(<-ended).To(Succeed())
	})
	t.Cleanup(n.stop)
	return n
}

// confirm has its ID confirmed, as who reads the store has.
func (n *node) confirm(t *testing.T) *node {
	t.Helper()
	NewWithT(t).Expect(n.Confirm(t.Context())).To(Succeed())
	return n
}

func (n *node) now() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Add(n.offset)
}

func (n *node) jump(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.offset += d
}

// InUse implements nodesync.Leases.
func (n *node) InUse() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.busy
}

// PoolUses implements nodesync.PoolReporter.
func (n *node) PoolUses() []*kv.PoolUse {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uses
}

// Suspend implements nodesync.Leases.
func (n *node) Suspend(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.suspended = reason
}

// suspension returns the reason for which nothing is allocated.
func (n *node) suspension() string {
	n.mu.Lock()
	why := n.suspended
	n.mu.Unlock() // the claimer asks for the time with its own lock held
	return strings.TrimPrefix(why, fmt.Sprintf("node ID %d: ", n.ID()))
}

// events are the problems that events told, "" for the end of one.
func (n *node) events() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{}, n.told...)
}

func (n *node) logged() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.String()
}

// Write implements io.Writer for the log.
func (n *node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(p)
}

// PushEvent implements controller.EventLoop.
func (n *node) PushEvent(ev controller.Event) error {
	change, ok := ev.(*nodesync.NodeIDChange)
	if !ok {
		return errors.New("an event that is none of the node ID")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, change.Problem)
	return nil
}

// PushEventWait implements controller.EventLoop.
func (n *node) PushEventWait(context.Context, controller.Event) error {
	return errors.New("a claimer does not wait")
}

// resume returns a second process with the memory of n and a copy of its disk.
func (n *node) resume(t *testing.T, store kvdb.Store, changes ...func(*nodesync.IDClaimerDeps)) *node {
	t.Helper()
	r := &node{g: NewWithT(t), identity: n.identity}
	r.IDClaimer = n.Resume(func() nodesync.IDClaimerDeps {
		n.mu.Lock()
		defer n.mu.Unlock()
		r.disk, r.offset, r.busy, r.uses, r.suspended = n.disk.copied(), n.offset, n.busy, n.uses, n.suspended
		deps := depsOf(r, store, r.identity)
		for _, change := range changes {
			change(&deps)
		}
		return deps
	})
	r.Attach(nil, r)
	return r
}
