// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// repairTime bounds the time until all is as it should be after the last fault: an agent that
// failed again and again waits for five minutes.
const repairTime = 12 * time.Minute

// repairAll ends all faults, waits, and checks that all is as it should be.
func (c *simCluster) repairAll() {
	c.say("everything is mended")
	c.setLeaderless(false)
	for _, m := range c.machines {
		m.heal()
	}
	time.Sleep(repairTime)
	synctest.Wait()
	c.judge.step()
	for _, m := range c.machines {
		if m.stop != nil && c.ok() {
			c.judge.repaired(m)
		}
	}
	c.judge.poolsRepaired()
}

// repaired looks at a machine that had time.
func (j *judge) repaired(m *machine) {
	p := m.running()
	if p == nil || !p.a.loop.Status().Resynced {
		why := cmp.Or(j.conflict(m, 0, lastPause), j.conflict(m, m.remembers(), lastPause))
		if j.c.saw("an agent cannot start: " + why); why == "" {
			j.c.fail("%s does not run: %v", m.label, m.lastFailure())
		}
		return
	}
	problem := p.a.claimers.IDs.Problem()
	why := "none"
	if problem != "" {
		why = j.conflict(m, p.a.claimers.IDs.ID(), time.Minute)
	}
	j.c.saw("what is wrong with an agent's node ID: " + why)
	switch s := p.a.source.Status(); {
	case !s.Connected:
		j.c.fail("%s does not follow the store: %s", m.label, s.Error)
	case problem == "" && p.a.ready() != nil && !j.c.drained() && !j.pinnedElsewhere(m):
		j.c.fail("%s is not ready: %v", m.label, p.a.ready())
	case problem != "" && !strings.Contains(p.a.Status().NodeIDProblem, problem):
		j.c.fail("%s does not say what is wrong: %s", m.label, problem)
	case why == "":
		j.c.fail("%s takes its node ID for lost (%s), and the store does not say so", m.label, problem)
	case !p.a.loop.Status().Healthy:
		j.c.fail("%s is not healthy: %s", m.label, p.a.loop.Status().LastError)
	}
	j.served(m)
	j.overlaps(m, p)
	j.poolsOf(m, p)
	j.home(m, p)
	j.southbound(m, p)
}

// pinnedElsewhere reports whether another node publishes the address that is
// pinned for this one.
func (j *judge) pinnedElsewhere(m *machine) bool {
	pinned := m.running().a.nodeconfig.MainIP()
	for _, r := range j.c.records() {
		if r.Name != m.name && r.Released == 0 && slices.Contains(r.IpAddresses, pinned.String()) {
			return true
		}
	}
	return false
}

// drained reports whether the pod network has no pool to allocate from, which is so only
// where two histories of the store have each drained one.
func (c *simCluster) drained() bool {
	epoch, _, _ := c.epoch()
	return epoch > 0 && !slices.ContainsFunc(c.pools(), func(p poolplan.Pool) bool {
		return p.Network == poolplan.Default && p.State == poolplan.Active
	})
}

// served repeats what was asked before.
func (j *judge) served(m *machine) {
	for k := range m.told {
		m.add(k)
		m.check(k)
	}
	p, k := m.running(), ledger.Key{Network: "pods", ContainerID: "probe", IfName: "eth0"}
	if p.a.claimers.IDs.Problem() != "" {
		m.add(k)
		return
	}
	for _, b := range p.a.ledger.Stats() {
		if b.Pool == poolplan.Default && b.State == ledger.Active && b.Free > 0 {
			if m.add(k); m.told[k] == "" {
				j.c.fail("%s allocates nothing although %d addresses are free", m.label, b.Free)
			}
			break
		}
	}
	m.del(k)
}

// overlaps wants two agents with one block to know that one of them may not allocate.
func (j *judge) overlaps(m *machine, p *process) {
	for _, other := range j.c.machines {
		q := other.running()
		if q == nil || other == m || p.a.claimers.IDs.Problem() != "" || q.a.claimers.IDs.Problem() != "" {
			continue
		}
		for _, a := range p.a.ledger.Stats() {
			for _, b := range q.a.ledger.Stats() {
				if a.Block.Overlaps(b.Block) && a.State == ledger.Active && b.State == ledger.Active {
					j.c.fail("%s and %s both allocate of %s", m.label, other.label, a.Block)
				}
			}
		}
	}
}

// home wants every lease to be in the node's own blocks: to these other nodes
// send what is for it. Two histories of a pool may have it removed all the same.
func (j *judge) home(m *machine, p *process) {
	if p.a.claimers.IDs.Problem() != "" {
		return
	}
	blocks, epoch := blocksOf(j.c.pools(), p.a.claimers.IDs.ID()), 0
	if epoch, _, _ = j.c.epoch(); epoch > 0 {
		for _, pool := range j.c.pools() {
			if pool.State == poolplan.Removed {
				blocks = append(blocks, pool.Ranges[0].CIDR)
			}
		}
	}
	for k, a := range m.told {
		in := func(b netip.Prefix) bool { return b.Contains(netip.MustParsePrefix(a).Addr()) }
		if !slices.ContainsFunc(blocks, in) {
			j.c.fail("%s has allocated %s to %s, which is in no block of node ID %d", m.label, a, k, p.a.claimers.IDs.ID())
		}
	}
}

