// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// action is one thing that may happen, and how often it does.
type action struct {
	weight int
	do     func(c *simCluster)
}

func actions() []action {
	return []action{
		{24, func(c *simCluster) { c.any().add(c.key()) }},
		{10, (*simCluster).del},
		{4, (*simCluster).crowd},
		{3, func(c *simCluster) { c.any().turn("killed", true, true) }},
		{3, func(c *simCluster) { c.any().turn("restarted", false, true) }},
		{2, func(c *simCluster) { c.any().turn("killed, and stays away", true, false) }},
		{3, func(c *simCluster) { c.any().turn("stopped", false, false) }},
		{6, (*simCluster).startOne},
		{2, func(c *simCluster) { c.any().reboot() }},
		{5, (*simCluster).join},
		{1, (*simCluster).goAway},
		{1, (*simCluster).usurp},
		{3, func(c *simCluster) { c.release(false) }},
		{2, func(c *simCluster) { c.release(true) }},
		{8, (*simCluster).changePools},
		{2, (*simCluster).drainAll},
		{5, (*simCluster).changeNetworks},
		{7, (*simCluster).changeObjects},
		{9, (*simCluster).disturbNet},
		{5, (*simCluster).healOne},
		{2, func(c *simCluster) { c.calamity("is wiped", 0) }},
		{2, (*simCluster).restore},
		{1, (*simCluster).compact},
		{2, (*simCluster).loseLeader},
		{3, (*simCluster).jump},
		{2, (*simCluster).fillDisk},
		{5, func(c *simCluster) { c.pass(time.Duration(c.rnd.IntN(60_000)) * time.Millisecond) }},
		{5, func(c *simCluster) { c.pass(time.Duration(c.rnd.IntN(600)) * time.Second) }},
		{1, (*simCluster).passLong},
		{4, (*simCluster).repairAll},
	}
}

// weights holds the frequency of each step in the simulation of a seed. Each seed
// prefers some steps and leaves others out.
func weights(rnd *rand.Rand) (all []int, sum int) {
	for _, a := range actions() {
		w := a.weight * []int{0, 1, 1, 2, 5}[rnd.IntN(5)]
		all, sum = append(all, w), sum+w
	}
	return all, max(sum, 1)
}

// act does one of them.
func (c *simCluster) act() {
	n := c.rnd.IntN(c.sum)
	for i, a := range actions() {
		if n -= c.weights[i]; n < 0 {
			a.do(c)
			return
		}
	}
}

// pass lets time pass.
func (c *simCluster) pass(d time.Duration) {
	c.say("%s pass", d)
	time.Sleep(d)
	synctest.Wait()
}

// passLong lets up to 30 hours pass, once: an agent looks after its mirror every
// second of them.
func (c *simCluster) passLong() {
	if !c.slept {
		c.slept = true
		c.pass(time.Duration(c.rnd.IntN(30)) * time.Hour)
	}
}

func (c *simCluster) del() {
	m := c.any()
	keys := slices.SortedFunc(maps.Keys(m.told), func(a, b ledger.Key) int { return strings.Compare(a.String(), b.String()) })
	if len(keys) > 0 && c.rnd.IntN(4) > 0 {
		m.del(keys[c.rnd.IntN(len(keys))])
		return
	}
	m.del(c.key())
}

// crowd is an ADD at all machines at once.
func (c *simCluster) crowd() {
	k := c.key()
	var wg sync.WaitGroup
	for _, m := range c.machines {
		wg.Go(func() { m.add(k) })
	}
	wg.Wait()
}

// turn ends the agent of a machine, if one runs, and may start another.
func (m *machine) turn(how string, kill, again bool) {
	m.c.say("%s: the agent is %s", m.label, how)
	m.halt(kill)
	if again {
		m.start()
	}
}

func (c *simCluster) startOne() {
	for _, m := range c.machines {
		if m.stop == nil {
			c.say("%s: the agent is started", m.label)
			m.start()
			return
		}
	}
}

// reboot ends all pods of a machine.
func (m *machine) reboot() {
	m.c.say("%s: reboot", m.label)
	m.halt(true)
	m.clean()
	m.start()
}

func (m *machine) clean() {
	if err := os.RemoveAll(m.dir); err != nil {
		m.c.t.Error(err)
	}
	m.boots++
	m.booted = time.Now()
	m.sink = &controller.MemorySink{}
	clear(m.told)
	clear(m.unsure)
}

