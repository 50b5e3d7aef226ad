// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cni compares the IPAM plugins of CNI as a container runtime sees
// them: a process for each ADD and each DEL. It drives cadastre-cni with an
// agent, and host-local, CNI's own, which keeps a file for each address and
// never syncs it.
package cni

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

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

// containerID is as long as those of the runtimes.
func containerID(i int) string { return fmt.Sprintf("%064x", i) }

// otherID is of a container that no benchmark uses.
func otherID(i int) string { return containerID(1<<40 + i) }

const hostLocalRange = "10.1.0.0/16"

// hostLocalLeases writes n allocations of network bench into dir as host-local
// leaves them; to ask it for them would take time in the square of n.
func hostLocalLeases(tb testing.TB, dir string, n int) {
	tb.Helper()
	dir = filepath.Join(dir, "bench")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	last := ""
	for i := range n {
		host := i + 2 // 0 is the network, 1 the gateway
		last = net.IPv4(10, 1, byte(host>>8), byte(host)).String()
		if err := os.WriteFile(filepath.Join(dir, last), []byte(otherID(i)+disk.LineBreak+"eth0"), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	if last != "" {
		if err := os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkHostLocal is host-local's ADD and DEL without the process.
func BenchmarkHostLocal(b *testing.B) {
	others(b, func(b *testing.B, n int) {
		dir := tempDir(b)
		hostLocalLeases(b, dir, n)
		store, err := disk.New("bench", dir)
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close()
		_, subnet, err := net.ParseCIDR(hostLocalRange)
		if err != nil {
			b.Fatal(err)
		}
		set := &allocator.RangeSet{{Subnet: types.IPNet(*subnet)}}
		if err := set.Canonicalize(); err != nil {
			b.Fatal(err)
		}
		a, i := allocator.NewIPAllocator(set, store, 0), 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			if _, err := a.Get(containerID(i), "eth0", nil); err != nil {
				b.Fatal(err)
			}
			if err := a.Release(containerID(i), "eth0"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// others are the numbers of leases that a pair must not depend on.
func others(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { f(b, n) })
	}
}
