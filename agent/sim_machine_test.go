// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

var errSimFull = errors.New("no space left on device")

// simDisk is the state directory of a machine.
type simDisk struct {
	instance string
	journal  *journal.Memory
	local    *localDisk
	full     atomic.Bool

	mu       sync.Mutex // of the mirror
	mirror   map[string][]byte
	revision int64
}

func newSimDisk(instance string) *simDisk {
	return &simDisk{instance: instance, journal: journal.NewMemory(), local: &localDisk{}, mirror: map[string][]byte{}}
}

// clone is a copy of the disk, the instance with it.
func (d *simDisk) clone() *simDisk {
	c := newSimDisk(d.instance)
	var ops []kvdb.Op
	_ = d.journal.Load(context.Background(), func(x kvdb.KeyValue) error {
		ops = append(ops, kvdb.Put(x.Key, x.Value))
		return nil
	})
	_ = c.journal.Commit(context.Background(), ops)
	d.local.values.Range(func(k, v any) bool { c.local.values.Store(k, v); return true })
	d.mu.Lock()
	defer d.mu.Unlock()
	c.mirror, c.revision = maps.Clone(d.mirror), d.revision
	return c
}

// mirrored is a copy of the mirror.
func (d *simDisk) mirrored() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.mirror)
}

// access is one process's to the disk of its machine: what is dead writes nothing.
type access struct {
	disk *simDisk
	dead *atomic.Bool
}

func (x access) err() error {
	switch {
	case x.dead.Load():
		return errSimDead
	case x.disk.full.Load():
		return errSimFull
	}
	return nil
}

type journalOf struct{ access }

func (j journalOf) Load(ctx context.Context, f func(kvdb.KeyValue) error) error {
	return j.disk.journal.Load(ctx, f)
}

func (j journalOf) Commit(ctx context.Context, ops []kvdb.Op) error {
	if err := j.err(); err != nil {
		return err
	}
	return j.disk.journal.Commit(ctx, ops)
}

type localOf struct{ access }

func (l localOf) Local(name string) (string, error) { return l.disk.local.Local(name) }

func (l localOf) SetLocal(name, value string) error {
	if err := l.err(); err != nil {
		return err
	}
	return l.disk.local.SetLocal(name, value)
}

// mirrorOf implements kubestate.Mirror.
type mirrorOf struct{ access }

func (m mirrorOf) Load(context.Context) (kvs []kvdb.KeyValue, revision int64, err error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(m.disk.mirror)) {
		kvs = append(kvs, kvdb.KeyValue{Key: k, Value: m.disk.mirror[k]})
	}
	return kvs, m.disk.revision, nil
}

func (m mirrorOf) Replace(_ context.Context, kvs []kvdb.KeyValue, revision int64) error {
	return m.change(revision, func(values map[string][]byte) {
		clear(values)
		for _, x := range kvs {
			values[x.Key] = x.Value
		}
	})
}

func (m mirrorOf) Apply(_ context.Context, events []kvdb.Event, revision int64) error {
	return m.change(revision, func(values map[string][]byte) {
		for _, ev := range events {
			if ev.Deleted {
				delete(values, ev.Key)
			} else {
				values[ev.Key] = ev.Value
			}
		}
	})
}

func (m mirrorOf) change(revision int64, f func(map[string][]byte)) error {
	if err := m.err(); err != nil {
		return err
	}
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	f(m.disk.mirror)
	m.disk.revision = revision
	return nil
}

// machine is a node of the cluster: what outlives the processes on it.
type machine struct {
	c      *simCluster
	label  string // in the story
	name   string // as Kubernetes has it
	number int
	disk   *simDisk
	net    *simNet
	sink   *controller.MemorySink
	wall   atomic.Int64 // by how many ns its clock is wrong
	booted time.Time
	boots  int
	dir    string
	rnd    *rand.Rand
	rndMu  sync.Mutex

	told   map[ledger.Key]string // address that the key was told it has
	unsure map[ledger.Key]bool   // a request has failed

	stop  context.CancelFunc // nil: no agent is to run
	ended chan struct{}
	dead  *atomic.Bool // what runs, or ran last, is dead
	calm  time.Time    // since when nothing has disturbed it
	heard time.Time    // when the store last answered, by the machine's clock

	answers atomic.Int64 // of the store, so far
	doubt   bool         // its node ID was in doubt when it was looked at last
	doubtAt int64        // the answers until then
	wasFull bool         // its disk was full at some time

	mu       sync.Mutex
	process  *process
	failure  error        // of the last process
	launched atomic.Int64 // processes so far
}

