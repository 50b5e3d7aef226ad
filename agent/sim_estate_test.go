// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// TestSimulationOnANetResourceSet is the simulation of a node whose blocks are
// given and taken by an operator, while disks and stores fail and agents are
// killed. A released address belongs to another node: nothing of it may be held, or
// have been held too shortly before.
func TestSimulationOnANetResourceSet(t *testing.T) {
	n, taken := effort.Times(t, 80), 0
	tried := attack.Begin(t, attack.BlockSim)
	for seed := range uint64(n) {
		tried.Add(1)
		estate := newSimEstate()
		if err := simulateOn(t, seed, 80, estate, nil); err != nil {
			t.Fatal(err)
		}
		taken += estate.count
	}
	if taken < n {
		t.Fatalf("the operator took %d blocks back in %d worlds: nothing was tried", taken, n)
	}
}

// An operator that does not wait for the answer must be noticed.
func TestTheSimulationFindsAHastyOperator(t *testing.T) {
	found := 0
	for seed := range uint64(10) {
		estate := newSimEstate()
		estate.hasty = true
		if simulateOn(t, seed, 80, estate, nil) != nil {
			found++
		}
	}
	if found < 5 {
		t.Fatalf("it found %d of 10", found)
	}
}

// simEstate is an operator and its provider. It acts on what it has seen last.
type simEstate struct {
	hasty bool
	seen  *kv.NetResourceSet // nil: nothing yet
	at    int64              // its revision
	taken map[string]bool    // by the provider: they are others' now
	count int                // blocks that were taken
}

func newSimEstate() *simEstate { return &simEstate{taken: map[string]bool{}} }

// blocks are those that the operator gives: two that have a gateway, two that
// have none.
func (*simEstate) blocks() []string {
	return []string{"10.9.0.0/29", "10.9.0.8/29", "10.9.0.16/30", "10.9.0.20"}
}

const simSet = "netresourceset of the node"

// begin makes the world one of NetResourceSets.
func (e *simEstate) begin(w *world) {
	w.conf = "cadastre: {podBlocks: netresource, coolDown: 30s, kvdb: {type: kubernetes}, nodeIDs: {quarantine: 0s}, controller: {remoteDBProbingInterval: 1s}}"
	w.store = laggedStore{w.store, w.rnd.Uint64()}
	e.put(w, kv.NodeKey("n"), &kv.Node{Name: "n", Uid: "u"}, nil)
}

func (e *simEstate) put(w *world, key string, m proto.Message, conds []kvdb.Cond) bool {
	value, err := proto.Marshal(m)
	if err != nil {
		w.t.Error(err)
	}
	_, err = w.store.Txn(context.Background(), conds, []kvdb.Op{kvdb.Put(key, value)})
	return err == nil
}

// step is one thing that the operator does.
func (e *simEstate) step(w *world) {
	switch n := w.rnd.IntN(20); {
	case n < 6:
		e.look(w)
	case n < 7 && w.rnd.IntN(4) == 0:
		w.say("%s: it is deleted", simSet)
		_, _ = w.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Delete(kv.NetResourceSetKey("n"))})
		e.seen = nil
	case n < 9:
		d := time.Duration(w.rnd.IntN(60)) * time.Second
		w.say("%s pass", d)
		elapse(d)
	default:
		e.operate(w)
	}
}

// look reads the object. What a new one does not claim is not the node's any more.
func (e *simEstate) look(w *world) {
	x, found, err := w.store.Get(context.Background(), kv.NetResourceSetKey("n"))
	if err != nil || !found {
		return
	}
	m := &kv.NetResourceSet{}
	if err := proto.Unmarshal(x.Value, m); err != nil {
		w.t.Error(err)
	}
	if e.seen == nil {
		for _, key := range e.blocks() {
			if e.taken[key] = m.Pool[key] == nil; e.taken[key] {
				e.count++
			}
		}
	}
	e.seen, e.at = m, x.ModRevision
}

