// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// node is the plugins of an agent around their loop, without its sockets.
type node struct {
	pods      *podmanager.PodManager
	loop      *controller.Controller
	ledger    *ledger.Ledger
	committed *atomic.Int64 // ns spent in the journal
}

type label string

func (l label) GetAgentLabel() string { return string(l) }

// newNode starts a node. The pods' addresses have no cool-down, as in every row
// beside peers.
func newNode(tb testing.TB, j ledger.Journal) *node {
	return newNodeWith(tb, j, "cadastre: {coolDown: 0s}")
}

func newNodeWith(tb testing.TB, j ledger.Journal, text string) *node {
	tb.Helper()
	conf, _, err := contivconf.Parse([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	n := &node{committed: &atomic.Int64{}}
	j = timed{j, n.committed}
	if n.ledger, err = ledger.Open(context.Background(), j, ledger.Options{BootID: "bench"}); err != nil {
		tb.Fatal(err)
	}
	store := mem.New()
	log := controller.PluginDeps{Log: slog.New(slog.DiscardHandler)}
	stage, late := n.ledger.Begin(), &lateLoop{}
	claimer, err := nodesync.NewIDClaimer(nodesync.IDClaimerDeps{
		Log: log.Log, Store: store, Disk: forgetful{}, EventLoop: late, Refresh: time.Minute, Expire: 24 * time.Hour, Now: time.Now,
		Identity: nodesync.Identity{Name: "bench", Instance: "bench", Session: "bench", Limit: func([]*kv.Pool) uint32 { return 255 }, Fresh: time.Minute},
		Random:   func() float64 { return 0.5 }, Leases: noLeases{},
	})
	if err == nil {
		err = claimer.Confirm(context.Background())
	}
	if err != nil {
		tb.Fatal(err)
	}
	sync := nodesync.NewPlugin(nodesync.Deps{PluginDeps: log, ServiceLabel: label("bench"), IDClaimer: claimer})
	n.pods = podmanager.NewPlugin(podmanager.Deps{PluginDeps: log, EventLoop: late, Ledger: n.ledger, IntentDir: filepath.Join(runDir(tb), "del")})
	addresses := ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		*d = ipam.Deps{
			PluginDeps: controller.PluginDeps{Name: "ipam", Log: log.Log}, NodeSync: sync, ContivConf: contivconf.NewPlugin(conf),
			ServiceLabel: label("bench"), EventLoop: late, PodManager: n.pods, Ledger: n.ledger, Stage: stage,
		}
	}))
	routes := ipnet.NewPlugin(ipnet.Deps{PluginDeps: log, NodeSync: sync, IPAM: addresses, Ledger: n.ledger})
	late.Controller = controller.New(controller.DefaultConfig(), controller.Deps{
		Handlers:   []controller.EventHandler{sync, n.pods, addresses, routes},
		Committers: []controller.Committer{stage, sync},
	})
	n.loop = late.Controller
	run(tb, n.loop, store)
	return n
}

// forgetful is a node's disk that remembers nothing.
type forgetful struct{}

func (forgetful) Local(string) (string, error)  { return "", nil }
func (forgetful) SetLocal(string, string) error { return nil }

// lateLoop is a loop that is made after the plugins that push to it.
type lateLoop struct{ *controller.Controller }

// run starts the loop and waits for its first resync.
func run(tb testing.TB, loop *controller.Controller, store *mem.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	ended, resynced := make(chan error, 1), make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	if err := loop.PushEvent(&controller.DBResync{OnDone: func(err error) { resynced <- err }}); err != nil {
		tb.Fatal(err)
	}
	if err := <-resynced; err != nil {
		tb.Fatal(err)
	}
}

// timed sums up how long commits take.
type timed struct {
	ledger.Journal
	spent *atomic.Int64
}

// Commit commits.
func (j timed) Commit(ctx context.Context, ops []kvdb.Op) error {
	began := time.Now()
	defer func() { j.spent.Add(int64(time.Since(began))) }()
	return j.Journal.Commit(ctx, ops)
}

// onDisk is a journal as the agent has it.
func onDisk(tb testing.TB) ledger.Journal {
	tb.Helper()
	dir := tempDir(tb)
	f, err := bolt.OpenFile(filepath.Join(dir, "cadastre.db"), bolt.FileOptions{Notes: []string{filepath.Join(runDir(tb), "db.note"), filepath.Join(dir, "cadastre.db.note")}, BootID: "bench"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f.Journal()
}

// tempDir is on the disk of DIR, or in the temporary directory where that is not set.
func tempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp(os.Getenv("DIR"), "cadastre-bench")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// runDir stands for the agent's run directory, which is in memory (/run).
func runDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cadastre-bench")
	if err != nil {
		return tempDir(tb)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// noLeases implements nodesync.Leases of a node without any.
type noLeases struct{}

func (noLeases) InUse() bool    { return false }
func (noLeases) Suspend(string) {}
