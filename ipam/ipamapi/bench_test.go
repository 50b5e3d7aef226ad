// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// inProcess returns a driver that keeps nothing.
func inProcess(b *testing.B, config ipamapi.Config) *ipamapi.Driver {
	l, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		b.Fatal(err)
	}
	d, err := ipamapi.New(context.Background(), ipamapi.Deps{Ledger: l, Config: config})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// fill takes n addresses, and gives half of them back, at random.
func fill(b *testing.B, d *ipamapi.Driver, pool string, n int, options map[string]string) (held []net.IP) {
	for range n {
		ip, _, err := d.RequestAddress(pool, nil, options)
		if err != nil {
			b.Fatal(err)
		}
		held = append(held, ip.IP)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	rnd.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	for _, ip := range held[n/2:] {
		if err := d.ReleaseAddress(pool, ip); err != nil {
			b.Fatal(err)
		}
	}
	return held[:n/2]
}

// BenchmarkAddresses requests any address and releases a random older one, in a
// pool that is half full.
func BenchmarkAddresses(b *testing.B) {
	serial := map[string]string{ipamapi.AllocSerialPrefix: "true"}
	named := map[string]string{ipamapi.EndpointName: "web-7f9c", ipamapi.EndpointMAC: "02:42:ac:11:00:02"}
	for _, c := range []struct {
		name, pool, sub string
		n               int
		options         map[string]string
	}{
		{"empty24", "10.1.5.0/24", "", 2, nil},
		{"half24", "10.1.5.0/24", "", 254, nil},
		{"half16", "10.1.0.0/16", "", 65534, nil},
		{"half64", "fd00:1::/64", "", 65534, nil},
		{"half16/endpoint", "10.1.0.0/16", "", 65534, named},
		{"half16/serial", "10.1.0.0/16", "", 65534, serial},
		{"half16/sub", "10.1.0.0/15", "10.1.0.0/16", 65534, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := inProcess(b, ipamapi.Config{})
			p, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: c.pool, SubPool: c.sub})
			if err != nil {
				b.Fatal(err)
			}
			held := fill(b, d, p.PoolID, c.n, c.options)
			rnd := rand.New(rand.NewPCG(3, 4))
			b.ReportAllocs()
			done := cpu(b)
			for b.Loop() {
				ip, _, err := d.RequestAddress(p.PoolID, nil, c.options)
				if err != nil {
					b.Fatal(err)
				}
				i := rnd.IntN(len(held))
				if err := d.ReleaseAddress(p.PoolID, held[i]); err != nil {
					b.Fatal(err)
				}
				held[i] = ip.IP
			}
			done()
		})
	}
}

// BenchmarkNamed requests and releases a certain address of a half full /16.
func BenchmarkNamed(b *testing.B) {
	d := inProcess(b, ipamapi.Config{})
	p, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: "10.1.0.0/16"})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, d, p.PoolID, 65534, nil)
	ip := net.IPv4(10, 1, 77, 7)
	_ = d.ReleaseAddress(p.PoolID, ip)
	b.ReportAllocs()
	done := cpu(b)
	for b.Loop() {
		if _, _, err := d.RequestAddress(p.PoolID, ip, nil); err != nil {
			b.Fatal(err)
		}
		if err := d.ReleaseAddress(p.PoolID, ip); err != nil {
			b.Fatal(err)
		}
	}
	done()
}

// BenchmarkFull requests an address of a pool that has none left.
func BenchmarkFull(b *testing.B) {
	for _, c := range []struct {
		name, sub string
		n         int
		options   map[string]string
	}{
		{"16", "", 65534, nil}, {"16/serial", "", 65534, map[string]string{ipamapi.AllocSerialPrefix: "true"}}, {"16/sub24", "10.1.5.0/24", 256, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := inProcess(b, ipamapi.Config{})
			p, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: "10.1.0.0/16", SubPool: c.sub})
			if err != nil {
				b.Fatal(err)
			}
			for range c.n {
				if _, _, err := d.RequestAddress(p.PoolID, nil, c.options); err != nil {
					b.Fatal(err)
				}
			}
			done := cpu(b)
			for b.Loop() {
				if _, _, err := d.RequestAddress(p.PoolID, nil, c.options); err == nil {
					b.Fatal("a full pool has allocated an address")
				}
			}
			done()
		})
	}
}

// BenchmarkPools requests and releases a pool of the driver's choice, while
// others are taken.
func BenchmarkPools(b *testing.B) {
	for _, others := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			d := inProcess(b, ipamapi.Config{Local: ipamapi.Space{Pools: []ipamapi.Predefined{{Base: netip.MustParsePrefix("10.0.0.0/8"), Size: 24}}}})
			request := ipamapi.PoolRequest{AddressSpace: "LocalDefault"}
			for range others {
				if _, err := d.RequestPool(request); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			done := cpu(b)
			for b.Loop() {
				p, err := d.RequestPool(request)
				if err != nil {
					b.Fatal(err)
				}
				if err := d.ReleasePool(p.PoolID); err != nil {
					b.Fatal(err)
				}
			}
			done()
		})
	}
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
