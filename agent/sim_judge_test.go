// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// judge holds the cluster to its promises. It sees every write to the store,
// and knows what became of it.
//
// One address may be told to clients of two nodes for these reasons only, each
// of which the design has:
//
//   - an administrator released a node whose agent, or whose pods,
//     were not: its ID goes to another node;
//   - the store was wiped or set back, and another node claimed an ID before its
//     owner was back, or before an agent was back that knew of the owner's claim;
//   - a disk was copied, and both copies have run.
//
// Two more things are let pass, both after the store was set back only. An agent
// may take its own earlier run, of which the older store has the beat, for another
// agent. It may do so until that beat is old by its clock. Two agents of one name
// may both allocate, under IDs of their own, where the record of one came back by
// way of others.
//
// The judge excuses the node that took the ID and the one that had it. Nothing is
// excused from this: an agent that the store has answered for a while knows of
// it, and allocates nothing new under an ID that another one has.
type judge struct {
	c *simCluster

	mu      sync.Mutex
	tenures map[uint32]*tenure
	excused map[[2]string]string // pairs of instances, and why
	acked   map[string]uint64    // pools: the generation that apply has reported, in this epoch
	wrote   map[uint32]time.Time // when the record of an ID was written last
	beat    map[uint32]time.Time // when an agent last said that it has the ID and is there
}

// tenure is the history of a node ID.
type tenure struct {
	holder   string   // instance
	before   []string // earlier ones
	released bool     // since the holder claimed it
	lost     bool     // the store has forgotten it
	left     bool     // it was released at some time
	known    map[claimed]bool
}

// claimed is a claim that was in the store at some time.
type claimed struct {
	instance   string
	generation uint64
}

func newJudge(c *simCluster) *judge {
	return &judge{
		c:       c,
		tenures: map[uint32]*tenure{},
		excused: map[[2]string]string{},
		acked:   map[string]uint64{},
		wrote:   map[uint32]time.Time{},
		beat:    map[uint32]time.Time{},
	}
}

func pair(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// hands gives an ID to another instance.
func (j *judge) hands(t *tenure, to, why string) {
	j.c.saw("a node ID changes hands: " + why)
	for _, was := range append(t.before, t.holder) {
		j.excused[pair(was, to)] = why
	}
	if t.before = append(t.before, t.holder); len(t.before) > 20 {
		t.before = t.before[1:]
	}
	t.holder = to
}

// written sees a write to the store.
func (j *judge) written(op kvdb.Op, old []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, _ := kv.ResourceOf(op.Key)
	var beat kv.NodeBeat
	switch {
	case strings.HasPrefix(op.Key, kv.BeatPrefix) && proto.Unmarshal(op.Value, &beat) == nil:
		if delete(j.beat, beat.Id); !beat.Stopped {
			j.beat[beat.Id] = time.Now()
		}
	case r.Name == kv.NodeRecordResource:
		j.recordWritten(op, old)
	case r.Name == kv.PoolResource:
		j.poolWritten(op, old)
	}
}

func (j *judge) recordWritten(op kvdb.Op, old []byte) {
	var was, now kv.NodeRecord
	if op.Delete {
		j.c.fail("%s is deleted: a record does not disappear", op.Key)
		return
	}
	if proto.Unmarshal(old, &was) != nil || proto.Unmarshal(op.Value, &now) != nil {
		j.c.fail("%s cannot be read", op.Key)
		return
	}
	if now.Generation < was.Generation {
		j.c.fail("%s: the generation falls from %d to %d", op.Key, was.Generation, now.Generation)
	}
	j.wrote[now.Id] = time.Now()
	j.c.say("   (%s is %v)", op.Key, &now)
	t, claim := j.tenures[now.Id], claimed{now.Instance, now.Generation}
	if t == nil {
		t = &tenure{holder: now.Instance, known: map[claimed]bool{}}
		j.tenures[now.Id] = t
	}
	again := t.known[claim] && was.Released != 0 && was.Clean && j.c.store.epoch > 0
	t.known[claim] = true
	switch {
	case now.Released != 0:
		t.released = t.released || t.holder == now.Instance
		t.left = true
		return
	case t.holder == now.Instance:
	case t.released:
		j.hands(t, now.Instance, "released")
		if age := time.Since(
			j.beat[now.Id],
		); was.Released != 0 && !was.Clean && age < j.c.fresh-10*time.Second &&
			!j.c.jumped {
			j.c.fail(
				"%s: node ID %d was released by force, and %s takes it %s after it was last seen in use",
				op.Key,
				now.Id,
				now.Instance,
				age,
			)
		}
	case t.lost:
		j.hands(t, now.Instance, "forgotten by the store")
	case again:
		j.hands(t, now.Instance, "written again by an agent that knew it")
	default:
		j.c.fail(
			"%s: node ID %d is of instance %s, which was not released, and %s takes it",
			op.Key,
			now.Id,
			t.holder,
			now.Instance,
		)
		j.hands(t, now.Instance, "taken")
	}
	t.released, t.lost = false, false
}

func (j *judge) poolWritten(op kvdb.Op, old []byte) {
	var was, now kv.Pool
	if op.Delete || proto.Unmarshal(old, &was) != nil || proto.Unmarshal(op.Value, &now) != nil {
		j.c.fail("%s is deleted, or cannot be read", op.Key)
		return
	}
	switch {
	case now.Generation < was.Generation:
		j.c.fail("%s: the generation falls from %d to %d", op.Key, was.Generation, now.Generation)
	case now.Generation == was.Generation && !proto.Equal(&was, &now):
		j.c.fail("%s: generation %d was %v and becomes %v", op.Key, now.Generation, &was, &now)
	case !was.Removed && now.Removed && j.c.store.epoch == 0:
		j.removed(&now)
	case was.Removed && !now.Removed && j.c.store.epoch == 0: // which the caller has locked
		j.c.fail("%s comes back: %v", op.Key, &now)
	}
}

// removed fails if a node has addresses of a removed pool, except a node that was
// released.
func (j *judge) removed(pool *kv.Pool) {
	for _, m := range j.c.machines {
		for k, a := range m.told {
			p := netip.MustParsePrefix(a)
			in := slices.ContainsFunc(
				pool.Ranges,
				func(r *kv.PoolRange) bool { return netip.MustParsePrefix(r.Cidr).Contains(p.Addr()) },
			)
			if in && !j.gone(m.disk.instance) {
				j.c.fail("pool %s is removed, and %s of %s has %s", pool.Name, k, m.label, a)
			}
		}
	}
}

// gone reports whether an administrator has released an instance, or another one has
// taken its ID.
func (j *judge) gone(instance string) bool {
	for _, t := range j.tenures {
		if t.holder == instance && !t.left {
			return false
		}
	}
	return true
}

// setBack looks at a store that was wiped or set back.
func (j *judge) setBack() {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.acked)
	clear(j.beat)
	records := j.c.records()
	for id, t := range j.tenures {
		r := records[id]
		switch {
		case r == nil:
			t.lost = true
		case r.Instance != t.holder:
			j.hands(t, r.Instance, "the store was set back to the time before")
			t.released = r.Released != 0
		default:
			t.released, t.lost = r.Released != 0, false
		}
	}
}

