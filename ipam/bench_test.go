// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// sizes returns the measured blocks with their numbers of pod addresses.
func sizes() []struct {
	name, block string
	n           int
} {
	return []struct {
		name, block string
		n           int
	}{{"24", "10.1.5.0/24", 254}, {"16", "10.1.0.0/16", 65534}}
}

func inMemory(b *testing.B, block string) *ipam.IPAM {
	m, err := ipam.New(context.Background(), ipam.Deps{Config: &config{mode: "kubernetes", v4: true}, Node: node{block, ""}})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// names returns owners, each with its own memory, as a runtime names pods.
func names() func() string {
	n := 0
	return func() string { n++; return fmt.Sprintf("default/pod-%08d", n) }
}

func fill(b *testing.B, m *ipam.IPAM, name func() string, n, keep int) (held []net.IP) {
	for range n {
		r, err := m.AllocateNextFamily(ipam.IPv4, name())
		if err != nil {
			b.Fatal(err)
		}
		held = append(held, r.IP)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	rnd.Shuffle(n, func(i, j int) { held[i], held[j] = held[j], held[i] })
	for _, a := range held[keep:] {
		if err := m.ReleaseIP(a); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	return held[:keep]
}

// BenchmarkNext allocates any address and releases a random older one, with the
// block at a given fullness. Formatting the owner's name is a part of the time.
func BenchmarkNext(b *testing.B) {
	for _, s := range sizes() {
		for _, full := range []struct {
			name string
			keep int
		}{{"0", 0}, {"50", s.n / 2}, {"99", s.n * 99 / 100}, {"last", s.n - 1}} {
			b.Run(s.name+"/"+full.name, func(b *testing.B) {
				m, name := inMemory(b, s.block), names()
				held := fill(b, m, name, s.n, full.keep)
				rnd := rand.New(rand.NewPCG(3, 4))
				b.ReportAllocs()
				done := cpu(b)
				for b.Loop() {
					r, err := m.AllocateNextFamily(ipam.IPv4, name())
					if err != nil {
						b.Fatal(err)
					}
					a := r.IP
					if len(held) > 0 {
						i := rnd.IntN(len(held))
						a, held[i] = held[i], a
					}
					if err := m.ReleaseIP(a); err != nil {
						b.Fatal(err)
					}
				}
				done()
			})
		}
	}
}

// BenchmarkExpiring allocates an address with a timer and stops that.
func BenchmarkExpiring(b *testing.B) {
	m, name := inMemory(b, "10.1.0.0/16"), names()
	fill(b, m, name, 65534, 32767)
	b.ReportAllocs()
	for b.Loop() {
		r, _, err := m.AllocateNextWithExpiration("ipv4", name(), 10*time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		if err := m.StopExpirationTimer(r.IP, r.ExpirationUUID); err != nil {
			b.Fatal(err)
		}
		if err := m.ReleaseIP(r.IP); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFull allocates from a full block.
func BenchmarkFull(b *testing.B) {
	for _, s := range sizes() {
		b.Run(s.name, func(b *testing.B) {
			m, name := inMemory(b, s.block), names()
			fill(b, m, name, s.n, s.n)
			b.ReportAllocs()
			done := cpu(b)
			for b.Loop() {
				if _, err := m.AllocateNextFamily(ipam.IPv4, me); err == nil {
					b.Fatal("a full block has allocated an address")
				}
			}
			done()
		})
	}
}

// BenchmarkRestore opens a database of 16 000 leases, a tenth of them pending.
func BenchmarkRestore(b *testing.B) {
	const n = 16_000
	ctx := context.Background()
	path := filepath.Join(b.TempDir(), "cadastre.db")
	deps := ipam.Deps{Config: &config{mode: "kubernetes", v4: true}, Node: node{"10.1.0.0/16", ""}}
	open := func() (*bolt.File, *ipam.IPAM) {
		file, err := bolt.OpenFile(path, bolt.FileOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if deps.Ledger, err = ledger.Open(ctx, file.Journal(), ledger.Options{BootID: "boot"}); err != nil {
			b.Fatal(err)
		}
		m, err := ipam.New(ctx, deps)
		if err != nil {
			b.Fatal(err)
		}
		return file, m
	}
	file, _ := open()
	st, name := deps.Ledger.Begin(), names()
	for i := range n {
		r := ledger.Request{Pool: "ipam", Key: ledger.Key{Network: ipam.DefaultDoor, ContainerID: name()}}
		if i%10 == 0 {
			r.Expiry = ledger.Expiry{Token: "8a1c2d3e-4f50-4617-8293-a4b5c6d7e8f9", After: time.Hour}
		}
		if _, _, err := st.Claim(r); err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Commit(ctx); err != nil {
		b.Fatal(err)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
	done := cpu(b)
	for b.Loop() {
		file, m := open()
		if len(m.Unconfirmed()) != n {
			b.Fatal("leases are missing")
		}
		if err := file.Close(); err != nil {
			b.Fatal(err)
		}
	}
	done()
}

// BenchmarkMemory reports the heap of an address.
func BenchmarkMemory(b *testing.B) {
	const n = 50_000
	for b.Loop() {
		m, name := inMemory(b, "10.1.0.0/16"), names()
		before := heap()
		for range n {
			if _, err := m.AllocateNextFamily(ipam.IPv4, name()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before)/n, "B/address")
		runtime.KeepAlive(m)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// cpu reports the processor time of an operation beside the elapsed one, which
// on a busy machine says little.
func cpu(b *testing.B) func() {
	start := processorTime()
	return func() {
		b.ReportMetric(float64((processorTime()-start).Nanoseconds())/float64(b.N), "cpu-ns")
	}
}

func processorTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
