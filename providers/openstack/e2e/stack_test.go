// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/internal/testkit/clouds/cloudlab"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/providers/openstack"
	"github.com/cadastre/cadastre/providers/openstack/neutrontest"
)

const (
	binVariable = "CADASTRE_TEST_OPENSTACK_BIN" // the folder of the programs
)

func TestMain(m *testing.M) { os.Exit(cloudlab.Main(m, binVariable)) }

// The properties of the proxy before Neutron.
const (
	staleFor = 2 * time.Second
	bucket   = 120 // requests at once
	refill   = 20  // requests in a second
)

// stack is a Neutron with networks, behind a proxy, and a lab on it.
type stack struct {
	*cloudlab.Lab
	t        *testing.T
	server   *neutrontest.Server
	networks []neutrontest.Network
	proxy    *faultproxy.Proxy
	url      string // of the proxy
	seed     uint64
}

// newStack starts everything but operators and agents, with the rights of a mode of k8s/.
// Each network has the CIDRs of its subnets.
func newStack(t *testing.T, mode string, networks ...[]string) *stack {
	t.Helper()
	if why := cloudlab.Why(); why != "" {
		t.Skip("NOT RUN: ", why)
	}
	s := &stack{t: t, server: neutrontest.New(t, neutrontest.Options{}), seed: effort.Seed(t)}
	config := cloudlab.Config{Root: "..", Cloud: openstack.Name, Modes: []string{mode}, Truth: s.truth}
	for _, cidrs := range networks {
		n := s.server.Network(t, cidrs...)
		s.networks = append(s.networks, n)
		network := cloudlab.Network{ID: n.ID}
		for _, subnet := range n.Subnets {
			network.Subnets = append(network.Subnets, cloudlab.Subnet{
				CIDR:    netip.MustParsePrefix(subnet.CIDR),
				Gateway: netip.MustParseAddr(subnet.GatewayIP),
			})
		}
		config.Networks = append(config.Networks, network)
	}
	random := rand.New(rand.NewPCG(s.seed, 1))
	proxy, at, err := faultproxy.Start(faultproxy.Config{
		Target:  s.server.URL(),
		Dialect: faultproxy.OpenStack(),
		Bucket:  bucket,
		Refill:  refill,
		Stale:   staleFor,
		Random:  random.Float64,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	s.proxy, s.url = proxy, at
	port, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port.Port())
	if err != nil {
		t.Fatal(err)
	}
	config.Ports = []int{number}
	s.Lab = cloudlab.New(t, os.Getenv(binVariable), config)
	return s
}

// flags returns those of the provider, for operators and agents.
func (s *stack) flags(more ...string) []string {
	var ids []string
	for _, n := range s.networks {
		ids = append(ids, n.ID)
	}
	return append([]string{
		"--openstack-endpoint=" + s.url,
		"--openstack-attach-by-neutron",
		"--openstack-networks=" + strings.Join(ids, ","),
		"--openstack-max-interfaces=3",
		"--openstack-max-addresses=6",
	}, more...)
}

// storm begins random faults.
func (s *stack) storm() {
	random := rand.New(rand.NewPCG(s.seed, 2))
	s.proxy.SetPlan(faultproxy.Storm(
		faultproxy.Rates{Lost: .05, Throttled: .02, Burst: .005, BurstLength: 10},
		random.Float64,
	))
}

// truth reads Neutron without proxy and provider.
func (s *stack) truth(ctx context.Context) (t cloudlab.Truth, err error) {
	pages, err := ports.List(s.server.Client(), ports.ListOpts{}).AllPages(ctx)
	if err != nil {
		return t, fmt.Errorf("list the ports: %w", err)
	}
	all, err := ports.ExtractPorts(pages)
	if err != nil {
		return t, fmt.Errorf("list the ports: %w", err)
	}
	routed := map[string]bool{} // blocks that a port has as a pair
	for _, p := range all {
		for _, a := range p.AllowedAddressPairs {
			routed[a.IPAddress] = true
		}
	}
	for _, p := range all {
		switch {
		case p.DeviceID != "":
			t.Ports = append(t.Ports, s.port(p))
		case !slices.ContainsFunc(strings.Fields(p.Description), func(word string) bool { return routed[word] }):
			t.Orphans = append(t.Orphans, p.ID+" "+p.Name)
		}
	}
	return t, nil
}

// port converts a port of a machine.
func (s *stack) port(p ports.Port) cloudlab.Port {
	port := cloudlab.Port{
		ID:      p.ID,
		Machine: p.DeviceID,
		Network: p.NetworkID,
		MAC:     p.MACAddress,
		First:   !strings.HasPrefix(p.Name, "cadastre/"),
	}
	tagged := slices.ContainsFunc(p.Tags, func(tag string) bool { return strings.HasPrefix(tag, "cadastre-own-") })
	for _, ip := range p.FixedIPs {
		a := netip.MustParseAddr(ip.IPAddress)
		if tagged && !slices.Contains(p.Tags, "cadastre-own-"+a.String()) {
			port.Blocks = append(port.Blocks, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		for _, n := range s.networks {
			for _, subnet := range n.Subnets {
				if subnet.ID == ip.SubnetID {
					port.Own = append(port.Own, netip.PrefixFrom(a, netip.MustParsePrefix(subnet.CIDR).Bits()))
				}
			}
		}
	}
	for _, a := range p.AllowedAddressPairs {
		if prefix, err := netip.ParsePrefix(a.IPAddress); err == nil {
			port.Blocks = append(port.Blocks, prefix)
		}
	}
	return port
}

// boot creates a machine and returns the provider ID of its node, and its addresses.
func (s *stack) boot(machine string) (providerID string, own []netip.Addr) {
	p := s.server.Boot(s.t, s.networks[0], machine)
	for _, ip := range p.FixedIPs {
		own = append(own, netip.MustParseAddr(ip.IPAddress))
	}
	slices.SortFunc(own, func(a, b netip.Addr) int { return a.Compare(b) })
	return "openstack:///" + machine, own
}

// counts returns the proxy's sums: requests, throttled, lost, failed and stale ones.
func (s *stack) counts() map[faultproxy.Outcome]int {
	sums := map[faultproxy.Outcome]int{}
	for c, n := range s.proxy.Counts() {
		sums[c.Outcome] += n
	}
	return sums
}
