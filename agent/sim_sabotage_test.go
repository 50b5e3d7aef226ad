// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// Whatever breaks a promise of the cluster must be found.
func TestTheClusterSimulationFindsABrokenCluster(t *testing.T) {
	const seeds, steps = 6, 30
	last := steps - 1
	for _, sabotage := range []struct {
		name  string
		least int // at times there is nothing to break, or no agent to notice
		at    int // step
		do    func(c *simCluster)
	}{
		{"a lease vanishes", 3, steps / 2, (*simCluster).loseLease},
		{"an agent has another's node ID without a claim", 4, steps / 2, (*simCluster).steal},
		{"a pool's generation falls", 5, steps / 2, (*simCluster).dropGeneration},
		{"a pool is set back, in the store and in all memories", 3, last, (*simCluster).forgetPool},
		{"a route is lost", 3, last, (*simCluster).loseRoute},
		{"an agent forgets that it may not allocate", 4, steps / 2, (*simCluster).forgetDoubt},
		{"the store looks at no condition", 5, steps / 2, (*simCluster).ignoreConditions},
	} {
		t.Run(sabotage.name, func(t *testing.T) {
			found := 0
			for seed := range uint64(seeds) {
				plan := simPlan{seed: seed, steps: steps, sabotage: func(c *simCluster, step int) {
					if step == sabotage.at {
						c.say("SABOTAGE: %s", sabotage.name)
						sabotage.do(c)
					}
				}}
				if err := simulateCluster(t, plan); err != nil && strings.Contains(err.Error(), "SABOTAGE") {
					found++
				}
			}
			if found < sabotage.least {
				t.Errorf("it found %d of %d", found, seeds)
			}
		})
	}
}

func (c *simCluster) loseLease() {
	c.repairAll()
	if m := c.anyServing(); m != nil {
		k := ledger.Key{Network: "pods", ContainerID: "victim", IfName: "eth0"}
		m.add(k)
		_, _ = m.running().a.ledger.Release(context.Background(), ledger.Selector{Key: k})
	}
}

// behind does something to the store that the judge does not see.
func (c *simCluster) behind(f func()) {
	seen := c.store.written
	c.store.written = nil
	f()
	c.store.written = seen
}

// steal gives a machine the node ID of the first one, whose addresses it then allocates too.
func (c *simCluster) steal() {
	c.repairAll()
	victim, thief := c.machines[0], c.newMachine("", nil)
	elapse(time.Minute)
	id, leased := victim.remembers(), 0
	thief.halt(true)
	record, err := proto.Marshal(&kv.NodeRecord{Id: id, Name: thief.name, Instance: thief.disk.instance, Generation: 50})
	text, _ := json.Marshal(map[string]any{"id": id, "generation": 50, "confirmed": thief.now()})
	if err != nil || thief.disk.local.SetLocal("node-id", string(text)) != nil {
		c.t.Error(err)
	}
	for n := range 4 {
		victim.add(ledger.Key{Network: "pods", ContainerID: fmt.Sprint("v", n), IfName: "eth0"})
	}
	c.behind(func() { c.store.set(kv.NodeRecordKey(id), record) })
	thief.start()
	elapse(time.Minute)
	for n := 0; n < 12 && leased < len(victim.told)+4; n++ {
		thief.add(ledger.Key{Network: "pods", ContainerID: fmt.Sprint("t", n), IfName: "eth0"})
		leased = len(thief.told)
	}
}

func (c *simCluster) dropGeneration() {
	for _, p := range c.pools() {
		p.Generation += 2
		c.put(kv.PoolKey(p.Name), p.Message())
		p.Generation--
		c.put(kv.PoolKey(p.Name), p.Message())
		return
	}
}

// forgetPool has a pool drain, and then removes it from all agents.
func (c *simCluster) forgetPool() {
	c.repairAll()
	m := c.anyServing()
	if m == nil || len(c.pools()) == 0 {
		return
	}
	c.apply(m, "{name: spare, ranges: [{cidr: 10.19.0.0/24, oneNodePrefixLen: 28}]}")
	before := c.store.all(kv.PoolKey("spare"))[kv.PoolKey("spare")]
	c.apply(m, "{name: spare, state: draining}")
	for _, m := range c.machines {
		m.halt(true)
		if m.disk.mu.Lock(); m.disk.mirror[kv.PoolKey("spare")] != nil {
			m.disk.mirror[kv.PoolKey("spare")] = before
		}
		m.disk.mu.Unlock()
		clear(c.mirrored[m])
	}
	c.behind(func() { c.store.set(kv.PoolKey("spare"), before) })
	for _, m := range c.machines {
		m.start()
	}
}

func (c *simCluster) loseRoute() {
	c.repairAll()
	for _, m := range c.machines {
		values, _ := m.sink.Dump(context.Background())
		for key := range values {
			if strings.HasPrefix(key, kv.SinkRoutePrefix) && m.running() != nil {
				_ = m.sink.Commit(context.Background(), controller.Transaction{Method: controller.Update, Values: []controller.Value{{Key: key}}})
				return
			}
		}
	}
}

// forgetDoubt copies a machine, whose agent finds the copy and may not allocate, and does.
func (c *simCluster) forgetDoubt() {
	c.repairAll()
	m := c.anyServing()
	if m == nil {
		return
	}
	c.newMachine(m.name, m.disk.clone())
	elapse(3 * time.Minute)
	for _, m := range c.machines {
		if p := m.running(); p != nil && p.a.claimers.IDs.Problem() != "" {
			p.a.ledger.Suspend("node ID", "")
			m.add(ledger.Key{Network: "pods", ContainerID: "forgotten", IfName: "eth0"})
		}
	}
}

// ignoreConditions has the store take every write, and two machines come at once.
func (c *simCluster) ignoreConditions() {
	c.repairAll()
	c.store.mu.Lock()
	c.store.lax = true
	c.store.mu.Unlock()
	c.newMachine("", nil)
	c.newMachine("", nil)
}

// elapse lets simulated time pass, and what happens in it end.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
