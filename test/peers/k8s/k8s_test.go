// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package k8s drives the allocators of Kubernetes: cidrset (node CIDRs, in
// kube-controller-manager) and the service bitmap (ipallocator.Range).
package k8s

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

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

func network(tb testing.TB, prefix string) *net.IPNet {
	_, n, err := net.ParseCIDR(prefix)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// serviceBitmap leaves out the first and the last address by itself.
func serviceBitmap(tb testing.TB, prefix string) workload.Pool[net.IP] {
	r, err := ipallocator.NewInMemory(network(tb, prefix))
	if err != nil {
		tb.Fatal(err)
	}
	return workload.Pool[net.IP]{Cap: r.Free(), Next: r.AllocateNext, Free: r.Release, Take: r.Allocate}
}

func BenchmarkServiceBitmap(b *testing.B) {
	b.Run("24", func(b *testing.B) {
		workload.Suite(b, func() workload.Pool[net.IP] { return serviceBitmap(b, "10.1.5.0/24") })
	})
	b.Run("16", func(b *testing.B) {
		workload.Suite(b, func() workload.Pool[net.IP] { return serviceBitmap(b, "10.1.0.0/16") })
	})
}

func BenchmarkServiceBitmapParallel(b *testing.B) {
	b.Run("50", func(b *testing.B) { workload.Parallel(b, serviceBitmap(b, "10.1.0.0/16"), .5) })
	b.Run("99", func(b *testing.B) { workload.Parallel(b, serviceBitmap(b, "10.1.0.0/16"), .99) })
}

func BenchmarkServiceBitmapMemory(b *testing.B) {
	b.Run("12", func(b *testing.B) {
		workload.Memory(b, func() workload.Pool[net.IP] { return serviceBitmap(b, "10.16.0.0/12") }, 1_000_000)
	})
}

func cidrSet(tb testing.TB, cluster string, node int) workload.Pool[*net.IPNet] {
	n := network(tb, cluster)
	s, err := cidrset.NewCIDRSet(n, node)
	if err != nil {
		tb.Fatal(err)
	}
	ones, _ := n.Mask.Size()
	return workload.Pool[*net.IPNet]{Cap: 1 << (node - ones), Next: s.AllocateNext, Free: s.Release, Take: s.Occupy}
}

func BenchmarkCIDRSet(b *testing.B) {
	for _, node := range []int{24, 27} {
		b.Run(fmt.Sprintf("8in%d", node), func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[*net.IPNet] { return cidrSet(b, "10.0.0.0/8", node) })
		})
	}
}
