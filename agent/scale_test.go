// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// TestScale runs many agents, each with its own loop, database and connection,
// against one etcd, and reports what that costs. SCALE is the number of agents.
func TestScale(t *testing.T) {
	effort.Need(t, "the measurement takes half a minute")
	n := 12
	if s := os.Getenv("SCALE"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	for _, jitter := range []bool{true, false} {
		t.Run(fmt.Sprint("jitter=", jitter), func(t *testing.T) { newFleet(t, n, jitter).measure() })
	}
}

const scaleConf = `
ipamConfig:
  podSubnetCIDR: 10.0.0.0/8
  podSubnetOneNodePrefixLen: 24
  vppHostSubnetCIDR: 172.16.0.0/12
  vppHostSubnetOneNodePrefixLen: 28
  nodeInterconnectCIDR: 100.64.0.0/16
  vxlanCIDR: 100.65.0.0/16
  serviceCIDR: 198.18.0.0/15
cadastre:
  kvdb: {type: etcd, endpoints: ["127.0.0.1:1"]}
  nodeIDs: {quarantine: 0s}
  controller: {startupResyncDeadline: 10m, eventTimeout: 10m}
`

// fleet is many agents.
type fleet struct {
	t      *testing.T
	g      Gomega
	n      int
	jitter bool
	server *etcdtest.Server
	agents []*assembly

	mu    sync.Mutex
	ops   map[string]int
	peaks map[int64]int // requests by tenth of a second
}

func newFleet(t *testing.T, n int, jitter bool) *fleet {
	return &fleet{t: t, g: NewWithT(t), n: n, jitter: jitter, server: etcdtest.Start(t), ops: map[string]int{}, peaks: map[int64]int{}}
}

func (f *fleet) observe(op string, _ time.Duration, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops[op]++
	f.peaks[time.Now().UnixMilli()/100]++
}

// count is the requests since the last count, by kind, and the most in a second.
func (f *fleet) count() (ops map[string]int, peak int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := range f.peaks {
		sum := 0
		for i := range int64(10) {
			sum += f.peaks[at+i]
		}
		peak = max(peak, sum)
	}
	ops, f.ops, f.peaks = f.ops, map[string]int{}, map[int64]int{}
	return ops, peak
}

// open opens the database of agent i; what it returns starts the agent, which
// ends with ctx.
func (f *fleet) open(ctx context.Context, i int, ended *sync.WaitGroup) (start func()) {
	conf, _, err := contivconf.Parse([]byte(scaleConf))
	f.g.Expect(err).NotTo(HaveOccurred())
	clock, err := newHostClock("/proc/sys/kernel/random/boot_id")
	f.g.Expect(err).NotTo(HaveOccurred())
	name, dir := fmt.Sprintf("node-%05d", i), f.t.TempDir()
	file, err := bolt.OpenFile(filepath.Join(dir, "cadastre.db"), bolt.FileOptions{})
	f.g.Expect(err).NotTo(HaveOccurred())
	store, err := etcd.Open(etcd.Config{Endpoints: []string{f.server.Endpoint()}, Prefix: "/cadastre/", RequestTimeout: time.Minute, Observe: f.observe})
	f.g.Expect(err).NotTo(HaveOccurred())
	jitter := rand.Float64 // which any goroutine may call
	if !f.jitter {
		jitter = func() float64 { return 0 }
	}
	p := dependencies{
		store: store, mirror: file.Mirror(), journal: file.Journal(), disk: file, sink: &controller.MemorySink{},
		instance: "instance of " + name, session: "session of " + name, random: rand.Float64, jitter: jitter,
	}
	a, err := assemble(ctx, Node{Name: name, RunDir: dir}, conf, slog.New(slog.DiscardHandler), clock, p)
	f.g.Expect(err).NotTo(HaveOccurred())
	f.agents[i] = a
	return func() {
		ended.Go(func() {
			if err := a.serve(ctx, func(ctx context.Context) error { close(a.listening); <-ctx.Done(); return nil }); err != nil {
				f.t.Errorf("%s: %v", name, err)
			}
			f.g.Expect(a.close()).To(Succeed())
			f.g.Expect(file.Close()).To(Succeed())
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// all waits until every agent is as wanted.
func (f *fleet) all(what string, is func(*assembly) bool) time.Duration {
	began := time.Now()
	f.g.Eventually(func() (left int) {
		for _, a := range f.agents {
			if !is(a) {
				left++
			}
		}
		return left
	}, 10*time.Minute, 20*time.Millisecond).Should(BeZero(), what)
	return time.Since(began)
}

func (f *fleet) measure() {
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	f.agents = make([]*assembly, f.n)
	before := heap()
	var starts []func()
	for i := range f.n {
		starts = append(starts, f.open(ctx, i, &ended))
	}
	began := time.Now()
	for _, start := range starts {
		start()
	}
	f.all("ready", func(a *assembly) bool { return a.ready() == nil })
	ready := time.Since(began)
	routed := f.all("knows the way to all others", func(a *assembly) bool {
		values, _ := a.sink.Dump(ctx)
		return len(values) == f.n // the node, and a route to each other
	})
	ops, peak := f.count()
	f.t.Logf("%d agents: all have an ID and a subnet after %s, and the way to all others %s later; %.1f kB of heap and stacks an agent",
		f.n, ready.Round(time.Millisecond), routed.Round(time.Millisecond), float64(heap()-before)/1024/float64(f.n))
	f.report("start", ops, peak)
	ids := map[string]bool{}
	for _, a := range f.agents {
		ids[a.ipam.PodSubnetThisNode().String()] = true
	}
	f.g.Expect(ids).To(HaveLen(f.n), "every node has a subnet of its own")

	f.g.Expect(f.server.Stop()).To(Succeed())
	f.all("disconnected", func(a *assembly) bool { return !a.source.Status().Connected })
	f.count()
	f.g.Expect(f.server.Restart()).To(Succeed())
	back := f.all("connected again", func(a *assembly) bool { return a.source.Status().Connected })
	ops, peak = f.count()
	f.t.Logf("after etcd has restarted all follow it again in %s", back.Round(time.Millisecond))
	f.report("restart of etcd", ops, peak)
	f.g.Expect(ops["list"]).To(BeNumerically("<=", 3*f.n), "no operation lists all nodes again and again")
}

func (f *fleet) report(what string, ops map[string]int, peak int) {
	per := func(op string) float64 { return float64(ops[op]) / float64(f.n) }
	f.t.Logf("%s, requests an agent: %.1f get, %.1f list, %.1f txn, %.1f watch, %.1f probe; at most %d in a second (%.1f an agent)",
		what, per("get"), per("list"), per("txn"), per("watch"), per("probe"), peak, float64(peak)/float64(f.n))
}
