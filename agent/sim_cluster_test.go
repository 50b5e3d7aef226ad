// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/ledger"
)

// The simulation of a cluster runs several agents, each whole but for its
// sockets, over one store in simulated time, driven by one seed. Package effort
// chooses the seeds, SIM_STEPS the number of steps; SIM_OMIT leaves
// steps out (by number, with commas), and SIM_SHRINK finds those that a failure
// does not need.
func TestClusterSimulation(t *testing.T) {
	from, n := effort.Seeds(t, 100)
	steps := 60
	if s := os.Getenv("SIM_STEPS"); s != "" {
		steps, _ = strconv.Atoi(s)
	}
	tally := map[string]int{}
	tried := attack.Begin(t, attack.ClusterSim)
	defer func() {
		for _, what := range slices.Sorted(maps.Keys(tally)) {
			t.Logf("%5d  %s", tally[what], what)
			if strings.HasPrefix(what, "two have one address: ") {
				tried.Except(what, tally[what])
			}
		}
	}()
	for seed := from; seed < from+n; seed++ {
		tried.Add(1)
		plan := simPlan{seed: seed, steps: steps, omit: map[int]bool{}, tally: tally}
		for _, s := range strings.Split(os.Getenv("SIM_OMIT"), ",") {
			if k, err := strconv.Atoi(s); err == nil {
				plan.omit[k] = true
			}
		}
		err := simulateCluster(t, plan)
		if err != nil && os.Getenv("SIM_SHRINK") != "" {
			plan, err = shrink(t, plan, err)
		}
		if err != nil {
			t.Errorf("%v\nreplay it: %s go test ./agent -run TestClusterSimulation", err, plan)
			if os.Getenv("SIM_ALL") == "" {
				return
			}
		}
	}
}

// simPlan describes one simulation.
type simPlan struct {
	seed     uint64
	steps    int
	omit     map[int]bool
	sabotage func(c *simCluster, step int)
	tally    map[string]int // what was seen, and how often; may be nil
}

// String returns the environment that repeats it.
func (p simPlan) String() string {
	s := fmt.Sprintf("%s=%d SIM_STEPS=%d", effort.SeedEnv, p.seed, p.steps)
	if len(p.omit) == 0 {
		return s
	}
	var omitted []string
	for step := range p.steps {
		if p.omit[step] {
			omitted = append(omitted, strconv.Itoa(step))
		}
	}
	return s + " SIM_OMIT=" + strings.Join(omitted, ",")
}

// shrink leaves out steps as long as the simulation fails with the same first words.
func shrink(t *testing.T, plan simPlan, err error) (simPlan, error) {
	var failed *simFailure
	if errors.As(err, &failed) {
		plan.steps = failed.step + 1
	}
	without := func(from, to int) bool {
		next := plan
		next.omit = map[int]bool{}
		for step := range plan.steps {
			next.omit[step] = plan.omit[step] || from <= step && step < to
		}
		e := simulateCluster(t, next)
		if e == nil {
			return false
		}
		plan, err = next, e
		return true
	}
	for size := plan.steps / 2; size >= 1; size /= 2 {
		for from := 0; from < plan.steps; from += size {
			without(from, from+size)
		}
	}
	return plan, err
}

// simConf has room for some nodes in the first pool.
const simConf = `
ipamConfig: {podSubnetCIDR: 10.1.0.0/%d, podSubnetOneNodePrefixLen: 28}
cadastre:
  kvdb: {type: etcd, endpoints: ["simulated:1"]}
  nodeIDs: {quarantine: 0s}
  controller: {remoteDBProbingInterval: 10s}
`

// simCluster is a simulation.
type simCluster struct {
	t        *testing.T
	plan     simPlan
	conf     string
	nodes    uint32        // that fit the first pool
	fresh    time.Duration // as configured
	rnd      *rand.Rand    // of the step
	dir      string
	begun    time.Time
	calm     time.Time // since when nothing has befallen the store
	store    *simStore
	judge    *judge
	machines []*machine
	made     int  // machines so far
	pooled   int  // pools so far
	slept    bool // for long
	jumped   bool // some clock has
	mirrored map[*machine]map[string]uint64
	weights  []int // of the actions
	sum      int

	mu       sync.Mutex
	step     int
	scenario []string
	failure  error
}

// simFailure is a broken promise.
type simFailure struct {
	step int
	text string
}

func (f *simFailure) Error() string { return f.text }