// poolsOf wants an agent to know the pools of the store, and the store to have
// what the agent's mirror has.
func (j *judge) poolsOf(m *machine, p *process) {
	stored := map[string]poolplan.Pool{}
	for _, pool := range j.c.pools() {
		stored[pool.Name] = pool
	}
	for _, pool := range p.a.ipam.Pools() {
		if !pool.Equal(stored[pool.Name]) {
			j.c.fail("%s knows %v, the store has %v", m.label, pool, stored[pool.Name])
		}
		delete(stored, pool.Name)
	}
	for _, pool := range stored {
		j.c.fail("%s does not know %v", m.label, pool)
	}
	for name, generation := range j.c.mirrored[m] {
		if i := slices.IndexFunc(j.c.pools(), func(p poolplan.Pool) bool { return p.Name == name }); i < 0 || j.c.pools()[i].Generation < generation {
			j.c.fail("the mirror of %s had generation %d of pool %s, and the store has not", m.label, generation, name)
		}
	}
}

// poolsRepaired wants what apply has reported to be true still.
func (j *judge) poolsRepaired() {
	pools := j.c.pools()
	for name, generation := range j.acked {
		if i := slices.IndexFunc(pools, func(p poolplan.Pool) bool { return p.Name == name }); i < 0 || pools[i].Generation < generation {
			j.c.fail("generation %d of pool %s was applied, and the store does not have it", generation, name)
		}
	}
}

// southbound compares what is there with what the store says, and with what a
// resync makes of it.
func (j *judge) southbound(m *machine, p *process) {
	before, err := m.sink.Dump(context.Background())
	if err != nil {
		j.c.fail("%s: %v", m.label, err)
		return
	}
	want := j.c.routes(m, p.a.claimers.IDs.ID())
	for key := range before {
		if strings.HasPrefix(key, kv.SinkRoutePrefix) && want[key] == nil {
			j.c.fail("%s has %s: %v, which leads nowhere", m.label, key, before[key])
		}
	}
	for key, route := range want {
		if !proto.Equal(route, before[key]) {
			j.c.fail("%s has %s: %v instead of %v", m.label, key, before[key], route)
		}
	}
	if err := p.a.source.Resync(simContext()); err != nil {
		j.c.fail("%s: resync: %v", m.label, err)
	}
	after, _ := m.sink.Dump(context.Background())
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if !proto.Equal(before[key], after[key]) {
			j.c.fail("%s: a resync makes %s %v, it was %v", m.label, key, after[key], before[key])
		}
		delete(before, key)
	}
	for key, value := range before {
		j.c.fail("%s: a resync takes away %s: %v", m.label, key, value)
	}
}

// routes are those that machine m with a node ID should have.
func (c *simCluster) routes(m *machine, own uint32) map[string]proto.Message {
	newest := map[string]*kv.NodeRecord{}
	records := c.records()
	// who is first, where nothing else tells
	byKey := func(a, b uint32) int { return strings.Compare(kv.NodeRecordKey(a), kv.NodeRecordKey(b)) }
	for _, id := range slices.SortedFunc(maps.Keys(records), byKey) {
		r := records[id]
		have := newest[r.Name]
		switch {
		case r.Released != 0:
		case have == nil, have.SupersededBy != 0 && r.SupersededBy == 0,
			(have.SupersededBy != 0) == (r.SupersededBy != 0) && r.Generation > have.Generation:
			newest[r.Name] = r
		}
	}
	want := map[string]proto.Message{}
	pools := c.pools()
	for name, r := range newest {
		if r.Id == own {
			continue
		}
		for _, block := range blocksOf(pools, r.Id) {
			route := &kv.NodeRoute{Dst: block.String(), NodeId: r.Id, NodeName: name}
			if len(r.IpAddresses) > 0 {
				route.Gateway, _, _ = strings.Cut(r.IpAddresses[0], "/")
			}
			want[kv.SinkRoutePrefix+block.String()] = route
		}
	}
	for key, value := range c.store.all(kv.NodePrefix(m.name)) {
		sinkKey, ok := kv.External(key)
		var outside kv.NodeRoute
		if !ok || proto.Unmarshal(value, &outside) != nil {
			continue
		}
		if want[sinkKey] == nil {
			want[sinkKey] = &kv.NodeRoute{}
		}
		proto.Merge(want[sinkKey], &outside)
	}
	return want
}

// blocksOf are all blocks of a node.
func blocksOf(pools []poolplan.Pool, id uint32) (all []netip.Prefix) {
	done := map[string]bool{}
	for _, p := range pools {
		if done[p.Network] {
			continue
		}
		done[p.Network] = true
		open, draining, _ := poolplan.Blocks(pools, p.Network, id)
		for _, b := range append(open, draining...) {
			all = append(all, b.Prefix)
		}
	}
	return all
}
