// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package library

import (
	"net"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

func newDocker(t *testing.T) (*ipamapi.Driver, Gomega) {
	g := NewWithT(t)
	leases, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	d, err := ipamapi.New(t.Context(), ipamapi.Deps{Ledger: leases})
	g.Expect(err).NotTo(HaveOccurred())
	return d, g
}

// An endpoint that the request names gets its address again, until it is released.
func TestARepeatedEndpointGetsItsAddress(t *testing.T) {
	d, g := newDocker(t)
	pool, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: "10.2.0.0/16"})
	g.Expect(err).NotTo(HaveOccurred())
	ask := func(name, mac string) string {
		a, _, err := d.RequestAddress(pool.PoolID, nil, map[string]string{ipamapi.EndpointName: name, ipamapi.EndpointMAC: mac})
		g.Expect(err).NotTo(HaveOccurred())
		return a.String()
	}
	const mac = "02:42:0a:02:00:02"
	first := ask("web", mac)
	g.Expect(ask("web", mac)).To(Equal(first))
	other := ask("db", "02:42:0a:02:00:03")
	g.Expect(other).NotTo(Equal(first))
	g.Expect(ask("web", "02:42:0A:02:00:02")).To(Equal(first))
	g.Expect(ask("", mac)).NotTo(BeElementOf(first, other), "another container may have the MAC address")
	ip, _, err := net.ParseCIDR(first)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.ReleaseAddress(pool.PoolID, ip)).To(Succeed())
	g.Expect(ask("db", "02:42:0a:02:00:03")).To(Equal(other))
}

// The ID of a pool that the engine has given up serves again, but takes no gateway from a pool
// that the engine has requested.
func TestAStaleSubPoolKeepsNoGateway(t *testing.T) {
	gateway := map[string]string{ipamapi.RequestAddressType: ipamapi.Gateway}
	for name, staleFirst := range map[string]bool{"before the pool": true, "after the pool": false} {
		t.Run(name, func(t *testing.T) {
			d, g := newDocker(t)
			const stale = "LocalDefault/10.2.0.0/16/10.2.0.0/24"
			useStale := func() string {
				a, _, err := d.RequestAddress(stale, nil, nil)
				g.Expect(err).NotTo(HaveOccurred())
				return a.String()
			}
			held := ""
			if staleFirst {
				held = useStale()
			}
			pool, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: "10.2.0.0/16"})
			g.Expect(err).NotTo(HaveOccurred())
			if !staleFirst {
				held = useStale()
			}
			g.Expect(held).To(Equal("10.2.0.2/16"))
			a, _, err := d.RequestAddress(pool.PoolID, net.ParseIP("10.2.0.1"), gateway)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.String()).To(Equal("10.2.0.1/16"))

			_, _, err = d.RequestAddress(stale, net.ParseIP("10.2.0.1"), gateway)
			g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "it is the pool's now")
			g.Expect(d.ReleaseAddress(stale, net.ParseIP("10.2.0.1"))).To(Succeed())
			_, _, err = d.RequestAddress(pool.PoolID, net.ParseIP("10.2.0.1"), nil)
			g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "the stale pool has not released it")
		})
	}
}

func TestADockerDriverNeedsALedger(t *testing.T) {
	_, err := ipamapi.New(t.Context(), ipamapi.Deps{})
	NewWithT(t).Expect(err).To(MatchError("start the Docker driver: a ledger is needed: Deps.Ledger"))
}
