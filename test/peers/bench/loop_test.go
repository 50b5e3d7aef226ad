// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// BenchmarkPod is an ADD and a DEL of a pod through the loop and its plugins,
// as a request that came in over the socket. It also measures the same two
// steps on the ledger directly. commit-ns is the part that waited for the disk.
func BenchmarkPod(b *testing.B) {
	journals := []struct {
		name string
		open func(testing.TB) ledger.Journal
	}{{"null", func(testing.TB) ledger.Journal { return ledger.NullJournal{} }}, {"disk", onDisk}}
	for _, j := range journals {
		b.Run("ledger/"+j.name, func(b *testing.B) { alone(b, newNode(b, j.open(b)), onLedger) })
		b.Run("loop/"+j.name, func(b *testing.B) { alone(b, newNode(b, j.open(b)), throughLoop) })
	}
	b.Run("ledger-100/disk", func(b *testing.B) { together(b, newNode(b, onDisk(b)), 100, onLedger) })
	b.Run("loop-100/disk", func(b *testing.B) { together(b, newNode(b, onDisk(b)), 100, throughLoop) })
}

// pair adds and deletes the i-th pod.
type pair func(ctx context.Context, n *node, i int64) error

func containerID(i int64) string { return fmt.Sprintf("%064x", i) }

func throughLoop(ctx context.Context, n *node, i int64) error {
	req := cni.Request{
		Command: "ADD", Network: "cadastre", ContainerID: containerID(i), IfName: "eth0", Netns: "/run/netns/bench",
		Pod: cni.Pod{Namespace: "default", Name: "web-0", UID: "8a1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"},
	}
	if _, err := n.pods.Serve(ctx, req); err != nil {
		return err
	}
	req.Command = "DEL"
	_, err := n.pods.Serve(ctx, req)
	return err
}

func onLedger(ctx context.Context, n *node, i int64) error {
	key := ledger.Key{Network: "cadastre", ContainerID: containerID(i), IfName: "eth0"}
	pod := ledger.Pod{Namespace: "default", Name: "web-0", UID: "8a1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"}
	if _, _, err := n.ledger.Claim(ctx, ledger.Request{Pool: "default", Key: key, Pod: pod}); err != nil {
		return err
	}
	_, err := n.ledger.Release(ctx, ledger.Selector{Key: key})
	return err
}

func alone(b *testing.B, n *node, do pair) {
	ctx, before := context.Background(), n.committed.Load()
	i := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		i++
		if err := do(ctx, n, i); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n.committed.Load()-before)/float64(i), "commit-ns")
}

// together is a number of callers at once: ns/op is the elapsed time over all pairs.
func together(b *testing.B, n *node, callers int, do pair) {
	ctx := context.Background()
	var pairs atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for i := pairs.Add(1); i <= int64(b.N); i = pairs.Add(1) {
				if err := do(ctx, n, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkResync is an ADD that waits for a resync of a node with many leases: add-ms.
func BenchmarkResync(b *testing.B) {
	for _, leases := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(leases), func(b *testing.B) {
			ctx := context.Background()
			n := newNodeWith(b, ledger.NullJournal{}, largeConf)
			claimMany(b, n, leases)
			resync := func() <-chan error {
				done := make(chan error, 1)
				if err := n.loop.PushEvent(&controller.DBResync{OnDone: func(err error) { done <- err }}); err != nil {
					b.Fatal(err)
				}
				return done
			}
			if err := <-resync(); err != nil {
				b.Fatal(err)
			}
			i := int64(0)
			for b.Loop() {
				i++
				done := resync()
				if err := throughLoop(ctx, n, i); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(i), "add-ms")
		})
	}
}

// claimMany claims the addresses of pods that no benchmark uses.
func claimMany(b *testing.B, n *node, count int) {
	b.Helper()
	st := n.ledger.Begin()
	for i := range count {
		_, _, err := st.Claim(ledger.Request{
			Pool: "default",
			Key:  ledger.Key{Network: "cadastre", ContainerID: containerID(1<<40 + int64(i)), IfName: "eth0"},
			Pod:  ledger.Pod{Namespace: "default", Name: fmt.Sprint("pod-", i)},
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Commit(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// largeConf gives each node a subnet for 131 072 pods.
const largeConf = `
ipamConfig:
  podSubnetCIDR: 10.0.0.0/8
  podSubnetOneNodePrefixLen: 15
  vppHostSubnetCIDR: 172.16.0.0/12
  vppHostSubnetOneNodePrefixLen: 28
  nodeInterconnectCIDR: 100.64.0.0/16
  vxlanCIDR: 100.65.0.0/16
  serviceCIDR: 198.18.0.0/15
cadastre: {coolDown: 0s}
`