// process is one run of an agent.
type process struct {
	a     *assembly
	api   http.Handler
	begun time.Time
	id    uint32            // the first that it had
	pools map[string]uint64 // generations that it knew
}

func (m *machine) now() time.Time { return time.Now().Add(time.Duration(m.wall.Load())) }

func (m *machine) random() float64 {
	m.rndMu.Lock()
	defer m.rndMu.Unlock()
	return m.rnd.Float64()
}

// running is the process there is, nil for none.
func (m *machine) running() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// disturbed notes that something has happened to the machine.
func (m *machine) disturbed() { m.calm = time.Now() }

// start sees from now on to it that an agent runs.
func (m *machine) start() {
	if m.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.stop, m.ended, m.dead = cancel, make(chan struct{}), &atomic.Bool{}
	m.disturbed()
	go m.supervise(ctx)
}

// halt ends the agent, politely or not.
func (m *machine) halt(kill bool) {
	if m.stop == nil {
		return
	}
	m.dead.Store(kill)
	m.stop()
	<-m.ended
	m.stop = nil
	synctest.Wait()
}

// The pause before an agent that failed is started again.
const (
	firstPause = 10 * time.Second
	lastPause  = 5 * time.Minute
)

// supervise runs one agent after the other until ctx ends.
func (m *machine) supervise(ctx context.Context) {
	defer close(m.ended)
	pause := firstPause
	for ctx.Err() == nil {
		begun := time.Now()
		err := m.run(ctx)
		if ctx.Err() != nil {
			if err != nil && !m.dead.Load() && !errors.Is(err, controller.ErrFatal) { // which may come at this moment
				m.c.fail("agent %s ended with %v", m.label, err)
			}
			return
		}
		m.c.say("   (agent %s ends: %v)", m.label, err)
		if time.Since(begun) > lastPause {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, lastPause)
	}
}

// run is one run of the agent.
func (m *machine) run(ctx context.Context) error {
	p, err := m.assemble()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.process = p
	m.mu.Unlock()
	err = p.a.serve(ctx, func(ctx context.Context) error {
		close(p.a.listening)
		<-ctx.Done()
		return nil
	})
	m.mu.Lock()
	m.process, m.failure = nil, err
	m.mu.Unlock()
	return err
}

func (m *machine) assemble() (*process, error) {
	conf, _, err := contivconf.Parse([]byte(m.c.conf))
	if err != nil {
		return nil, err
	}
	m.launched.Add(1)
	dead, boot, booted := m.dead, fmt.Sprint("boot ", m.label, m.boots), m.booted
	link := &simLink{store: m.c.store, net: m.net, dead: dead, listed: map[int64]int{}, heard: func() {
		m.answers.Add(1)
		m.mu.Lock()
		m.heard = m.now()
		m.mu.Unlock()
	}}
	x := access{m.disk, dead}
	if err := markRunDir(m.dir); err != nil {
		return nil, err
	}
	a, err := assemble(context.Background(), Node{Name: m.name, RunDir: m.dir}, conf, slog.New(slog.DiscardHandler), clock{
		now: m.now, uptime: func() time.Duration { return time.Since(booted) }, bootID: boot,
	}, dependencies{
		store: link, mirror: mirrorOf{x}, journal: journalOf{x}, history: m.disk.journal, disk: localOf{x}, sink: m.sink, instance: m.disk.instance,
		session: m.session(), machine: nodesync.Machine{ProductUUID: "product " + m.label, BootID: boot}, random: m.random,
	})
	if err != nil {
		return nil, err
	}
	return &process{a: a, api: a.restapi.Handler(), begun: time.Now(), pools: map[string]uint64{}}, nil
}

