// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/cloud/budget"
)

// Help is one line about the provider for --help.
const Help = "fixed IPs and allowed address pairs of the machines' ports in OpenStack's Neutron"

// Options holds the flags of a program with this provider.
type Options struct {
	config Config
	vpc    []string
}

// Flags defines the flags. The credentials come from OS_CLOUD and clouds.yaml, or from the
// variables OS_*, as with every program of OpenStack.
func (o *Options) Flags(fs *pflag.FlagSet) {
	c := &o.config
	fs.StringVar(&c.Cluster, "openstack-cluster", DefaultCluster,
		"the `name` of the cluster in the names of the ports that it creates; it deletes no others")
	fs.StringSliceVar(&c.Networks, "openstack-networks", nil,
		"the `IDs` of the networks of the machines' ports (default: all that the project sees)")
	fs.StringSliceVar(&c.PortTags, "openstack-port-tags", nil,
		"the `tags` that the first port of a machine has, all of them (default: any machine)")
	fs.StringSliceVar(&c.SubnetTags, "openstack-subnet-tags", nil,
		"the `tags` of the subnets for new interfaces, all of them (default: any subnet)")
	fs.StringVar(&c.ExcludeTag, "openstack-exclude-tag", "",
		"a `tag` of ports that get no more addresses")
	fs.StringSliceVar(&c.SecurityGroups, "openstack-security-groups", nil,
		"the `IDs` of the security groups of new interfaces (default: those of the machine's first port)")
	fs.StringSliceVar(&o.vpc, "openstack-vpc-cidrs", nil,
		"`CIDRs` that are reached without translation, beside those of the network and its address scopes")
	fs.IntVar(&c.MaxInterfaces, "openstack-max-interfaces", DefaultInterfaces,
		"the `number` of interfaces of a machine; Neutron has no such limit")
	fs.IntVar(&c.MaxAddresses, "openstack-max-addresses", DefaultAddresses,
		"the `number` of addresses and prefixes of an interface and family; Neutron has no such limit")
	fs.IntVar(&c.PrefixBits[0], "openstack-prefix-length-ipv4", DefaultPrefix4,
		"the `length` of IPv4 prefixes for machines, 24 to 31; negative: none")
	fs.IntVar(&c.PrefixBits[1], "openstack-prefix-length-ipv6", DefaultPrefix6,
		"the `length` of IPv6 prefixes for machines, 65 to 127, the same for all users of a subnet; negative: none")
	fs.StringVar(&c.Endpoint, "openstack-endpoint", "",
		"the `URL` of a Neutron without authentication, for tests")
	fs.BoolVar(&c.AttachByNeutron, "openstack-attach-by-neutron", false,
		"set the device of new ports instead of asking Nova to attach them, for machines that are not Nova's")
	fs.StringVar(&c.ConfigDrive, "openstack-config-drive", "",
		"the `folder` of the machine's mounted config drive (default: the metadata service says which machine it is)")
	fs.StringVar(&c.MetadataURL, "openstack-metadata-url", DefaultMetadataURL,
		"the `URL` of the machine's metadata")
}

// Open returns the Cloud that the flags describe. All of its requests pass one budget, whose
// metrics are the collector.
func (o *Options) Open(
	ctx context.Context,
	log *slog.Logger,
	qps float64,
	burst int,
) (*Cloud, prometheus.Collector, error) {
	c := o.config
	for flag, n := range map[string]int{
		"max-interfaces": c.MaxInterfaces, "max-addresses": c.MaxAddresses,
		"prefix-length-ipv4": c.PrefixBits[0], "prefix-length-ipv6": c.PrefixBits[1],
	} {
		if n == 0 { // of a Config it means the default
			return nil, nil, fmt.Errorf(
				"--openstack-%s=0: want another number, or remove the flag for the default",
				flag,
			)
		}
	}
	for _, text := range o.vpc {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, nil, fmt.Errorf(
				"--openstack-vpc-cidrs: parse %q: want address/prefix-length, such as 10.0.0.0/8",
				text,
			)
		}
		c.VPC = append(c.VPC, p.Masked())
	}
	c.Log = log
	c.Budget = budget.New(budget.Config{Cloud: Name, QPS: qps, Burst: burst})
	opened, err := New(ctx, c)
	return opened, c.Budget, err
}
