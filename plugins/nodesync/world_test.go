// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// A world's term is short, so that it is over often.
const (
	worldExpire = 2 * time.Hour
	worldTerm   = worldExpire * 5 / 6
	worldIDs    = 6
	worldJump   = worldExpire / 48 // of any clock, both ways
)

// machine holds what outlives an agent.
type machine struct {
	name, instance string
	host           string // the hardware; agents on one host have one product UUID
	boots          int
	disk           *disk
	busy           bool // addresses of its ID are in use
	offset         time.Duration
	pin            uint32
	runs           int
	agent          *agent // nil while there is none
	mirror         controller.KubeStateData
}

// agent is one process.
type agent struct {
	*node
	of       *machine
	link     *link
	calm     time.Time  // since when nothing has happened to it
	resumed  bool       // of a snapshot of another process's memory
	store    kvdb.Store // through link
	cancel   context.CancelFunc
	ended    sync.WaitGroup
	used     atomic.Uint32 // the ID that it has derived addresses from
	fatal    atomic.Bool
	released time.Time // its ID was released, and it was not confirmed since
	lost     time.Time // so, and it was cut off meanwhile: the release was wrong
}

// world is a cluster.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	store   *past
	copies  []copyOf
	disks   int       // that were lost
	reborn  time.Time // when the store was wiped or restored last
	late    sync.WaitGroup
	jumps   bool // clocks do; then the store does not lose its past
	twins   bool // disks are copied, and snapshots of machines resumed
	pieces  bool // the store has no transactions
	admin   kvdb.Store
	reflect time.Duration

	mu       sync.Mutex // of what the monitor reads, which agents call
	machines []*machine
	lost     map[string]time.Time // by instance: its ID was released while no agent of it ran
	bad      []string
	log      []string
}

func newWorld(t *testing.T, seed uint64, pieces bool) *world {
	w := &world{t: t, pieces: pieces, rnd: rand.New(rand.NewPCG(seed, 3)), store: newPast(), jumps: seed%2 == 1, twins: seed%3 == 0, reborn: time.Now(), lost: map[string]time.Time{}}
	w.store.written = w.monitor
	w.admin = w.through(newLink(w.store, seed, &w.late))
	for i := range 4 {
		w.add(fmt.Sprint("n", i), fmt.Sprint("uuid-", i), newDisk())
	}
	return w
}

// through is the store behind a link. Where it has no transactions others come
// in between their parts.
func (w *world) through(l *link) kvdb.Store {
	if w.pieces {
		return piecemeal{slowly{l}}
	}
	return l
}

func (w *world) add(name, instance string, d *disk) *machine {
	m := &machine{name: name, instance: instance, disk: d}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.host = fmt.Sprint("host-", len(w.machines))
	w.machines = append(w.machines, m)
	return m
}

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// agents are those that run.
func (w *world) agents() (all []*agent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.agent != nil {
			all = append(all, m.agent)
		}
	}
	return all
}

// diskOf is the disk as one process has it: when it is dead it writes nothing.
type diskOf struct {
	*disk
	link *link
}

func (d diskOf) SetLocal(name, value string) error {
	if d.link.isDead() {
		return errors.New("the process is dead")
	}
	return d.disk.SetLocal(name, value)
}

// start starts an agent on a machine.
func (w *world) start(m *machine, how weather) {
	m.runs++
	a := &agent{of: m, link: newLink(w.store, w.rnd.Uint64(), &w.late), calm: time.Now()}
	a.link.set(how)
	id := nodesync.Identity{
		Name: m.name, Instance: m.instance, Session: fmt.Sprintf("%s/%s/%d/%d", m.name, m.instance, m.runs, w.rnd.Int32()), Pinned: m.pin,
		Machine: nodesync.Machine{ProductUUID: m.host, BootID: fmt.Sprint(m.host, " boot ", m.boots)},
		Limit:   limit(worldIDs), Fresh: fresh, Random: rand.New(rand.NewPCG(w.rnd.Uint64(), 1)).Float64,
	}
	a.store = w.through(a.link)
	a.node = newNodeAt(w.t, m, a, id)
	w.launch(a)
}

