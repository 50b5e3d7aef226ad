// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

// Options are the ledger's parameters. The zero value is usable.
type Options struct {
	Log    *slog.Logger
	Now    func() time.Time
	Uptime func() time.Duration // time since boot; it never jumps or goes back
	BootID string               // identifies the boot that Uptime counts from; "": unknown

	History HistoryOptions
}

func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Uptime == nil {
		start := time.Now()
		o.Uptime = func() time.Duration { return time.Since(start) }
	}
}

// Ledger holds pools, blocks and leases. Open returns one; any goroutine may call its
// methods.
type Ledger struct {
	opt     Options
	journal Journal

	mu          sync.Mutex
	commits     committer
	ended       *sync.Cond // a stage was committed or undone
	pools       map[string]*pool
	order       []*pool             // the pools; none is ever removed
	spaces      map[string]*subnets // by Pool.Space
	byKey       table
	byPod       table
	seed        maphash.Seed
	gen         uint64
	suspended   map[string]string   // the reasons for which nothing new is allocated, by cause
	dirty       map[string]struct{} // records that may differ from memory: written with the next commit
	unsure      bool                // a commit failed: the journal may contradict memory
	wake        chan struct{}       // signals Run that a lease cools or is pending
	rebooted    int                 // number of leases that a reboot ended
	timersArmed int                 // number of timers of all pools
	due         time.Duration       // no lease expires before this uptime
	expired     uint64              // number of leases that were not confirmed in time
	history     recorder

	record     kv.Lease // the record that is written next
	freeLeases []*lease // for reuse
	found      []*lease // scratch: the leases of a selector
	touched    []*block // scratch: the blocks of a commit
}

// Open loads the ledger from its journal. If the journal was written in an earlier
// boot, the leases of sandboxes begin to cool, since no sandbox survives a reboot;
// all other leases stay.
func Open(ctx context.Context, journal Journal, opt Options) (*Ledger, error) {
	if journal == nil {
		return nil, errors.New("open the ledger: no journal is given: want one, or NullJournal to keep nothing")
	}
	opt.defaults()
	l := &Ledger{
		opt:       opt,
		journal:   journal,
		pools:     map[string]*pool{},
		spaces:    map[string]*subnets{},
		byKey:     table{by: byKey},
		byPod:     table{by: byPod},
		suspended: map[string]string{},
		due:       never,
		seed:      maphash.MakeSeed(),
		dirty:     map[string]struct{}{},
		wake:      make(chan struct{}, 1),
	}
	l.ended = sync.NewCond(&l.mu)
	l.initCommitter()
	if err := l.openHistory(ctx); err != nil {
		return nil, err
	}
	if err := l.load(ctx); err != nil {
		return nil, fmt.Errorf("load the ledger: %w", err)
	}
	return l, nil
}

// Rebooted returns the number of leases that Open ended because the machine was
// booted after their claim.
func (l *Ledger) Rebooted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rebooted
}

// Suspend stops the allocation of new addresses for a reason; existing leases are
// served as before. A cause has one reason at a time. An empty reason ends the
// cause, and the end of the last cause resumes the allocation.
func (l *Ledger) Suspend(cause, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reason == "" {
		delete(l.suspended, cause)
		return
	}
	l.suspended[cause] = reason
}

// Suspended returns the reasons for which nothing new is allocated, "" if there are none.
func (l *Ledger) Suspended() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.suspension()
}

func (l *Ledger) suspension() string {
	var reasons []string
	for _, cause := range slices.Sorted(maps.Keys(l.suspended)) {
		reasons = append(reasons, l.suspended[cause])
	}
	return strings.Join(reasons, "; ")
}

// pool returns the pool of a name. A new one has no policy yet.
func (l *Ledger) pool(name string) *pool {
	p := l.pools[name]
	if p == nil {
		p = &pool{Pool: Pool{Name: name, CoolDown: DefaultCoolDown}}
		l.pools[name] = p
		l.order = append(l.order, p)
	}
	return p
}

func (l *Ledger) hash(k *Key) uint32 { return uint32(maphash.Comparable(l.seed, *k)) }

// hashPod returns the hash of the namespace and the name.
func (l *Ledger) hashPod(p *Pod) uint32 {
	return uint32(maphash.Comparable(l.seed, [2]string{p.Namespace, p.Name}))
}

// held calls f for the leases of k, whose hash is h, until f returns false.
func (l *Ledger) held(k *Key, h uint32, f func(*lease) bool) {
	for x := l.byKey.first(h); x != nil; {
		next := l.byKey.next(x)
		if x.key == *k && !f(x) {
			return
		}
		x = next
	}
}

// link adds x to the tables of addresses, keys and pods. hash is the hash of its key.
func (l *Ledger) link(x *lease, hash uint32) {
	x.block.family().leases.put(x, hashAddr(x.addr))
	if x.state == Cooling {
		return
	}
	x.block.count(x, 1)
	l.arm(x)
	if x.key != (Key{}) {
		l.byKey.put(x, hash)
	}
	if x.pod.Name != "" {
		l.byPod.put(x, l.hashPod(&x.pod))
	}
}