// atMost bounds the number of machines.
const atMost = 5

// join adds a machine in one of many ways.
func (c *simCluster) join() {
	old := c.any()
	kind := c.rnd.IntN(10)
	if kind == 0 {
		c.say("%s is set up anew: its disk is lost, its pods are gone", old.label)
		old.halt(true)
		old.clean()
		old.disk = newSimDisk(fmt.Sprint("instance of ", old.label, " ", c.step))
		clear(c.mirrored[old])
		old.start()
		return
	}
	if len(c.machines) >= atMost {
		return
	}
	switch kind {
	case 1:
		c.newMachine(old.name, nil)
	case 4:
		twin := c.newMachine("", nil)
		c.newMachine(twin.name, nil)
	case 2:
		c.newMachine(old.name, old.disk.clone())
	case 3:
		c.newMachine("", old.disk.clone())
	default:
		c.newMachine("", nil)
	}
}

// usurp has another node take the ID of one that was said to be gone, and is back.
func (c *simCluster) usurp() {
	m := c.any()
	c.say("%s: its node is taken for gone", m.label)
	m.disturbed()
	if c.rnd.IntN(3) == 0 {
		m.net.change(func() { m.net.mode = netCut })
		c.pass(0)
	} else {
		m.halt(c.rnd.IntN(2) == 0)
	}
	if other := c.anyServing(); other != nil && len(c.machines) < atMost && other.name != m.name {
		reply, err := other.serving().a.clusterViews().ReleaseNode(simContext(), localapi.NodeReleaseRequest{Name: m.name, Force: true})
		c.say("%s: release of %s by force -> ID %d, %v", other.label, m.name, reply.ID, err)
		c.newMachine("", nil)
		c.pass(time.Duration(c.rnd.IntN(300)) * time.Second)
	}
	if c.rnd.IntN(2) == 0 {
		c.say("%s: the way to the store is cut", m.label)
		m.net.change(func() { m.net.mode = netCut })
	}
	m.start()
}

// goAway ends a machine and all that was on it.
func (c *simCluster) goAway() {
	if len(c.machines) < 3 {
		return
	}
	m := c.any()
	c.say("%s is gone for good", m.label)
	m.halt(true)
	c.machines = slices.DeleteFunc(c.machines, func(x *machine) bool { return x == m })
}

// release says through one agent that a node is gone.
func (c *simCluster) release(force bool) {
	names := map[string]bool{}
	for _, r := range c.records() {
		names[r.Name] = true
	}
	all, through := slices.Sorted(maps.Keys(names)), c.anyServing()
	if len(all) == 0 || through == nil {
		return
	}
	name := all[c.rnd.IntN(len(all))]
	ctx, cancel := context.WithTimeout(context.Background(), c.fresh) // without force it watches the node's beats
	defer cancel()
	reply, err := through.serving().a.clusterViews().ReleaseNode(ctx, localapi.NodeReleaseRequest{Name: name, Force: force})
	c.say("%s: release of %s (force: %v) -> ID %d, %v", through.label, name, force, reply.ID, err)
}

// simContext ends before long.
func simContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Second, cancel)
	return ctx
}

func (c *simCluster) disturbNet() {
	m := c.any()
	m.disturbed()
	switch c.rnd.IntN(10) {
	case 0, 1:
		d := time.Duration(c.rnd.IntN(4000)) * time.Millisecond
		c.say("%s: the way to the store takes %s", m.label, d)
		m.net.change(func() { m.net.latency = d })
	case 2, 3, 4:
		n := 1 + c.rnd.IntN(2)
		c.say("%s: the next %d answers to transactions are lost", m.label, n)
		m.net.change(func() { m.net.tears = n })
	default:
		mode := []netMode{netCut, netCut, netRefused, netSilent}[c.rnd.IntN(4)]
		c.say("%s: the way to the store is %s", m.label, mode)
		m.net.change(func() { m.net.mode = mode })
	}
}

func (m *machine) heal() {
	m.disk.full.Store(false)
	m.disturbed()
	m.net.change(func() { m.net.mode, m.net.latency, m.net.tears = netOpen, m.c.usual(m.number), 0 })
}