// excuse returns the reason for which two machines may have one address, "" if they
// may not.
func (j *judge) excuse(a, b *machine) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if a.disk.instance == b.disk.instance {
		return "one disk is a copy of the other"
	}
	return j.excused[pair(a.disk.instance, b.disk.instance)]
}

// step looks at everything that must be so at any time.
func (j *judge) step() {
	holders := map[string]*machine{}
	for _, m := range j.c.machines {
		j.ledgerOf(m)
		j.processOf(m)
		for _, a := range m.told {
			other := holders[a]
			if other == nil {
				holders[a] = m
			} else if why := j.excuse(m, other); other != m && why == "" {
				j.c.fail("%s is told to clients of %s and of %s", a, other.label, m.label)
			} else {
				j.c.saw("two have one address: " + why)
			}
		}
	}
}

// ledgerOf compares a ledger with what clients were told.
func (j *judge) ledgerOf(m *machine) {
	p := m.running()
	if p == nil {
		return
	}
	if findings, err := p.a.ledger.Check(context.Background()); err != nil || len(findings) > 0 {
		j.c.fail("%s: check: %v %v", m.label, findings, err)
	}
	held, seen := map[ledger.Key]string{}, map[string]ledger.Key{}
	for _, l := range p.a.ledger.Leases() {
		a := l.Addr.String()
		if other, twice := seen[a]; twice {
			j.c.fail("%s: %s is leased twice: %s and %s", m.label, a, other, l.Key)
		}
		seen[a] = l.Key
		if l.State == ledger.Held && l.Purpose == ledger.ForPod {
			held[l.Key] = l.Prefix().String()
		}
	}
	for k, a := range m.told {
		if held[k] != a {
			j.c.fail("%s has told %s that it has %s, and it holds %q", m.label, k, a, held[k])
		}
	}
	for k, a := range held {
		if m.told[k] == "" && !m.unsure[k] {
			j.c.fail("%s: %s holds %s, which no client was told", m.label, k, a)
		}
	}
}