func simulateCluster(t *testing.T, plan simPlan) (err error) {
	dir, derr := os.MkdirTemp("", "sim")
	if derr != nil {
		t.Fatal(derr)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		c := &simCluster{
			t: t, plan: plan, fresh: 3 * time.Minute, rnd: rand.New(rand.NewPCG(plan.seed, 0)), dir: dir,
			begun: time.Now(), calm: time.Now(), store: newSimStore(), mirrored: map[*machine]map[string]uint64{}, step: -1,
		}
		c.judge = newJudge(c)
		c.store.written = c.judge.written
		c.weights, c.sum = weights(c.rnd)
		c.slept = c.rnd.IntN(2) == 0
		bits := 2 + 2*c.rnd.IntN(2)
		c.conf, c.nodes = fmt.Sprintf(simConf, 28-bits), 1<<bits
		c.run()
		err = c.failure
	})
	return err
}

// run is the whole simulation.
func (c *simCluster) run() {
	for range 2 + c.rnd.IntN(2) {
		c.newMachine("", nil)
	}
	c.repairAll()
	for step := 0; step < c.plan.steps && c.ok(); step++ {
		if c.plan.omit[step] {
			continue
		}
		c.mu.Lock()
		c.step = step
		c.mu.Unlock()
		c.rnd = rand.New(rand.NewPCG(c.plan.seed, uint64(step)+1))
		c.act()
		if c.rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(c.rnd.IntN(5000)) * time.Millisecond)
		}
		if c.plan.sabotage != nil {
			c.plan.sabotage(c, step)
		}
		synctest.Wait()
		c.judge.step()
	}
	if c.ok() {
		c.repairAll()
	}
	for _, m := range c.machines {
		m.halt(false)
	}
	c.store.setBack(0)
	time.Sleep(time.Minute) // what was on its way has come or is lost
	synctest.Wait()
}

// saw counts what may be of interest.
func (c *simCluster) saw(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plan.tally != nil {
		c.plan.tally[what]++
	}
}

func (c *simCluster) ok() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure == nil
}

// say adds to the scenario.
func (c *simCluster) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Since(c.begun).Round(time.Millisecond)
	text, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	c.scenario = append(c.scenario, fmt.Sprintf("%4d %14s  %s", c.step, at, text))
}

// fail is a promise that was broken; the first one counts.
func (c *simCluster) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.say("BROKEN: %s", text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		c.failure = &simFailure{c.step, fmt.Sprintf("step %d: %s\n%s", c.step, text, strings.Join(c.scenario, "\n"))}
	}
}

func (c *simCluster) epoch() (epoch, transactions int, leaderless bool) { return c.store.age() }

// newMachine sets up a machine and starts its agent. Without a name it has a new
// one, without a disk an empty one.
func (c *simCluster) newMachine(name string, disk *simDisk) *machine {
	c.made++
	label := string(rune('a'+(c.made-1)%26)) + strings.Repeat("'", (c.made-1)/26)
	if name == "" {
		name = "node-" + label
	}
	if disk == nil {
		disk = newSimDisk("instance of " + label)
	}
	m := &machine{
		c: c, label: label, name: name, number: c.made, disk: disk, sink: &controller.MemorySink{},
		net:    &simNet{keepAlive: c.rnd.IntN(2) == 0, changed: make(chan struct{}), latency: c.usual(c.made)},
		booted: time.Now().Add(-time.Hour), dir: filepath.Join(c.dir, label), rnd: rand.New(rand.NewPCG(c.plan.seed, uint64(1000+c.made))),
		told: map[ledger.Key]string{}, unsure: map[ledger.Key]bool{},
	}
	m.heard = m.now()
	c.mirrored[m] = map[string]uint64{}
	c.machines = append(c.machines, m)
	c.say("machine %s, named %s, with the disk of %q", m.label, m.name, disk.instance)
	m.start()
	return m
}

// usual is the latency of a machine where nothing is wrong: no two do the same
// at the same time.
func (c *simCluster) usual(number int) time.Duration {
	return 3*time.Millisecond + time.Duration(number)*370*time.Microsecond
}

// any is a machine, at random.
func (c *simCluster) any() *machine { return c.machines[c.rnd.IntN(len(c.machines))] }

// anyServing is one whose agent answers, nil where there is none.
func (c *simCluster) anyServing() *machine {
	up := slices.DeleteFunc(slices.Clone(c.machines), func(m *machine) bool { return m.serving() == nil })
	if len(up) == 0 {
		return nil
	}
	return up[c.rnd.IntN(len(up))]
}

func (c *simCluster) key() ledger.Key {
	network := []string{"pods", "pods", "pods", "blue", "green"}[c.rnd.IntN(5)]
	return ledger.Key{Network: network, ContainerID: fmt.Sprint("c", c.rnd.IntN(6)), IfName: "eth0"}
}

// storeDisturbed notes that something has happened to the store.
func (c *simCluster) storeDisturbed() { c.calm = time.Now() }
