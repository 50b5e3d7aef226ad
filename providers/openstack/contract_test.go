// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cadastre/cadastre/cloud/budget"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest"
	"github.com/cadastre/cadastre/providers/openstack"
	"github.com/cadastre/cadastre/providers/openstack/neutrontest"
)

// The properties of the proxy before Neutron.
const (
	bucket        = 120 // requests at once
	refill        = 20  // requests in a second
	maxInterfaces = 3
	maxUnits      = 6 // of an interface
)

// TestProviderKeepsTheContract runs the suite of all providers against a real Neutron,
// through a proxy that throttles, shows old readings and loses answers. Below effort.Nightly
// one check of four runs with addresses, and another one with prefixes: make nightly runs all.
// The checks do not run at the same time: one Neutron uses one processor.
func TestProviderKeepsTheContract(t *testing.T) {
	stale := staleFor(t)
	all := effort.Level(t) >= effort.Nightly
	for at, c := range []struct {
		name     string
		prefixes bool
		unit     int
	}{{"addresses", false, 1}, {"prefixes", true, 16}} {
		t.Run(c.name, func(t *testing.T) {
			worlds := &worlds{T: t, server: neutrontest.New(t, neutrontest.Options{}), prefixes: c.prefixes, stale: stale}
			p := netresourcetest.Provider{
				New:      worlds.make,
				Unit:     c.unit,
				Limits:   netresourcetest.Limits{Interfaces: maxInterfaces, Units: maxUnits},
				Lag:      lag(stale),
				Deadline: 15 * time.Second,
				Slow:     true,
				Rounds:   effort.Times(t, 2),
			}
			for i, check := range netresourcetest.Checks() {
				if all || i%4 == 3*at {
					t.Run(check.Name, func(t *testing.T) { check.Test(t, p) })
				}
			}
		})
	}
}

// staleFor returns the time for which the proxy shows old readings.
func staleFor(t *testing.T) time.Duration {
	if effort.Level(t) >= effort.Nightly {
		return 2 * time.Second
	}
	return time.Second
}

// lag returns the time after which a reading shows all changes, with that of the request.
func lag(stale time.Duration) time.Duration { return stale + time.Second/2 }

// worlds makes worlds on one server.
type worlds struct {
	*testing.T
	server   *neutrontest.Server
	prefixes bool
	stale    time.Duration // readings may be so old
	made     atomic.Int32
}

// world is a network behind a proxy.
type world struct {
	*worlds
	number  int32
	network neutrontest.Network
	url     string // of the proxy
	dual    bool
}

func (w *worlds) make(_ context.Context, s netresourcetest.Shape) (*netresourcetest.World, error) {
	proxy, url, err := faultproxy.Start(faultproxy.Config{
		Target:  w.server.URL(),
		Dialect: faultproxy.OpenStack(),
		Bucket:  bucket,
		Refill:  refill,
		Stale:   w.stale,
	})
	if err != nil {
		return nil, err
	}
	cidr := "10.9.16.0/20"
	switch {
	case s.Units > 0 && w.prefixes:
		cidr = "10.9.16.0/24"
	case s.Units > 0:
		cidr = "10.9.16.0/28"
	}
	x := &world{worlds: w, number: w.made.Add(1), network: w.server.Network(w, cidr), url: url, dual: s.DualStack}
	if s.DualStack {
		x.network.Subnets = append(x.network.Subnets,
			w.server.Subnet(w, x.network.ID, "fd00:9::/64", pool("fd00:9::2", "fd00:9::ffff")))
	}
	return &netresourcetest.World{
		Provider: x.provider,
		Machine:  x.machine,
		Plan:     func(p netresourcetest.Plan) { proxy.SetPlan(p) },
		Truth:    x.truth,
		Close:    proxy.Close,
	}, nil
}

// provider returns a provider as a process of its own would have it, with a budget of its own.
func (w *world) provider() (netresource.Provider, error) {
	c, err := openstack.New(context.Background(), openstack.Config{
		Networks:      []string{w.network.ID},
		Endpoint:      w.url,
		MaxInterfaces: maxInterfaces,
		MaxAddresses:  maxUnits,
		Budget:        budget.New(budget.Config{Cloud: openstack.Name, QPS: refill, Burst: bucket / 2}),
	})
	if err != nil {
		return nil, err
	}
	return cloudpool.New(cloudpool.Config{
		Cloud:       c,
		IPv4:        true,
		IPv6:        w.dual,
		Prefixes:    w.prefixes,
		Consistency: lag(w.stale),
		OrphanAge:   15 * time.Second,
		Log:         slog.New(slog.DiscardHandler),
	}), nil
}

func (w *world) machine(_ context.Context, node string) (string, error) {
	id := fmt.Sprintf("%s-%d", node, w.number)
	w.server.Boot(w, w.network, id)
	return id, nil
}

// truth reads the network without the proxy and the provider.
func (w *world) truth(context.Context) (t netresourcetest.Truth, err error) {
	all := w.server.Ports(w)
	routed := map[string]bool{}
	for _, p := range all {
		if p.NetworkID != w.network.ID || p.DeviceID == "" {
			continue
		}
		i := netresourcetest.Interface{ID: p.ID, Instance: p.DeviceID}
		own := strings.Join(p.Tags, " ") + " "
		for _, ip := range p.FixedIPs {
			a := netip.MustParseAddr(ip.IPAddress)
			if strings.Contains(own, "cadastre-own-") && !strings.Contains(own, "cadastre-own-"+a.String()+" ") {
				i.Blocks = append(i.Blocks, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		for _, a := range p.AllowedAddressPairs {
			i.Blocks = append(i.Blocks, netip.MustParsePrefix(a.IPAddress))
			routed[a.IPAddress] = true
		}
		t.Interfaces = append(t.Interfaces, i)
	}
	for _, p := range all {
		if p.NetworkID == w.network.ID && p.DeviceID == "" && !routed[p.Description] {
			t.Orphans = append(t.Orphans, p.ID)
		}
	}
	return t, nil
}