// processOf looks at one agent.
func (j *judge) processOf(m *machine) {
	p := m.running()
	if p == nil || !p.a.loop.Status().Resynced {
		return
	}
	if id := p.a.claimers.IDs.ID(); p.id == 0 {
		p.id = id
	} else if p.id != id {
		j.c.fail("%s changes its node ID from %d to %d while it runs", m.label, p.id, id)
	}
	if p.a.Status().NodeIDProblem != p.a.claimers.IDs.Problem() || p.a.claimers.IDs.Problem() != "" && p.a.ready() == nil {
		j.c.fail("%s does not say that its node ID is in doubt", m.label)
	}
	for _, pool := range p.a.ipam.Pools() {
		if p.pools[pool.Name] > pool.Generation {
			j.c.fail(
				"%s knew generation %d of pool %s, and knows %d now",
				m.label,
				p.pools[pool.Name],
				pool.Name,
				pool.Generation,
			)
		}
		p.pools[pool.Name] = pool.Generation
	}
	for key, value := range m.disk.mirrored() {
		var pool kv.Pool
		if !strings.HasPrefix(key, kv.PoolPrefix) || proto.Unmarshal(value, &pool) != nil {
			continue
		}
		if m.c.mirrored[m][pool.Name] > pool.Generation {
			j.c.fail(
				"the mirror of %s had generation %d of pool %s, and has %d now",
				m.label,
				m.c.mirrored[m][pool.Name],
				pool.Name,
				pool.Generation,
			)
		}
		m.c.mirrored[m][pool.Name] = pool.Generation
	}
	j.mirrorOf(m, p)
	j.doubtOf(m, p)
	j.termOf(m, p)
	j.inTouch(m, p)
}

// mirrorOf wants an agent to have no pool in use that a start without the store
// would not know, and to know when the store is away.
func (j *judge) mirrorOf(m *machine, p *process) {
	for name, generation := range p.pools {
		if m.c.mirrored[m][name] < generation && j.isCalm(m) && (name != poolplan.Default || generation != 1) {
			j.c.fail(
				"%s follows generation %d of pool %s, and its mirror has %d",
				m.label,
				generation,
				name,
				m.c.mirrored[m][name],
			)
		}
	}
	if mode, _ := m.net.now(); (mode == netCut || mode == netRefused) && time.Since(m.calm) > time.Minute &&
		p.a.source.Status().Connected {
		j.c.fail("%s takes itself for connected, and the way to the store is %s", m.label, mode)
	}
}

// doubtOf wants a doubt to stay, also after a restart, until the store has answered.
// How long ago that was is told by the machine's clock, which may have jumped.
func (j *judge) doubtOf(m *machine, p *process) {
	heard := m.answers.Load()
	if p.a.claimers.IDs.Problem() == "" && m.doubt && m.doubtAt == heard && !j.c.jumped {
		j.c.fail("%s allocates again, and the store has not answered since its node ID was in doubt", m.label)
	}
	m.doubt, m.doubtAt = p.a.claimers.IDs.Problem() != "" && !m.wasFull, heard
}

// termOf wants an agent that the store has not confirmed for long to know it.
func (j *judge) termOf(m *machine, p *process) {
	m.mu.Lock()
	heard := m.heard
	m.mu.Unlock()
	expire := p.a.conf.Cadastre.NodeIDs.Expire
	if time.Since(m.calm) > 2*time.Minute && m.now().Sub(heard) > expire*5/6+expire/24 &&
		p.a.claimers.IDs.Problem() == "" {
		j.c.fail("%s has not heard of the store for %s and allocates on", m.label, m.now().Sub(heard))
	}
}

// soonInTouch bounds the time in which an agent reads a change of the store.
const soonInTouch = 3 * time.Minute

// isCalm reports whether nothing has disturbed m for long enough.
func (j *judge) isCalm(m *machine) bool {
	p := m.running()
	mode, _ := m.net.now()
	_, _, leaderless := m.c.epoch()
	return p != nil && mode == netOpen && !leaderless && !m.disk.full.Load() &&
		min(time.Since(m.calm), time.Since(m.net.torn()), time.Since(j.c.calm), time.Since(p.begun)) > soonInTouch
}