func (c *simCluster) healOne() {
	for _, m := range c.machines {
		if mode, _ := m.net.now(); mode != netOpen || m.disk.full.Load() || m.net.lag() > time.Second {
			c.say("%s: the way to the store and the disk are as they should be", m.label)
			m.heal()
			return
		}
	}
}

// calamity sets the store back to what it was after n transactions.
func (c *simCluster) calamity(what string, n int) {
	c.say("the store %s", what)
	c.store.setBack(n)
	c.judge.setBack()
	c.storeDisturbed()
}

func (c *simCluster) restore() {
	_, n, _ := c.epoch()
	if n == 0 {
		return
	}
	back := 1 + c.rnd.IntN(min(n, 40))
	if c.rnd.IntN(2) == 0 {
		back = 1 + c.rnd.IntN(n)
	}
	c.calamity(fmt.Sprintf("is set back by %d of %d transactions", back, n), n-back)
}

func (c *simCluster) compact() {
	c.say("the store is compacted")
	c.store.compact()
	c.storeDisturbed()
}

func (c *simCluster) loseLeader() {
	c.say("the store has no leader")
	c.setLeaderless(true)
}

func (c *simCluster) setLeaderless(is bool) {
	c.store.setLeaderless(is)
	c.storeDisturbed()
	for _, m := range c.machines {
		m.net.change(func() {})
	}
}

func (c *simCluster) jump() {
	m := c.any()
	d := time.Duration(c.rnd.IntN(240)-120) * time.Minute / 2
	if c.rnd.IntN(2) == 0 {
		d = time.Duration(c.rnd.IntN(96)-48) * time.Hour
	}
	c.say("%s: the clock jumps by %s", m.label, d)
	m.wall.Add(int64(d))
	c.jumped = true
	m.disturbed()
}

func (c *simCluster) fillDisk() {
	m := c.any()
	c.say("%s: the disk is full", m.label)
	m.disk.full.Store(true)
	m.wasFull = true
	m.disturbed()
}

// changePools applies a pools.yaml through some agent.
func (c *simCluster) changePools() {
	m := c.anyServing()
	if m == nil {
		return
	}
	var file string
	if known := c.pools(); len(known) == 0 || c.rnd.IntN(3) == 0 {
		c.pooled++
		network := []string{"default", "default", "blue"}[c.rnd.IntN(3)]
		file = fmt.Sprintf("{name: more-%d, network: %s, ranges: [{cidr: 10.%d.0.0/%d, oneNodePrefixLen: 28}]}",
			c.pooled, network, 20+c.pooled, 24-c.rnd.IntN(2))
	} else {
		p := known[c.rnd.IntN(len(known))]
		state := []poolplan.State{poolplan.Removed, poolplan.Removed, poolplan.Active}[c.rnd.IntN(3)]
		if p.State == poolplan.Active {
			state = poolplan.Draining
		}
		file = fmt.Sprintf("{name: %s, state: %s}", p.Name, state)
	}
	c.apply(m, file)
}

// drainAll drains each pool of the pod network through another agent, all at once.
// One must be left.
func (c *simCluster) drainAll() {
	c.changePools()
	var wg sync.WaitGroup
	for i, p := range c.pools() {
		if m := c.machines[i%len(c.machines)]; p.Network == poolplan.Default && m.serving() != nil {
			wg.Go(func() { c.apply(m, fmt.Sprintf("{name: %s, state: draining}", p.Name)) })
		}
	}
	wg.Wait()
}

func (c *simCluster) apply(m *machine, entry string) {
	p := m.serving()
	r, err := p.a.clusterViews().Apply(simContext(), []byte("pools: ["+entry+"]"), false)
	text := fmt.Sprintf("%d changes, error %v", r.Changes, err)
	if r.Refused {
		text = "refused: " + strings.ReplaceAll(r.Text, "\n", " ")
	}
	c.say("%s: apply %s -> %s", m.label, entry, text)
	if err != nil || r.Refused {
		return
	}
	c.judge.mu.Lock()
	defer c.judge.mu.Unlock()
	for _, pool := range c.pools() {
		if strings.HasPrefix(entry, "{name: "+pool.Name+",") {
			c.judge.acked[pool.Name] = max(c.judge.acked[pool.Name], pool.Generation)
		}
	}
}