// operate does one thing about one block, as it was seen last.
func (e *simEstate) operate(w *world) {
	if e.seen == nil {
		return
	}
	m := proto.Clone(e.seen).(*kv.NetResourceSet)
	key := e.blocks()[w.rnd.IntN(len(e.blocks()))]
	entry := handshake.State(m.Releases[key])
	want := handshake.Want{Excess: w.rnd.IntN(2) == 0, Needed: w.rnd.IntN(4) == 0, Gone: e.taken[key]}
	next := handshake.Decide(entry, want)
	if e.hasty && entry != handshake.Released {
		next = handshake.Released
	}
	if m.Releases == nil {
		m.Releases = map[string]string{}
	}
	if m.Pool == nil {
		m.Pool = map[string]*kv.NetResource{}
	}
	switch {
	case m.Pool[key] == nil && entry == handshake.None:
		m.Pool[key] = &kv.NetResource{}
	case handshake.Call(entry, want): // which the store has as released
		w.say("%s: the provider takes %s back", simSet, key)
		e.taken[key] = true
		e.count++
		return
	case entry == handshake.Released && e.taken[key]:
		delete(m.Pool, key)
	case next == handshake.None:
		delete(m.Releases, key)
	default:
		m.Releases[key] = string(next)
	}
	ok := e.put(w, kv.NetResourceSetKey("n"), m, []kvdb.Cond{kvdb.AtRevision(kv.NetResourceSetKey("n"), e.at)})
	w.say("%s: pool %v, releases %v, written: %v", simSet, sortedKeys(m.Pool), m.Releases, ok)
	if ok && m.Pool[key] != nil && e.seen.Pool[key] == nil {
		delete(e.taken, key) // it is given
	}
	if ok {
		e.look(w)
	}
}

func sortedKeys(m map[string]*kv.NetResource) string {
	var all []string
	for _, key := range newSimEstate().blocks() {
		if m[key] != nil {
			all = append(all, key)
		}
	}
	return strings.Join(all, " ")
}

// check finds what is held of what was taken.
func (e *simEstate) check(w *world) error {
	for _, l := range w.a.ledger.Leases() {
		if l.Pool != ipam.PodPool || l.Purpose != ledger.ForPod {
			continue
		}
		for key := range e.taken {
			if p := simBlock(key); e.taken[key] && p.Contains(l.Addr) {
				return fmt.Errorf("%s of %s is %s for %s, and the provider has taken it back", l.Addr, key, l.State, l.Key)
			}
		}
	}
	return nil
}

func simBlock(key string) netip.Prefix {
	if p, err := netip.ParsePrefix(key); err == nil {
		return p
	}
	return netip.PrefixFrom(netip.MustParseAddr(key), 32)
}

// laggedStore tells late what has changed, each time by up to half a minute.
type laggedStore struct {
	kvdb.Store
	seed uint64
}

// Watch implements kvdb.Store.
func (s laggedStore) Watch(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
	inner, err := s.Store.Watch(ctx, prefix, from)
	if err != nil {
		return nil, err
	}
	w := &laggedWatch{inner, make(chan []kvdb.Event), make(chan struct{}), make(chan struct{})}
	go w.run(rand.New(rand.NewPCG(s.seed, uint64(from))))
	return w, nil
}

type laggedWatch struct {
	kvdb.Watcher
	events      chan []kvdb.Event
	stop, ended chan struct{}
}

func (w *laggedWatch) run(rnd *rand.Rand) {
	defer close(w.ended)
	defer close(w.events)
	for batch := range w.Watcher.Events() {
		lag := time.Duration(0)
		if rnd.IntN(2) == 0 {
			lag = time.Duration(rnd.IntN(30_000)) * time.Millisecond
		}
		select {
		case <-time.After(lag):
		case <-w.stop:
			return
		}
		select {
		case w.events <- batch:
		case <-w.stop:
			return
		}
	}
}

// Events implements kvdb.Watcher.
func (w *laggedWatch) Events() <-chan []kvdb.Event { return w.events }

// Close implements kvdb.Watcher.
func (w *laggedWatch) Close() {
	close(w.stop)
	w.Watcher.Close()
	<-w.ended
}
