// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// The simulation runs the whole agent but its sockets in one process and in
// simulated time, driven by one seed. Package effort chooses
// the seeds.
func TestSimulation(t *testing.T) {
	from, n := effort.Seeds(t, 250)
	tried := attack.Begin(t, attack.Sim)
	groups := 0
	for seed := from; seed < from+n; seed++ {
		tried.Add(1)
		var last *world
		if err := simulate(t, seed, 60, func(w *world) { last = w }); err != nil {
			t.Fatalf("%v\nreplay it: %s=%d go test ./agent -run TestSimulation", err, effort.SeedEnv, seed)
		}
		if t.Failed() {
			t.FailNow()
		}
		groups += last.groups
	}
	if n >= 10 && groups < int(n) {
		t.Fatalf("%d events of %d runs have shared commits: want several a run", groups, n)
	}
}

// The simulation must notice a lease that vanishes.
func TestTheSimulationFindsABrokenAgent(t *testing.T) {
	found := 0
	for seed := range uint64(10) {
		steal := func(w *world) {
			for k := range w.told {
				_, _ = w.a.ledger.Release(context.Background(), ledger.Selector{Key: k})
				return
			}
		}
		if simulate(t, seed, 60, steal) != nil {
			found++
		}
	}
	if found < 7 { // at times there is nothing to steal, or the victim is deleted before it is missed
		t.Fatalf("it found %d of 10", found)
	}
}

// world holds what outlives an agent: disk, cluster store, clocks, the southbound,
// and the answers to clients.
type world struct {
	t      *testing.T
	rnd    *rand.Rand
	disk   *journal.Memory
	local  localDisk
	store  kvdb.Store
	fault  atomic.Int32 // of the commits to come
	broken atomic.Bool  // the process is dead: nothing reaches the disk
	wall   atomic.Int64 // ns that the wall clock is off
	begun  time.Time
	booted time.Time
	boot   int
	dir    string
	bad    saboteur
	sink   controller.MemorySink
	away   atomic.Int32 // southbound commits that are still to fail

	a      *assembly
	api    http.Handler
	stop   context.CancelFunc
	ended  chan error
	conf   string
	estate *simEstate            // whose blocks the node lives on; nil: its own
	told   map[ledger.Key]string // address that the key was told it has
	unsure map[ledger.Key]bool   // a request has failed, or its caller has gone
	log    []string
	groups int // events that have shared a commit

	last       controller.EventHandler // behind all others; nil: bad
	committers []controller.Committer  // behind those of the agent
}

// saboteur is the last handler: it fails or panics when it is told to.
type saboteur struct{ mood atomic.Int32 }

func (s *saboteur) String() string                     { return "saboteur" }
func (s *saboteur) HandlesEvent(controller.Event) bool { return true }
func (s *saboteur) Revert(controller.Event) error      { return nil }

func (s *saboteur) act() error {
	switch s.mood.Swap(0) {
	case 1:
		return errors.New("sabotage")
	case 2:
		panic("sabotage")
	case 3:
		return controller.NewAbortEventError(errors.New("sabotage"))
	}
	return nil
}

func (s *saboteur) Update(ev controller.Event, _ controller.UpdateOperations) (string, error) {
	if p, ok := ev.(*simPause); ok {
		<-p.gate
		return "", nil
	}
	return "", s.act()
}

func (s *saboteur) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return s.act()
}

// keptStore is a store that outlives the agents.
type keptStore struct{ kvdb.Store }

func (keptStore) Close() error { return nil }

// localDisk holds what a node remembers of itself.
type localDisk struct{ values sync.Map }

func (d *localDisk) Local(name string) (string, error) {
	v, _ := d.values.Load(name)
	s, _ := v.(string)
	return s, nil
}

func (d *localDisk) SetLocal(name, value string) error {
	d.values.Store(name, value)
	return nil
}

// diskOf is the journal of one process: when it dies nothing more is written.
type diskOf struct {
	w    *world
	dead *atomic.Bool
}

func (d diskOf) Load(ctx context.Context, f func(kvdb.KeyValue) error) error {
	return d.w.disk.Load(ctx, f)
}

func (d diskOf) Commit(ctx context.Context, ops []kvdb.Op) error {
	if d.dead.Load() {
		return errors.New("the process is dead")
	}
	f := &journal.Faulty{Journal: d.w.disk, Lag: 3 * time.Second, Plan: func(int64) journal.Fault {
		return journal.Fault(d.w.fault.Swap(0))
	}}
	return f.Commit(ctx, ops)
}

