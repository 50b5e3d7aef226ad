// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package moby drives Docker's default IPAM driver.
package moby

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/moby/moby/v2/daemon/libnetwork/ipamapi"
	"github.com/moby/moby/v2/daemon/libnetwork/ipams/defaultipam"
	"github.com/moby/moby/v2/daemon/libnetwork/ipamutils"

	"github.com/cadastre/cadastre/test/peers/workload"
)

// pool is a pool of the driver, which leaves out the first and the last
// address. Plain Docker asks for the first free one; Swarm asks serially, for
// the next one after the last.
func pool(tb testing.TB, prefix string, serial bool) workload.Pool[net.IP] {
	a, err := defaultipam.NewAllocator(nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := a.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	var options map[string]string
	if serial {
		options = map[string]string{ipamapi.AllocSerialPrefix: "true"}
	}
	return workload.Pool[net.IP]{
		Cap: 1<<(32-netip.MustParsePrefix(prefix).Bits()) - 2,
		Next: func() (net.IP, error) {
			n, _, err := a.RequestAddress(p.PoolID, nil, options)
			if err != nil {
				return nil, err
			}
			return n.IP, nil
		},
		Take: func(ip net.IP) error {
			_, _, err := a.RequestAddress(p.PoolID, ip, nil)
			return err
		},
		Free: func(ip net.IP) error { return a.ReleaseAddress(p.PoolID, ip) },
	}
}

func BenchmarkDefaultIPAM(b *testing.B) {
	for _, c := range []struct{ name, prefix string }{{"24", "10.1.5.0/24"}, {"16", "10.1.0.0/16"}} {
		b.Run("first/"+c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[net.IP] { return pool(b, c.prefix, false) })
		})
		b.Run("serial/"+c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[net.IP] { return pool(b, c.prefix, true) })
		})
	}
}

func BenchmarkDefaultIPAMParallel(b *testing.B) {
	b.Run("50", func(b *testing.B) { workload.Parallel(b, pool(b, "10.1.0.0/16", true), .5) })
	b.Run("99", func(b *testing.B) { workload.Parallel(b, pool(b, "10.1.0.0/16", true), .99) })
}

// BenchmarkDefaultIPAMPools is a pool of the driver's choice, or a certain one,
// requested and released while others are taken.
func BenchmarkDefaultIPAMPools(b *testing.B) {
	for _, n := range []int{0, 10, 100, 1000, 10_000} {
		b.Run(fmt.Sprint("any/", n), func(b *testing.B) { workload.Beside(b, pools(b, nil), n) })
		b.Run(fmt.Sprint("named/", n), func(b *testing.B) { workload.Beside(b, pools(b, workload.Prefixes(n)), n) })
	}
}

// pools are those of 10.0.0.0/8 in /24; next names one, nil for any.
func pools(tb testing.TB, next func() string) workload.Pool[string] {
	a, err := defaultipam.NewAllocator([]*ipamutils.NetworkToSplit{{Base: netip.MustParsePrefix("10.0.0.0/8"), Size: 24}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return workload.Pool[string]{
		Next: func() (string, error) {
			req := ipamapi.PoolRequest{AddressSpace: "LocalDefault"}
			if next != nil {
				req.Pool = next()
			}
			p, err := a.RequestPool(req)
			return p.PoolID, err
		},
		Free: a.ReleasePool,
	}
}
