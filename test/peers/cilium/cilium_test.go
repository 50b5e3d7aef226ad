// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cilium drives the allocators of Cilium 1.20: ipallocator (service and
// pod addresses, a bit each) and cidralloc (node CIDRs of the cluster pool).
package cilium

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/cilium/operator/pkg/ipam/allocator/clusterpool/cidralloc"
	"github.com/cilium/cilium/pkg/ipam/service/ipallocator"

	"github.com/cadastre/cadastre/test/peers/workload"
)

// ipAllocator leaves out the first and the last address by itself.
func ipAllocator(prefix string) workload.Pool[netip.Addr] {
	r := ipallocator.NewCIDRRange(netip.MustParsePrefix(prefix))
	return workload.Pool[netip.Addr]{
		Cap: r.Free(), Next: r.AllocateNext, Take: r.Allocate,
		Free: func(a netip.Addr) error { r.Release(a); return nil },
	}
}

func BenchmarkIPAllocator(b *testing.B) {
	b.Run("24", func(b *testing.B) {
		workload.Suite(b, func() workload.Pool[netip.Addr] { return ipAllocator("10.1.5.0/24") })
	})
	b.Run("16", func(b *testing.B) {
		workload.Suite(b, func() workload.Pool[netip.Addr] { return ipAllocator("10.1.0.0/16") })
	})
}

func BenchmarkIPAllocatorParallel(b *testing.B) {
	b.Run("50", func(b *testing.B) { workload.Parallel(b, ipAllocator("10.1.0.0/16"), .5) })
	b.Run("99", func(b *testing.B) { workload.Parallel(b, ipAllocator("10.1.0.0/16"), .99) })
}

func BenchmarkIPAllocatorMemory(b *testing.B) {
	b.Run("12", func(b *testing.B) {
		workload.Memory(b, func() workload.Pool[netip.Addr] { return ipAllocator("10.16.0.0/12") }, 1_000_000)
	})
}

func cidrAlloc(tb testing.TB, cluster string, node int) workload.Pool[netip.Prefix] {
	sets, err := cidralloc.NewCIDRSets(false, []string{cluster}, node)
	if err != nil {
		tb.Fatal(err)
	}
	return workload.Pool[netip.Prefix]{
		Cap:  1 << (node - netip.MustParsePrefix(cluster).Bits()),
		Next: sets[0].AllocateNext, Free: sets[0].Release, Take: sets[0].Occupy,
	}
}

func BenchmarkCIDRAlloc(b *testing.B) {
	for _, node := range []int{24, 27} {
		b.Run(fmt.Sprintf("8in%d", node), func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[netip.Prefix] { return cidrAlloc(b, "10.0.0.0/8", node) })
		})
	}
}