func simulate(t *testing.T, seed uint64, steps int, sabotage func(*world)) (err error) {
	return simulateOn(t, seed, steps, nil, sabotage)
}

// simulateOn runs a world, on the blocks of an estate if there is one.
func simulateOn(t *testing.T, seed uint64, steps int, estate *simEstate, sabotage func(*world)) (err error) {
	dir, derr := os.MkdirTemp("", "sim")
	if derr != nil {
		t.Fatal(derr)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t:      t,
			rnd:    rand.New(rand.NewPCG(seed, 42)),
			disk:   journal.NewMemory(),
			store:  keptStore{mem.New()},
			dir:    dir,
			begun:  time.Now(),
			booted: time.Now().Add(-time.Hour),
			told:   map[ledger.Key]string{},
			unsure: map[ledger.Key]bool{},
			conf:   "ipamConfig:\n  podSubnetCIDR: 10.1.0.0/24\n  podSubnetOneNodePrefixLen: 28\n",
			estate: estate,
		}
		w.sink.Fault = w.southbound
		if estate != nil {
			estate.begin(w)
		}
		w.start()
		for step := 0; step < steps && err == nil; step++ {
			w.step()
			if sabotage != nil && step == steps/2 {
				sabotage(w)
			}
			if err = w.check(); err != nil {
				err = fmt.Errorf("seed %d, step %d: %w\n%s", seed, step, err, strings.Join(w.log, "\n"))
			}
		}
		w.end()
	})
	return err
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// start starts an agent on what is there.
// markRunDir makes what an agent makes in its run directory when it starts.
func markRunDir(dir string) error {
	lock, err := lockRunDir(dir, os.Geteuid())
	if err != nil {
		return err
	}
	return lock.Close()
}