// inTouch wants an agent that nothing has disturbed to know what the store says.
func (j *judge) inTouch(m *machine, p *process) {
	if !j.isCalm(m) {
		return
	}
	id, problem := p.a.claimers.IDs.ID(), p.a.claimers.IDs.Problem()
	if s := p.a.source.Status(); !s.Connected {
		j.c.fail("%s does not follow the store: %s", m.label, s.Error)
	}
	r := j.c.records()[id]
	epoch, _, _ := j.c.epoch()
	j.mu.Lock()
	news := time.Since(j.wrote[id]) < 20*time.Second
	j.mu.Unlock()
	if !news && problem == "" && (r == nil || r.Instance != m.disk.instance || r.Released != 0 || r.Name != m.name) {
		j.c.fail("%s allocates under node ID %d, of which the store says %v", m.label, id, r)
	}
	for _, other := range j.c.machines {
		if q := other.running(); q != nil && other != m && j.isCalm(other) && !news &&
			(q.a.claimers.IDs.ID() == id || other.name == m.name && epoch == 0) &&
			problem == "" &&
			q.a.claimers.IDs.Problem() == "" {
			j.c.fail(
				"%s and %s both allocate, with one node ID or one name: %d %s and %d %s",
				m.label,
				other.label,
				id,
				m.name,
				q.a.claimers.IDs.ID(),
				other.name,
			)
		}
	}
}

// beaten holds the time when an agent last said, in this history of the store, that it has the
// ID and is there.
func (j *judge) beaten(id uint32) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.beat[id]
}

// conflict returns the reason for which m could not have node ID id some time ago, as the store
// has it; "" for no reason. If id is 0, it is the reason for which m could have no ID at all.
func (j *judge) conflict(m *machine, id uint32, ago time.Duration) string {
	records, beats := j.c.records(), j.c.beats()
	limit, free := j.c.limit(), uint32(0)
	fresh := func(id uint32) bool {
		b := beats[id]
		return b != nil && !b.Stopped && m.now().Sub(time.Unix(0, b.At)) < j.c.fresh+ago && b.Session != m.session()
	}
	alive := func(id uint32) bool { // whatever the clocks say: a copy of a disk looks whether the beat changes
		b := beats[id]
		return b != nil && !b.Stopped && b.Session != m.session() && time.Since(j.beaten(id)) < j.c.fresh+ago
	}
	leaving := func(id uint32) bool { // the agent that had it may allocate until it stops by itself
		b := beats[id]
		return b != nil && b.Instance == records[id].GetInstance() && !b.Stopped &&
			m.now().Sub(time.Unix(0, b.At)) < 24*time.Hour+ago
	}
	for n := uint32(1); n <= limit; n++ {
		if r := records[n]; r == nil || r.Released != 0 && (r.Clean || r.Instance == m.disk.instance || !leaving(n)) {
			free++
		}
	}
	switch r := records[id]; {
	case id != 0 && r != nil && r.Released == 0 && r.Instance != m.disk.instance:
		return "another node has it"
	case id != 0 && r != nil && r.Released != 0 && !r.Clean && r.Instance != m.disk.instance && leaving(id):
		return "another node had it, and may still allocate"
	case id > limit:
		return "it is too large"
	case id == 0 && free == 0:
		return "all are taken"
	}
	for _, n := range slices.Sorted(maps.Keys(records)) {
		r := records[n]
		same := r.Instance == m.disk.instance
		switch {
		case !fresh(n) && (!same || !alive(n)):
		case same && m.ran(beats[n].Session):
			return "the store was set back to an earlier run of it"
		case r.Released != 0:
		case !same && r.Name == m.name && r.SupersededBy == 0:
			return "another instance has its name"
		case same && r.Name != m.name:
			return "another node has its disk"
		case same:
			return "another agent has its identity"
		}
	}
	return ""
}

// pools are those of the store.
func (c *simCluster) pools() (all []poolplan.Pool) {
	values := c.store.all(kv.PoolPrefix)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var m kv.Pool
		if proto.Unmarshal(values[key], &m) != nil {
			continue
		}
		if p, err := poolplan.FromMessage(&m); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func (c *simCluster) records() map[uint32]*kv.NodeRecord {
	all := map[uint32]*kv.NodeRecord{}
	for _, value := range c.store.all(kv.NodeRecordPrefix) {
		var m kv.NodeRecord
		if proto.Unmarshal(value, &m) == nil {
			all[m.Id] = &m
		}
	}
	return all
}

func (c *simCluster) beats() map[uint32]*kv.NodeBeat {
	all := map[uint32]*kv.NodeBeat{}
	for _, value := range c.store.all(kv.BeatPrefix) {
		var m kv.NodeBeat
		if proto.Unmarshal(value, &m) == nil {
			all[m.Id] = &m
		}
	}
	return all
}

// limit is the largest node ID that the pools allow.
func (c *simCluster) limit() uint32 {
	var open []poolplan.Pool
	for _, p := range c.pools() {
		if p.Network == poolplan.Default && p.State == poolplan.Active {
			open = append(open, p)
		}
	}
	if len(open) == 0 {
		return c.nodes
	}
	return poolplan.Largest(open)
}