// unlink removes x from the tables of keys and pods.
func (l *Ledger) unlink(x *lease) {
	x.block.count(x, -1)
	l.disarm(x)
	if x.key != (Key{}) {
		l.byKey.remove(x)
	}
	if x.pod.Name != "" {
		l.byPod.remove(x)
	}
}

// count adds n leases such as x to the counts of b.
func (b *block) count(x *lease, n int) {
	if x.purpose == ForInfra {
		b.infra += n
		return
	}
	b.users += n
	if x.state == Quarantined {
		b.quarantined += n
	}
}

// drop removes x, which is unlinked already, and frees its address.
func (l *Ledger) drop(x *lease) {
	fp := x.block.family()
	fp.leases.remove(x)
	fp.vacate(x.block, x.addr)
}

// cool makes x cooling, which is unlinked already. uptime and since are the begin.
func (l *Ledger) cool(x *lease, uptime time.Duration, since int64) {
	x.state, x.cooled, x.since, x.reason, x.timer = Cooling, uptime, since, "", nil
	x.block.family().insertCooling(x)
	l.wakeRun()
}

// wakeRun lets Run look at the next expiry.
func (l *Ledger) wakeRun() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// coolsDown reports whether the address of x cools after its release: this node may
// allocate it again.
func coolsDown(x *lease) bool {
	return x.block.pool.CoolDown > 0 && x.purpose != ForInfra && x.block.family().allocates(x).state == Active
}

// expireCooling frees the addresses of fp that have cooled for the cool-down.
func (l *Ledger) expireCooling(p *pool, fp *familyPool) {
	if fp.cooling.head == nil {
		return
	}
	for now := l.opt.Uptime(); fp.cooling.head != nil && now-fp.cooling.head.cooled >= p.CoolDown; {
		x := fp.cooling.head
		fp.removeCooling(x)
		l.drop(x)
		l.dirty[leaseKey(p.Name, x.addr)] = struct{}{}
		l.recycle(x)
	}
}

// sweep removes those of blocks that drain and have no user any more, with their
// infra leases.
func (l *Ledger) sweep(blocks ...*block) {
	var swept *familyPool // has forgotten blocks in its list
	for _, b := range blocks {
		if b.state != Draining || b.users > 0 || b.staged || b.forgotten {
			continue
		}
		if fp := b.family(); l.forget(b) && fp != swept {
			if swept != nil {
				swept.compact()
			}
			swept = fp
		}
	}
	if swept != nil {
		swept.compact()
		l.wakeRun()
	}
}

// forget removes a block and its leases, unless a stage changes one of them: the
// end of that stage sweeps again. An address of another active block cools on there.
func (l *Ledger) forget(b *block) bool {
	p, fp := b.pool, b.family()
	leases := fp.leasesOf(b)
	for _, x := range leases {
		if x.owner != nil {
			return false
		}
	}
	for _, x := range leases {
		l.dirty[leaseKey(p.Name, x.addr)] = struct{}{}
		if x.state != Cooling {
			l.noteLease(Released, x, "its block was closed")
			l.unlink(x)
			l.drop(x)
			continue
		}
		fp.removeCooling(x)
		if other := fp.allocates(x); other.state == Active {
			x.block = other
			fp.insertCooling(x)
			continue
		}
		l.drop(x)
	}
	fp.forget(b)
	if !p.hasBlocks() {
		l.dirty[policyKey(p.Name)] = struct{}{}
	}
	l.noteBlock(BlockClosed, b)
	l.dirty[blockKey(p.Name, b.prefix)] = struct{}{}
	l.opt.Log.Info("block released", "pool", p.Name, "block", b.prefix)
	return true
}

// Run writes expired leases to the journal until ctx ends. It has the ledger's only
// timer. The answers of the other methods do not depend on Run.
func (l *Ledger) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
		wait, err := l.endExpired(ctx)
		if err != nil && ctx.Err() == nil {
			l.opt.Log.Warn("expired leases are still in the journal", "error", err)
			wait = min(wait, time.Minute)
		}
		timer.Reset(max(wait, time.Second))
	}
}

// endExpired ends the leases that have expired or cooled and writes that. It returns
// the time until the next one.
func (l *Ledger) endExpired(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := l.expireAll()
	if err := l.flush(ctx); err != nil {
		return wait, err
	}
	old, err := l.pruneOld(ctx)
	return min(wait, old), err
}

// expireAll ends the leases that have expired or cooled, and returns the time until
// the next one.
func (l *Ledger) expireAll() time.Duration {
	wait := time.Hour
	l.expirePending()
	for _, p := range l.pools {
		if p.known && len(p.timers) > 0 {
			wait = min(wait, p.timers[0].at-l.opt.Uptime())
		}
		for i := range p.fam {
			fp := &p.fam[i]
			l.expireCooling(p, fp)
			if x := fp.cooling.head; x != nil {
				wait = min(wait, p.CoolDown-(l.opt.Uptime()-x.cooled))
			}
		}
	}
	return wait
}
