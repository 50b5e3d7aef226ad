// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cidrset compares operator/blocks with Kubernetes' cidrset in one process and
// one run.
//
// Ours is behind a mutex, as in the operator; Kubernetes' has one inside. Ours records the
// owner of each block; Kubernetes' keeps no owners. What callers derive from a Node object
// first has rows of its own: the owner of its UID here, the network of its podCIDR there.
package cidrset

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset"
	netutils "k8s.io/utils/net"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// TestMain turns klog off, which would write to standard error.
func TestMain(m *testing.M) {
	fs := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(fs)
	for k, v := range map[string]string{"logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL"} {
		if err := fs.Set(k, v); err != nil {
			panic(err)
		}
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// shape is a range of which 65 536 blocks can be allocated.
type shape struct {
	name, prefix string
	bits         int
}

const capacity = 1 << 16

func shapes() []shape {
	return []shape{{"8in24", "10.0.0.0/8", 24}, {"48in64", "2001:db8::/48", 64}}
}

// huge returns a range that Kubernetes' refuses: it allows at most 16 bits.
func huge() shape { return shape{"32in64", "2001:db8::/32", 64} }

func kubernetes(tb testing.TB, s shape) workload.Pool[*net.IPNet] {
	_, n, err := net.ParseCIDR(s.prefix)
	if err != nil {
		tb.Fatal(err)
	}
	set, err := upstream.NewCIDRSet(n, s.bits)
	if err != nil {
		tb.Fatal(err)
	}
	return workload.Pool[*net.IPNet]{Cap: capacity, Next: set.AllocateNext, Free: set.Release, Take: set.Occupy}
}

// node is the owner that stands for a Node object, with its block.
type node struct {
	owner blocks.Owner
	block netip.Prefix
}

// locked holds a Set with its lock, and the nodes that have no block.
type locked struct {
	mu    sync.Mutex
	set   *blocks.Set
	nodes []node
	now   time.Time
}

func newLocked(tb testing.TB, s shape) *locked {
	b := &locked{set: blocks.New(blocks.Policy{}), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	p := netip.MustParsePrefix(s.prefix)
	if err := b.set.AddRange(blocks.Range{Prefix: p, Bits: s.bits}); err != nil {
		tb.Fatal(err)
	}
	for n := p.Bits() + 1; n <= s.bits-16; n++ { // all but the first 65 536 blocks are taken
		a := p.Addr().As16()
		a[(n-1)/8] |= 0x80 >> ((n - 1) % 8)
		b.set.Reserve(netip.PrefixFrom(netip.AddrFrom16(a), n))
	}
	for i := range capacity + 1 {
		b.nodes = append(b.nodes, node{owner: blocks.NewOwner(fmt.Sprintf("node-%d.example.org", i), uid(i))})
	}
	return b
}

func uid(i int) string { return fmt.Sprintf("3f2a7c1e-%04x-4d5e-8f6a-%012x", i*40503&0xffff, i) }

// pop returns a node without a block.
func (b *locked) pop() node {
	n := b.nodes[len(b.nodes)-1]
	b.nodes = b.nodes[:len(b.nodes)-1]
	return n
}

func (b *locked) pool() workload.Pool[node] {
	return workload.Pool[node]{Cap: capacity, Next: b.next, Free: b.free, Take: b.take}
}

func (b *locked) next() (node, error) {
	n := b.pop()
	b.mu.Lock()
	got, err := b.set.Allocate(n.owner, nil, b.now)
	b.mu.Unlock()
	if err != nil {
		b.nodes = append(b.nodes, n)
		return n, err
	}
	n.block = got[0]
	return n, nil
}

func (b *locked) free(n node) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = append(b.nodes, n)
	return b.set.Release(n.owner, b.now)
}

// take is followed by free of the same node, so that as many nodes as before are without
// a block. It does not go together with next.
func (b *locked) take(n node) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = b.nodes[:len(b.nodes)-1]
	return b.set.Occupy(n.owner, n.block, b.now)
}

func BenchmarkKubernetes(b *testing.B) {
	for _, s := range shapes() {
		b.Run(s.name, func(b *testing.B) { suite(b, func() workload.Pool[*net.IPNet] { return kubernetes(b, s) }) })
	}
}

func BenchmarkCadastre(b *testing.B) {
	for _, s := range append(shapes(), huge()) {
		b.Run(s.name, func(b *testing.B) { suite(b, func() workload.Pool[node] { return newLocked(b, s).pool() }) })
	}
}

// suite runs the workloads of node CIDRs.
func suite[T any](b *testing.B, mk func() workload.Pool[T]) {
	workload.Levels(b, mk)
	b.Run("full", func(b *testing.B) { workload.Full(b, mk()) })
	for _, l := range []struct {
		name     string
		fullness float64
	}{{"50", .5}, {"99", .99}} {
		b.Run("specific/"+l.name, func(b *testing.B) { workload.Specific(b, mk(), l.fullness) })
	}
}

// BenchmarkTheOwner measures what a caller of ours derives from a Node object, and
// BenchmarkTheNetwork what a caller of Kubernetes' does.
func BenchmarkTheOwner(b *testing.B) {
	text := uid(1)
	for b.Loop() {
		blocks.NewOwner("node-1.example.org", text)
	}
}

func BenchmarkTheNetwork(b *testing.B) {
	for b.Loop() {
		if _, _, err := netutils.ParseCIDRSloppy("10.0.1.0/24"); err != nil {
			b.Fatal(err)
		}
	}
}