// serving is the process where it answers requests.
func (m *machine) serving() *process {
	if p := m.running(); p != nil && p.a.progress.answering.Load() {
		return p
	}
	return nil
}

// ask sends a request through the API; code 0 is success.
func (p *process) ask(command string, k ledger.Key, previous ...string) (address string, code uint, msg string) {
	req := request(command, k)
	if req.Previous = previous; k.Network != "pods" {
		req.Pool = k.Network
	}
	reply, err := cniclient.Ask(context.Background(), cniclient.Through(p.api), req)
	if refusal, ok := errors.AsType[*cni.Error](err); ok {
		return "", refusal.Code, refusal.Msg
	}
	if err != nil {
		return "", 999, err.Error()
	}
	if len(reply.IPs) > 0 {
		address = reply.IPs[0].Address
	}
	return address, 0, ""
}

// add asks for an address and holds the agent to what it has said.
func (m *machine) add(k ledger.Key) {
	p := m.serving()
	if p == nil {
		return
	}
	had, doubt, fresh := m.told[k], p.a.claimers.IDs.Problem(), len(p.a.ledger.ByKey(k)) == 0
	full := m.disk.full.Load()
	address, code, msg := p.ask("ADD", k)
	m.c.say("%s: ADD %s -> %s", m.label, k, cmpText(address, msg))
	switch {
	case code != 0 && had != "" && !full && p == m.running():
		m.c.fail("%s has told %s that it has %s, and does not tell it again: %s", m.label, k, had, msg)
	case code != 0 && had == "":
		m.unsure[k] = true
	case code != 0:
	case had != "" && had != address:
		m.c.fail("%s has told %s that it has %s, and now %s", m.label, k, had, address)
	case had == "" && fresh && doubt != "" && p.a.claimers.IDs.Problem() != "":
		m.c.fail("%s allocates %s to %s although its node ID is in doubt: %s", m.label, address, k, doubt)
	}
	if code == 0 {
		m.told[k] = address
		delete(m.unsure, k)
	}
}

// del ends an attachment, with or without an agent.
func (m *machine) del(k ledger.Key) {
	p := m.serving()
	if p == nil {
		in := cni.Intent{Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
		if err := in.Write(cni.IntentDir(filepath.Join(m.dir, socketName))); err != nil {
			m.c.t.Error(err)
		}
		m.c.say("%s: DEL %s waits for the agent", m.label, k)
		delete(m.told, k)
		m.unsure[k] = true
		return
	}
	had, full := m.told[k], m.disk.full.Load()
	_, code, msg := p.ask("DEL", k)
	m.c.say("%s: DEL %s -> %s", m.label, k, cmpText("done", msg))
	if code != 0 && had != "" && !full && p == m.running() {
		m.c.fail("%s does not take %s back from %s: %s", m.label, had, k, msg)
	}
	delete(m.told, k)
	if m.unsure[k] = code != 0; code == 0 {
		delete(m.unsure, k)
	}
}

// check asks whether an attachment is as it was told.
func (m *machine) check(k ledger.Key) {
	p, had := m.serving(), m.told[k]
	if p == nil || had == "" {
		return
	}
	if _, code, msg := p.ask("CHECK", k, had); code != 0 {
		m.c.fail("%s has told %s that it has %s, and CHECK says: %s", m.label, k, had, msg)
	}
}

func cmpText(good, bad string) string {
	if bad != "" {
		return "refused: " + bad
	}
	return good
}

// session is that of the last run on this machine.
func (m *machine) session() string {
	return fmt.Sprint("session ", m.label, " ", m.launched.Load())
}

// ran reports whether a session is of a run on this machine.
func (m *machine) ran(session string) bool {
	return strings.HasPrefix(session, "session "+m.label+" ")
}

// remembers is the node ID that is on the disk.
func (m *machine) remembers() uint32 {
	text, _ := m.disk.local.Local("node-id")
	var r struct {
		ID uint32 `json:"id"`
	}
	_ = json.Unmarshal([]byte(text), &r)
	return r.ID
}

func (m *machine) lastFailure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}
