// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"regexp"
	"time"

	"github.com/cadastre/cadastre/cloud/budget"
)

// Defaults of a Config.
const (
	DefaultCluster    = "kubernetes"
	DefaultInterfaces = 4
	DefaultAddresses  = 64
	DefaultPrefix4    = 28
	DefaultPrefix6    = 80
	// DefaultMetadataURL is the address of the metadata service on each machine.
	DefaultMetadataURL = "http://169.254.169.254/openstack/latest/meta_data.json"
	// DefaultPageSize is the number of ports of one answer.
	DefaultPageSize = 1000
)

// Config selects machines and subnets and sets the limits that Neutron does not have.
type Config struct {
	Cluster  string   // names the ports that the cluster owns
	Networks []string // IDs of the networks; none: all networks that the project sees
	// PortTags selects machines: a machine's first port has all of them.
	PortTags []string
	// SubnetTags selects the subnets for new interfaces and addresses: those with all of them.
	SubnetTags []string
	// ExcludeTag is a port's tag: the port gets no more addresses. "": there is none.
	ExcludeTag     string
	SecurityGroups []string       // IDs, of new interfaces; none: those of the machine's first port
	VPC            []netip.Prefix // beside those of the network

	MaxInterfaces int    // of a machine; 0: DefaultInterfaces
	MaxAddresses  int    // of an interface and family without its own; 0: DefaultAddresses
	PrefixBits    [2]int // lengths of IPv4 and IPv6 prefixes; 0: the default; negative: none

	// Endpoint is the URL of a Neutron without authentication, for tests. "": Keystone, as
	// OS_CLOUD and clouds.yaml, or the variables OS_*, name it.
	Endpoint string
	// AttachByNeutron sets the device of a new port instead of asking Nova to attach it. It is
	// for networks whose machines are not Nova's.
	AttachByNeutron bool

	MetadataURL string // "": DefaultMetadataURL
	ConfigDrive string // folder of a mounted config drive; it is read before MetadataURL is asked

	Budget    *budget.Budget    // of all requests; nil: no limit
	Transport http.RoundTripper // below the budget; nil: http.DefaultTransport
	PageSize  int               // ports of one answer; 0: DefaultPageSize
	Log       *slog.Logger      // nil: none
	Now       func() time.Time  // nil: the clock
	// Random returns a number from 0 to below n. nil: math/rand.
	Random func(n uint64) uint64
}

var clusterName = regexp.MustCompile("^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$")

// complete returns the configuration with its defaults.
func (c Config) complete() (Config, error) {
	c.Cluster = cmp.Or(c.Cluster, DefaultCluster)
	if !clusterName.MatchString(c.Cluster) {
		return c, fmt.Errorf(
			"setting Cluster (--openstack-cluster) %q: want 1 to 63 letters, digits, and inside '-', '_' or '.'",
			c.Cluster,
		)
	}
	for _, n := range []struct {
		field, flag string
		value       *int
		usual       int
	}{
		{"MaxInterfaces", "max-interfaces", &c.MaxInterfaces, DefaultInterfaces},
		{"MaxAddresses", "max-addresses", &c.MaxAddresses, DefaultAddresses},
	} {
		if *n.value = cmp.Or(*n.value, n.usual); *n.value < 1 {
			return c, fmt.Errorf("setting %s (--openstack-%s) %d: want at least 1", n.field, n.flag, *n.value)
		}
	}
	for i, p := range []struct{ family, usual, least, most int }{{4, DefaultPrefix4, 24, 31}, {6, DefaultPrefix6, 65, 127}} {
		c.PrefixBits[i] = max(cmp.Or(c.PrefixBits[i], p.usual), 0)
		if bits := c.PrefixBits[i]; bits > 0 && (bits < p.least || bits > p.most) {
			return c, fmt.Errorf(
				"setting PrefixBits of IPv%d (--openstack-prefix-length-ipv%d) %d: want %d to %d, or a negative number for none",
				p.family,
				p.family,
				bits,
				p.least,
				p.most,
			)
		}
	}
	c.MetadataURL = cmp.Or(c.MetadataURL, DefaultMetadataURL)
	c.PageSize = cmp.Or(c.PageSize, DefaultPageSize)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Uint64N
	}
	return c, nil
}
