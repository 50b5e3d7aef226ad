// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// Modes of an address manager: the node's block, and a list of blocks.
const (
	hostScope   = "kubernetes"
	clusterPool = "cluster-pool-v2beta"
)

// managerConfig is an agent's with IPv4 only.
type managerConfig struct {
	ipam.Configuration
	mode string
}

func (managerConfig) IPv4Enabled() bool                   { return true }
func (managerConfig) IPv6Enabled() bool                   { return false }
func (c managerConfig) IPAMMode() string                  { return c.mode }
func (managerConfig) SetIPv4NativeRoutingCIDR(*ipam.CIDR) {}

// managerNode is what the agent knows of its node: the pods' prefix.
type managerNode struct{ pods netip.Prefix }

func (n managerNode) IPv4() ipam.NodeAddressingFamily { return n }
func (n managerNode) IPv6() ipam.NodeAddressingFamily { return nil }
func (n managerNode) AllocationCIDR() *ipam.CIDR      { return ipam.NewCIDR(n.pods) }

// newManager is an address manager of some blocks, in host scope one. Without a
// ledger nothing of it is durable, as nothing of the peers is.
func newManager(tb testing.TB, mode string, l *ledger.Ledger, blocks ...string) *ipam.IPAM {
	tb.Helper()
	ctx := context.Background()
	m, err := ipam.New(ctx, ipam.Deps{Name: "node", Config: managerConfig{mode: mode}, Node: managerNode{netip.MustParsePrefix(blocks[0])}, Ledger: l})
	if err != nil {
		tb.Fatal(err)
	}
	if err := m.Update(ctx, &ipam.NetResourceSet{Name: "node", PodCIDRs: blocks}); err != nil {
		tb.Fatal(err)
	}
	return m
}

// manager is driven as the agent of Cilium 1.15 is (../cilium115).
func manager(tb testing.TB, mode string, blocks ...string) workload.Pool[net.IP] {
	m := newManager(tb, mode, nil, blocks...)
	p := workload.Pool[net.IP]{Free: m.ReleaseIP, Take: func(ip net.IP) error { return m.AllocateIP(ip, "default/pod") }}
	for _, b := range blocks {
		p.Cap += 1<<(32-netip.MustParsePrefix(b).Bits()) - 2
	}
	var last atomic.Int64
	p.Next = func() (net.IP, error) {
		r, err := m.AllocateNextFamily(ipam.IPv4, fmt.Sprintf("default/pod-%08d", last.Add(1)))
		if err != nil {
			return nil, err
		}
		return r.IP, nil
	}
	return p
}

func BenchmarkManager(b *testing.B) {
	for _, c := range blocks() {
		b.Run("host/"+c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[net.IP] { return manager(b, hostScope, c.prefix) })
		})
		b.Run("pool/"+c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[net.IP] { return manager(b, clusterPool, c.prefix) })
		})
	}
	b.Run("pool/16in24", func(b *testing.B) {
		workload.Levels(b, func() workload.Pool[net.IP] { return manager(b, clusterPool, in24s()...) })
	})
}

// in24s is a /16 as 256 blocks.
func in24s() (all []string) {
	for i := range 256 {
		all = append(all, fmt.Sprintf("10.1.%d.0/24", i))
	}
	return all
}

func BenchmarkManagerMemory(b *testing.B) {
	b.Run("16", func(b *testing.B) {
		workload.Memory(b, func() workload.Pool[net.IP] { return manager(b, hostScope, "10.1.0.0/16") }, 50_000)
	})
}

// BenchmarkManagerRestore opens a database of 16 000 leases, a tenth of which
// have a timer, and makes the manager of it.
func BenchmarkManagerRestore(b *testing.B) {
	const n = 16_000
	ctx, path := context.Background(), filepath.Join(tempDir(b), "cadastre.db")
	open := func() (*bolt.File, *ledger.Ledger, *ipam.IPAM) {
		f, err := bolt.OpenFile(path, bolt.FileOptions{})
		if err != nil {
			b.Fatal(err)
		}
		l, err := ledger.Open(ctx, f.Journal(), ledger.Options{BootID: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		return f, l, newManager(b, hostScope, l, "10.1.0.0/16")
	}
	f, l, _ := open()
	st := l.Begin()
	for i := range n {
		r := ledger.Request{Pool: ipam.DefaultPool().Name, Key: ledger.Key{Network: ipam.DefaultDoor, ContainerID: fmt.Sprintf("default/pod-%08d", i)}}
		if i%10 == 0 {
			r.Expiry = ledger.Expiry{Token: fmt.Sprintf("8a1c2d3e-4f50-4617-8293-%012d", i), After: time.Hour}
		}
		if _, _, err := st.Claim(r); err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Commit(ctx); err != nil {
		b.Fatal(err)
	}
	b.Run("16000", func(b *testing.B) {
		for b.Loop() {
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
			var m *ipam.IPAM
			if f, _, m = open(); len(m.Unconfirmed()) != n {
				b.Fatalf("%d leases are restored, %d would be right", len(m.Unconfirmed()), n)
			}
		}
	})
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}
