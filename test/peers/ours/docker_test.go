// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// dockerDriver is Docker's driver in process. Nothing is durable, as nothing of
// moby's is.
func dockerDriver(tb testing.TB, config ipamapi.Config) *ipamapi.Driver {
	tb.Helper()
	l, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	d, err := ipamapi.New(context.Background(), ipamapi.Deps{Ledger: l, Config: config})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// dockerPool is a pool of the driver; addresses are asked for as moby's are.
func dockerPool(tb testing.TB, prefix string, options map[string]string) workload.Pool[net.IP] {
	tb.Helper()
	d := dockerDriver(tb, ipamapi.Config{})
	p, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	return workload.Pool[net.IP]{
		Cap: 1<<(32-netip.MustParsePrefix(prefix).Bits()) - 2,
		Next: func() (net.IP, error) {
			n, _, err := d.RequestAddress(p.PoolID, nil, options)
			if err != nil {
				return nil, err
			}
			return n.IP, nil
		},
		Take: func(ip net.IP) error {
			_, _, err := d.RequestAddress(p.PoolID, ip, nil)
			return err
		},
		Free: func(ip net.IP) error { return d.ReleaseAddress(p.PoolID, ip) },
	}
}

func serial() map[string]string { return map[string]string{ipamapi.AllocSerialPrefix: "true"} }

func BenchmarkDocker(b *testing.B) {
	for _, c := range blocks() {
		b.Run("first/"+c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[net.IP] { return dockerPool(b, c.prefix, nil) })
		})
		b.Run("serial/"+c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[net.IP] { return dockerPool(b, c.prefix, serial()) })
		})
	}
}

// BenchmarkDockerEndpoint is the same with what the engine sends with it.
func BenchmarkDockerEndpoint(b *testing.B) {
	options := map[string]string{ipamapi.EndpointName: "web-7f9c", ipamapi.EndpointMAC: "02:42:ac:11:00:02"}
	for _, c := range blocks() {
		b.Run(c.name, func(b *testing.B) {
			workload.Levels(b, func() workload.Pool[net.IP] { return dockerPool(b, c.prefix, options) })
		})
	}
}

func BenchmarkDockerParallel(b *testing.B) {
	b.Run("50", func(b *testing.B) { workload.Parallel(b, dockerPool(b, "10.1.0.0/16", nil), .5) })
	b.Run("99", func(b *testing.B) { workload.Parallel(b, dockerPool(b, "10.1.0.0/16", nil), .99) })
}

// BenchmarkDockerPools is a pool of the driver's choice, or a certain one,
// requested and released while others are taken.
func BenchmarkDockerPools(b *testing.B) {
	config := ipamapi.Config{Local: ipamapi.Space{Pools: []ipamapi.Predefined{{Base: netip.MustParsePrefix("10.0.0.0/8"), Size: 24}}}}
	for _, n := range []int{0, 10, 100, 1000, 10_000} {
		b.Run(fmt.Sprint("any/", n), func(b *testing.B) { workload.Beside(b, dockerPools(dockerDriver(b, config), nil), n) })
		b.Run(fmt.Sprint("named/", n), func(b *testing.B) {
			workload.Beside(b, dockerPools(dockerDriver(b, config), workload.Prefixes(n)), n)
		})
	}
}

// dockerPools are the pools of a driver; next names one, nil for any.
func dockerPools(d *ipamapi.Driver, next func() string) workload.Pool[string] {
	return workload.Pool[string]{
		Next: func() (string, error) {
			req := ipamapi.PoolRequest{AddressSpace: "LocalDefault"}
			if next != nil {
				req.Pool = next()
			}
			p, err := d.RequestPool(req)
			return p.PoolID, err
		},
		Free: d.ReleasePool,
	}
}
