// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// refresh is longer than anything that a claimer should do without being told.
const refresh = time.Hour

// errDiskFull is the error of a disk that takes no more.
var errDiskFull = errors.New("no space left on device")

// disk holds what a node remembers.
type disk struct {
	mu     sync.Mutex
	values map[string]string
	full   bool
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
	if d.full {
		return errDiskFull
	}
	d.values[name] = value
	return nil
}

func (d *disk) fill(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = yes
}

// claimant is an agent as far as its claims go, with a link of its own to the
// store of a world.
type claimant struct {
	*claims.Claimer
	w    *world
	node claims.Node
	disk *disk
	link *faulty.Store

	mu         sync.Mutex
	leased     map[claims.Target]bool
	changes    int
	suspended  string
	unknown    bool // the store has not confirmed the node ID
	logged     strings.Builder
	onSuspend  func(reason string)
	askedInUse int
	onInUse    func(asked int)
}

// inWorld runs f with an empty store, in simulated time.
func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.now = time.Now()
		f(w)
	})
}

// starts returns the agent of a node; its disk may be that of an earlier run.
func (w *world) starts(n claims.Node, d *disk, initial ...claims.Target) *claimant {
	w.t.Helper()
	c := &claimant{w: w, node: n, disk: d, link: faulty.New(w.store), leased: map[claims.Target]bool{}}
	var err error
	c.Claimer, err = claims.NewClaimer(claims.ClaimerDeps{
		Log: slog.New(slog.NewTextHandler(c, nil)), Register: w.register(c.link), Disk: d, Node: c.identity, InUse: c.inUse,
		Changed: c.changed, Suspend: c.suspend, Initial: initial, Refresh: refresh, Now: time.Now, Random: func() float64 { return 0.5 },
	})
	w.g.Expect(err).NotTo(HaveOccurred())
	return c
}

// run runs the claimer until the test ends.
func (c *claimant) run() *claimant {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	c.w.t.Cleanup(func() {
		cancel()
		c.w.g.Expect(<-ended).To(Succeed())
	})
	return c
}

// look has the claimer look at the store once.
func (c *claimant) look() { c.w.g.Expect(c.Confirm(context.Background())).To(Succeed()) }

// wants has the loop derive block targets and commit them.
func (c *claimant) wants(targets ...claims.Target) {
	for _, t := range targets {
		c.Hold(t)
	}
	c.Want(kv.PodNetworkClaims, targets)
}

// holding returns an agent that holds the claim of a target.
func (w *world) holding(n claims.Node, t claims.Target) *claimant {
	w.t.Helper()
	c := w.starts(w.joins(n), newDisk())
	c.wants(t)
	c.look()
	w.g.Expect(c.Hold(t).Held).To(BeTrue())
	c.link.Reset()
	return c
}

func (c *claimant) identity() (claims.Node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node, !c.unknown
}

func (c *claimant) inUse(t claims.Target) bool {
	c.mu.Lock()
	c.askedInUse++
	asked, on := c.askedInUse, c.onInUse
	c.mu.Unlock()
	if on != nil {
		on(asked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leased[t]
}

// leases has addresses of a target leased, or none any more.
func (c *claimant) leases(t claims.Target, yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leased[t] = yes
}

func (c *claimant) changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
}

// told returns how often the loop was told of a change.
func (c *claimant) told() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

func (c *claimant) suspend(reason string) {
	c.mu.Lock()
	on := c.onSuspend
	c.mu.Unlock()
	if on != nil {
		on(reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspended = reason
}

// suspension returns why the agent allocates nothing new.
func (c *claimant) suspension() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspended
}

// Write implements io.Writer for the log.
func (c *claimant) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logged.Write(p)
}

// lines returns how many lines of the log contain a text.
func (c *claimant) lines(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Count(c.logged.String(), text)
}

// stored returns the nodes that the store has a claim of, with "pending" for one
// that is not held.
func (w *world) stored(t claims.Target) (all []string) {
	list, err := claims.List(context.Background(), w.store)
	w.g.Expect(err).NotTo(HaveOccurred())
	for _, c := range list {
		if x, err := claims.TargetOf(c); err != nil || x != t {
			continue
		}
		name := c.Node + "/" + c.Instance
		if !c.Held {
			name += " pending"
		}
		all = append(all, name)
	}
	return all
}

// takes has another node claim a target by force of what the store says.
func (w *world) takes(n claims.Node, t claims.Target) {
	o, err := w.register(w.store).Ask(context.Background(), n, t, time.Now())
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect(o.Held).To(BeTrue(), "%v", o.Blocker)
}

// late is a store of which one transaction is answered by an error, and done later.
type late struct {
	kvdb.Store
	skip   int
	arrive func() error
}

func (s *late) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if s.skip--; s.skip != -1 {
		return s.Store.Txn(ctx, conds, ops)
	}
	s.arrive = func() error {
		_, err := s.Store.Txn(context.Background(), conds, ops)
		return err
	}
	return 0, errLost
}

// pending returns the claim of a node that waits for a target.
func (w *world) pending(n claims.Node, t claims.Target) *kv.PrefixClaim {
	return &kv.PrefixClaim{Network: t.Network, Prefix: t.Prefix.String(), Node: n.Name, NodeId: n.ID, Instance: n.Instance, Since: time.Now().UnixNano()}
}