// launch runs the agent of a machine.
func (w *world) launch(a *agent) {
	m := a.of
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	w.mu.Lock()
	a.lost = w.lost[m.instance]
	m.agent = a
	w.mu.Unlock()
	a.ended.Go(func() { _ = a.Run(ctx) })
	a.ended.Go(func() { a.follow(ctx) })
}

func newNodeAt(t *testing.T, m *machine, a *agent, id nodesync.Identity) *node {
	seed := rand.New(rand.NewPCG(uint64(m.runs), 9))
	n := newNode(t, a.store, id, m.disk, func(d *nodesync.IDClaimerDeps) { inWorld(d, a, seed) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.busy = m.busy
	return n
}

// inWorld makes the dependencies those of an agent of a world.
func inWorld(d *nodesync.IDClaimerDeps, a *agent, rnd *rand.Rand) {
	d.Log, d.Expire, d.Random = slog.New(slog.DiscardHandler), worldExpire, rnd.Float64
	d.Disk = diskOf{a.of.disk, a.link}
	now, offset := d.Now, a.of.offset // NewIDClaimer looks at the clock
	d.Now = func() time.Time { return now().Add(offset) }
}

// follow does what the source and the loop do: the state of the cluster is read
// where the ID was confirmed, again and again; addresses are derived from the ID.
func (a *agent) follow(ctx context.Context) {
	began := time.Now()
	for {
		wait := 7 * time.Minute
		err := a.Confirm(ctx)
		if errors.Is(err, controller.ErrFatal) {
			a.fatal.Store(true)
			return
		}
		if err == nil {
			err = a.keepUp(ctx)
		}
		if err == nil || time.Since(began) >= 10*time.Second && a.ID() != 0 {
			a.used.CompareAndSwap(0, a.Use())
		}
		if err != nil {
			wait = 5 * time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// keepUp writes what the store has lost of the records that this machine knew.
func (a *agent) keepUp(ctx context.Context) error {
	for {
		kvs, _, err := a.store.List(ctx, kv.NodeRecordPrefix)
		if err != nil {
			return err
		}
		found, at := controller.KubeStateData{kv.NodeRecordResource: {}}, map[string]int64{}
		for _, x := range kvs {
			m := &kv.NodeRecord{}
			if err := proto.Unmarshal(x.Value, m); err != nil {
				return err
			}
			found[kv.NodeRecordResource][x.Key], at[x.Key] = m, x.ModRevision
		}
		var conds []kvdb.Cond
		var ops []kvdb.Op
		for _, write := range nodesync.Repair(a.of.name)(a.of.mirror, found, nil) {
			value, err := proto.Marshal(write.Message)
			if err != nil {
				return err
			}
			conds, ops = append(conds, kvdb.Cond{Key: write.Key, ModRevision: at[write.Key]}), append(ops, kvdb.Put(write.Key, value))
		}
		if ops == nil {
			a.of.mirror = found
			return nil
		}
		if _, err := a.store.Txn(ctx, conds, ops); err != nil && !errors.Is(err, kvdb.ErrConditions) {
			return err
		}
	}
}

// end ends an agent, in good order or not.
func (w *world) end(a *agent, crash bool) {
	if crash {
		a.link.kill()
	}
	a.cancel()
	a.ended.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	a.of.agent = nil
	a.of.busy = a.of.busy || a.used.Load() != 0
	if confirmed := a.Confirmed(); !a.lost.IsZero() && !confirmed.After(a.lost) || !a.released.IsZero() && !confirmed.After(a.released) {
		w.lost[a.of.instance] = a.lost
		if a.released.After(a.lost) {
			w.lost[a.of.instance] = a.released
		}
	}
}

// allocates reports whether an agent may allocate new addresses.
func (a *agent) allocates() bool { return a.used.Load() != 0 && a.Problem() == "" }

// excused reports whether an agent cannot know yet what became of its ID. It cannot if
// the store has lost its past since the agent was confirmed. Nor can it if an
// administrator has released the ID of an agent that was cut off, or of a machine that
// was to come back. An agent of a disk that was copied may be moved by the other one
// while it is cut off.
func (w *world) excused(a *agent) bool {
	copies := 0
	for _, m := range w.machines {
		if m.instance == a.of.instance {
			copies++
		}
	}
	if copies > 1 {
		return true
	}
	if w.jumps {
		return false
	}
	confirmed := a.Confirmed()
	return !confirmed.After(w.reborn) || !a.lost.IsZero() && !confirmed.After(a.lost)
}

// records are the node records of a state of the store, by ID.
func recordsIn(kvs map[string]kvdb.KeyValue) map[uint32]*kv.NodeRecord {
	all := map[uint32]*kv.NodeRecord{}
	for key, x := range kvs {
		if strings.HasPrefix(key, kv.NodeRecordPrefix) {
			m := &kv.NodeRecord{}
			if proto.Unmarshal(x.Value, m) == nil && key == kv.NodeRecordKey(m.Id) {
				all[m.Id] = m
			}
		}
	}
	return all
}

func (w *world) fault(format string, args ...any) {
	if len(w.bad) < 5 {
		w.bad = append(w.bad, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// monitor looks at the store after each transaction.
func (w *world) monitor(before, now map[string]kvdb.KeyValue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, is := recordsIn(before), recordsIn(now)
	for id, m := range was {
		if is[id] == nil {
			w.fault("the record of node ID %d is gone", id)
		} else if is[id].Generation < m.Generation {
			w.fault("the generation of node ID %d went from %d to %d", id, m.Generation, is[id].Generation)
		} else if is[id].Instance != m.Instance && (is[id].Generation == m.Generation || m.Released == 0) {
			w.fault("node ID %d went from %v to %v", id, m, is[id])
		}
	}
	names := map[string]uint32{}
	for id, m := range is {
		if m.Released == 0 && m.SupersededBy == 0 {
			// a store that lost its past is filled with what several knew
			if other := names[m.Name]; other != 0 && w.jumps && !w.pieces {
				w.fault("node %s has IDs %d and %d", m.Name, id, other)
			}
			names[m.Name] = id
		}
		if x, ok := now[kv.BeatKey(id)]; ok && !w.pieces && x.ModRevision != before[kv.BeatKey(id)].ModRevision {
			beat := &kv.NodeBeat{}
			if err := proto.Unmarshal(x.Value, beat); err != nil || beat.Instance != m.Instance || m.Released != 0 && !beat.Stopped || beat.Generation != m.Generation {
				w.fault("a beat %v under a record %v", beat, m)
			}
		}
		w.overlap(id, m)
	}
	w.alone()
}

// overlap finds agents that may allocate under an ID of another node.
func (w *world) overlap(id uint32, m *kv.NodeRecord) {
	for _, x := range w.machines {
		if a := x.agent; a != nil && m.Released == 0 && x.instance != m.Instance && a.allocates() && a.ID() == id && !w.excused(a) {
			w.fault("node ID %d is of %s (%s), and %s (%s) may allocate under it, confirmed at %s", id, m.Name, m.Instance, x.name, x.instance, a.Confirmed().Format("15:04:05.000"))
		}
	}
}

// alone finds two agents that may allocate under one ID, and agents whose ID changes.
func (w *world) alone() {
	allocators := map[uint32]*machine{}
	for _, m := range w.machines {
		a := m.agent
		if a == nil {
			continue
		}
		if used := a.used.Load(); used != 0 && a.ID() != used {
			w.fault("%s (%s) went from node ID %d to %d", m.name, m.instance, used, a.ID())
		}
		if !a.allocates() {
			continue
		}
		w.twice(a)
		if w.excused(a) {
			continue
		}
		other := allocators[a.ID()]
		if other != nil {
			w.fault("%s (%s) and %s (%s) may allocate under node ID %d", m.name, m.instance, other.name, other.instance, a.ID())
		}
		allocators[a.ID()] = m
	}
}

// check looks at everything when nothing happens.
func (w *world) check() error {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alone()
	for _, m := range w.machines {
		a := m.agent
		if a == nil {
			continue
		}
		if since := a.now().Add(m.offsetAtStart(a)).Sub(a.Confirmed()); a.allocates() && since >= worldTerm && !w.jumps {
			w.fault("%s (%s) may allocate %s after it was confirmed", m.name, m.instance, since)
		} else if a.allocates() && since >= worldTerm+2*refresh+2*worldJump {
			w.fault("%s (%s) may allocate %s after it was confirmed, by its clock", m.name, m.instance, since)
		}
		w.suspects(a)
		if (a.suspension() == "") != (a.Problem() == "") {
			w.fault("%s (%s) is suspended for %q, and its problem is %q", m.name, m.instance, a.suspension(), a.Problem())
		}
	}
	if w.bad == nil {
		return nil
	}
	return errors.New(strings.Join(w.bad, "\n"))
}

// offsetAtStart returns the offset of the agent's clock beside its own jumps.
func (m *machine) offsetAtStart(a *agent) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return m.offset - a.offset
}

// waitUntilEqual ends the bad weather, and finds agents that do not know what is so.
func (w *world) waitUntilEqual() error {
	for _, a := range w.agents() {
		w.spoil(a, fine)
	}
	w.late.Wait()
	time.Sleep(20 * time.Minute)
	if err := w.check(); err != nil {
		return err
	}
	is := recordsIn(w.store.copied())
	for _, a := range w.agents() {
		r := is[a.ID()]
		own := r != nil && r.Instance == a.of.instance && r.Name == a.of.name && r.Released == 0 && r.SupersededBy == 0 && r.Generation == a.Held().Generation
		twice := slices.ContainsFunc(w.agents(), func(b *agent) bool { return a != b && (a.of.instance == b.of.instance || a.of.name == b.of.name) })
		switch {
		case a.fatal.Load() || twice && (a.Problem() != "" || a.ID() == 0):
		case own != (a.Problem() == ""):
			return fmt.Errorf("%s (%s) has node ID %d and problem %q, and the record is %v", a.of.name, a.of.instance, a.ID(), a.Problem(), r)
		case own && time.Since(a.Confirmed().Add(-a.of.offset)) > 2*refresh+2*worldJump:
			return fmt.Errorf("%s (%s) was confirmed at %s", a.of.name, a.of.instance, a.Confirmed())
		}
	}
	return nil
}

// ends looks for what stays for ever. After a restart of all agents in good weather
// none has two IDs, and when all nodes are gone all IDs can be had.
func (w *world) ends() error {
	w.reflect = 0
	for _, m := range w.machines {
		if m.agent != nil {
			w.end(m.agent, false)
		}
		m.offset = 0
	}
	time.Sleep(fresh)
	for _, m := range w.machines {
		m.pin = 0
		w.start(m, fine)
	}
	time.Sleep(20 * time.Minute)
	synctest.Wait()
	ids := map[string]uint32{}
	for id, m := range recordsIn(w.store.copied()) {
		if m.Released != 0 || m.SupersededBy != 0 || !slices.ContainsFunc(w.agents(), func(a *agent) bool { return a.of.instance == m.Instance && a.Problem() == "" && !a.fatal.Load() }) {
			continue
		}
		if ids[m.Instance] != 0 && w.jumps { // a store that lost its past may have several
			return fmt.Errorf("%s (%s) has IDs %d and %d", m.Name, m.Instance, id, ids[m.Instance])
		}
		ids[m.Instance] = id
	}
	w.close()
	time.Sleep(worldExpire + worldJump)
	w.sweep()
	for id := range uint32(worldIDs) {
		who := pinned(fmt.Sprint("late-", id+1), id+1)
		if _, err := nodesync.Claim(context.Background(), w.admin, who, nodesync.Held{}, time.Now()); err != nil {
			return fmt.Errorf("no agent is there any more, and %w", err)
		}
	}
	return nil
}

// close ends all agents.
func (w *world) close() {
	for _, a := range w.agents() {
		w.end(a, false)
	}
	w.late.Wait()
}

// describe returns the state of all machines, for the log.
func (w *world) describe() string {
	var all []string
	is := recordsIn(w.store.copied())
	for _, id := range slices.Sorted(maps.Keys(is)) {
		m := is[id]
		all = append(all, fmt.Sprintf("%d:%s/%s/g%d", id, m.Name, m.Instance, m.Generation))
		if m.Released != 0 {
			all[len(all)-1] += fmt.Sprintf("/released(clean %t)", m.Clean)
		}
		if m.SupersededBy != 0 {
			all[len(all)-1] += fmt.Sprintf("/superseded by %d", m.SupersededBy)
		}
	}
	for _, a := range w.agents() {
		all = append(all, fmt.Sprintf("%s/%s has %d (used %d) allocates=%t confirmed=%s", a.of.name, a.of.instance, a.ID(), a.used.Load(), a.allocates(), a.Confirmed().Format("15:04:05")))
	}
	return strings.Join(all, "; ")
}
