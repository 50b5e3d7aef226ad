// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package neutrontest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/common/extensions"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// booted is the description of a port that Boot has created.
const booted = "created with the machine"

// Network is a network with its subnets, in the order in which they were asked for.
type Network struct {
	ID      string
	Subnets []subnets.Subnet
}

// Client returns a client of the server, which passes no proxy and no budget.
func (s *Server) Client() *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{},
		Endpoint:       s.url + "/",
		ResourceBase:   s.url + "/v2.0/",
	}
}

// Network creates a network with a subnet for each CIDR.
func (s *Server) Network(t testing.TB, cidrs ...string) Network {
	t.Helper()
	n, err := networks.Create(t.Context(), s.Client(), networks.CreateOpts{Name: t.Name()}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	network := Network{ID: n.ID}
	for _, c := range cidrs {
		network.Subnets = append(network.Subnets, s.Subnet(t, n.ID, c))
	}
	return network
}

// Subnet creates a subnet of a network, whose gateway is its second address. Pools are the
// parts from which the server takes addresses; without any it is the whole subnet.
//
// Neutron's own choice in IPv6 is the first address. That is the anycast address of all
// routers of the subnet, so each machine that forwards packets takes it for its own.
func (s *Server) Subnet(t testing.TB, network, cidr string, pools ...subnets.AllocationPool) subnets.Subnet {
	t.Helper()
	gateway := netip.MustParsePrefix(cidr).Addr().Next().String()
	opts := subnets.CreateOpts{
		NetworkID:       network,
		CIDR:            cidr,
		IPVersion:       gophercloud.IPv4,
		GatewayIP:       &gateway,
		AllocationPools: pools,
	}
	if netip.MustParsePrefix(cidr).Addr().Is6() {
		opts.IPVersion = gophercloud.IPv6
	}
	subnet, err := subnets.Create(t.Context(), s.Client(), opts).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return *subnet
}

// Boot creates the port that Nova creates for a new machine: one address of each family.
func (s *Server) Boot(t testing.TB, network Network, machine string) ports.Port {
	t.Helper()
	port, err := ports.Create(t.Context(), s.Client(), ports.CreateOpts{
		NetworkID:   network.ID,
		DeviceID:    machine,
		DeviceOwner: "compute:nova",
		Description: booted,
		FixedIPs:    oneOfEach(network.Subnets),
	}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	return *port
}

func oneOfEach(all []subnets.Subnet) (ips []ports.IP) {
	seen := map[int]bool{}
	for _, subnet := range all {
		if !seen[subnet.IPVersion] {
			ips = append(ips, ports.IP{SubnetID: subnet.ID})
		}
		seen[subnet.IPVersion] = true
	}
	return ips
}

// Terminate does what Nova does for a machine that ends: it deletes the port that Boot has
// created, and detaches the others.
func (s *Server) Terminate(t testing.TB, machine string) {
	t.Helper()
	none := ""
	for _, p := range s.portsOf(t, ports.ListOpts{DeviceID: machine}) {
		var err error
		if strings.HasPrefix(p.Description, booted) {
			err = ports.Delete(t.Context(), s.Client(), p.ID).ExtractErr()
		} else {
			_, err = ports.Update(
				t.Context(),
				s.Client(),
				p.ID,
				ports.UpdateOpts{DeviceID: &none, DeviceOwner: &none},
			).Extract()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Ports returns all ports of the server.
func (s *Server) Ports(t testing.TB) []ports.Port {
	t.Helper()
	return s.portsOf(t, ports.ListOpts{})
}

func (s *Server) portsOf(t testing.TB, opts ports.ListOpts) []ports.Port {
	t.Helper()
	pages, err := ports.List(s.Client(), opts).AllPages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := ports.ExtractPorts(pages)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Extensions returns the aliases of the API's extensions.
func (s *Server) Extensions(t testing.TB) (aliases []string) {
	t.Helper()
	pages, err := extensions.List(s.Client()).AllPages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := extensions.ExtractExtensions(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		aliases = append(aliases, e.Alias)
	}
	return aliases
}