func (w *world) start() {
	w.bad.mood.Store(0)
	w.fault.Store(0)
	w.away.Store(0)
	conf, _, err := contivconf.Parse([]byte(w.conf))
	if err != nil {
		w.t.Fatal(err)
	}
	boot := w.boot
	dead := &atomic.Bool{}
	booted := w.booted
	if err := markRunDir(w.dir); err != nil {
		w.t.Fatal(err)
	}
	a, err := assemble(context.Background(), Node{Name: "n", RunDir: w.dir}, conf, slog.New(slog.DiscardHandler), clock{
		now:    func() time.Time { return time.Now().Add(time.Duration(w.wall.Load())) },
		uptime: func() time.Duration { return time.Since(booted) },
		bootID: fmt.Sprint("boot-", boot),
	}, dependencies{
		store:    w.store,
		journal:  diskOf{w, dead},
		history:  w.disk,
		disk:     &w.local,
		sink:     &w.sink,
		instance: "i",
		session:  fmt.Sprint("session of ", time.Now().UnixNano()),
		random:   func() float64 { return 0.5 },
		handlers: []func(Plugins) []controller.EventHandler{
			func(Plugins) []controller.EventHandler {
				if w.last != nil {
					return []controller.EventHandler{&w.bad, w.last}
				}
				return []controller.EventHandler{&w.bad}
			},
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	a.loop.AddCommitters(w.committers...)
	ctx, cancel := context.WithCancel(context.Background())
	w.a, w.api, w.ended = a, a.restapi.Handler(), make(chan error, 1)
	w.stop = func() { dead.Store(w.broken.Load()); cancel() }
	go func() {
		w.ended <- a.serve(ctx, func(ctx context.Context) error {
			close(a.listening)
			<-ctx.Done()
			return nil
		})
	}()
	time.Sleep(time.Minute) // a first resync that failed has healed by now
	synctest.Wait()
	if !a.progress.recovered.Load() {
		w.t.Fatalf("the agent does not get ready: %v\n%s", a.ready(), strings.Join(w.log, "\n"))
	}
}

func (w *world) end() {
	w.fault.Store(0)
	w.stop()
	if err := <-w.ended; err != nil {
		w.t.Errorf("the agent ended with %v", err)
	}
	synctest.Wait()
}

func (w *world) key() ledger.Key {
	return ledger.Key{
		Network:     []string{"pods", "other"}[w.rnd.IntN(2)],
		ContainerID: fmt.Sprint("c", w.rnd.IntN(8)),
		IfName:      "eth0",
	}
}

// step is one random thing that happens.
func (w *world) step() {
	if w.estate != nil && w.rnd.IntN(2) == 0 {
		w.estate.step(w)
		synctest.Wait()
		return
	}
	k := w.key()
	switch n := w.rnd.IntN(100); {
	case n < 30:
		w.add(k)
	case n < 50:
		w.del(k)
	case n < 56:
		w.gc()
	case n < 62:
		w.leave(k)
	case n < 66:
		w.burst(k)
	case n < 70:
		w.crowd()
	case n < 78:
		f := journal.Fault(1 + w.rnd.IntN(3))
		w.say("the next commit: fault %d", f)
		w.fault.Store(int32(f))
	case n < 84:
		mood := int32(1 + w.rnd.IntN(3))
		w.say("sabotage %d of the next event", mood)
		w.bad.mood.Store(mood)
	case n < 87:
		w.breakSink()
	case n < 90:
		jump := time.Duration(w.rnd.IntN(2000)-1000) * time.Hour
		w.say("the clock jumps by %s", jump)
		w.wall.Add(int64(jump))
	case n < 94:
		d := time.Duration(w.rnd.IntN(120)) * time.Second
		w.say("%s pass", d)
		time.Sleep(d)
	case n < 98:
		w.restart(w.rnd.IntN(2) == 0)
	default:
		w.reboot()
	}
	synctest.Wait()
}

func (w *world) breakSink() {
	n := 1 + w.rnd.IntN(2)
	w.say("the next %d southbound commits fail", n)
	w.away.Store(int32(n))
}

// southbound fails as long as it is away.
func (w *world) southbound(controller.Transaction) error {
	if w.away.Add(-1) >= 0 {
		return errors.New("southbound is away")
	}
	return nil
}

// restart ends the agent, politely or not, and starts another. DELs that come
// in between wait for it.
func (w *world) restart(kill bool) {
	w.say("restart, killed: %v", kill)
	w.fault.Store(0)
	w.broken.Store(kill)
	w.stop()
	if err := <-w.ended; err != nil {
		w.t.Errorf("the agent ended with %v\n%s", err, strings.Join(w.log, "\n"))
	}
	w.broken.Store(false)
	for range w.rnd.IntN(3) {
		k := w.key()
		in := cni.Intent{Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
		if err := in.Write(cni.IntentDir(w.a.socket())); err != nil {
			w.t.Error(err)
		}
		w.say("DEL %s while the agent is away", k)
		w.deleted(k, 0)
	}
	w.start()
}

func (w *world) reboot() {
	w.say("reboot")
	w.fault.Store(0)
	w.broken.Store(true)
	w.stop()
	<-w.ended
	w.broken.Store(false)
	os.RemoveAll(cni.IntentDir(w.a.socket()))
	w.boot++
	w.booted = time.Now()
	clear(w.told)
	clear(w.unsure)
	w.start()
}

// check holds the agent to what clients were told.
func (w *world) check() error {
	findings, err := w.a.ledger.Check(context.Background())
	if err != nil || len(findings) > 0 {
		return fmt.Errorf("check: %v %w", findings, err)
	}
	held, seen := map[ledger.Key]string{}, map[string]ledger.Key{}
	for _, l := range w.a.ledger.Leases() {
		a := l.Addr.String()
		if other, twice := seen[a]; twice {
			return fmt.Errorf("%s is leased twice: %s and %s", a, other, l.Key)
		}
		seen[a] = l.Key
		if l.State == ledger.Held && l.Purpose == ledger.ForPod {
			held[l.Key] = a
		}
	}
	for k, a := range w.told {
		if held[k] != a {
			return fmt.Errorf("%s was told %s, it holds %q", k, a, held[k])
		}
	}
	for k, a := range held {
		if w.told[k] == "" && !w.unsure[k] {
			return fmt.Errorf("%s holds %s, which no client was told", k, a)
		}
	}
	if w.estate != nil {
		if err := w.estate.check(w); err != nil {
			return err
		}
	}
	return w.checkSink(held)
}

// checkSink compares the southbound with the ledger, where it is as it should be.
func (w *world) checkSink(held map[ledger.Key]string) error {
	if s := w.a.loop.Status(); !s.Healthy {
		return nil
	}
	dump, err := w.sink.Dump(context.Background())
	if err != nil {
		return err
	}
	var want, have []string
	for k := range held {
		want = append(want, "pod/"+k.String())
	}
	for k := range dump {
		if strings.HasPrefix(k, "pod/") {
			have = append(have, k)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		return fmt.Errorf("southbound has %v, the ledger %v", have, want)
	}
	return nil
}
