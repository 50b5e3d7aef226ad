// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/cloud/budget"
)

// Name is the name of this provider in flags, messages and metrics.
const Name = "ec2"

// Help is one line about the provider for --help.
const Help = "network interfaces of Amazon EC2 with their secondary addresses; " +
	"prefixes (/28, /80) work, but are not tested against EC2"

// Options holds the flags of a program with this provider.
type Options struct {
	config Config
	limits []string
}

// Flags defines the flags. Region and credentials may come from the environment, a profile or
// the machine, as with every program of AWS.
func (o *Options) Flags(fs *pflag.FlagSet) {
	c := &o.config
	fs.StringVar(&c.Cluster, "ec2-cluster", "",
		"the `name` of the cluster, which interfaces get in the tag "+TagCluster+
			"; interfaces with another name are never deleted (required)")
	fs.StringVar(&c.Region, "ec2-region", "", "the `region`; empty: AWS_REGION, the profile's, or the machine's")
	fs.StringVar(&c.Endpoint, "ec2-endpoint", "", "the `URL` of EC2, such as that of a VPC endpoint; empty: the region's")
	fs.StringVar(&c.VPC, "ec2-vpc", "", "the `ID` of the VPC of the machines; empty: that of the machines with --ec2-instance-tags")
	fs.StringToStringVar(&c.InstanceTags, "ec2-instance-tags", nil,
		"the tags that select machines; an empty value means any (default kubernetes.io/cluster/NAME=, or none with --ec2-vpc)")
	fs.StringToStringVar(&c.SubnetTags, "ec2-subnet-tags", nil,
		"the tags of the subnets for new interfaces (default: the subnets of the machines' first interfaces)")
	fs.StringToStringVar(&c.SecurityGroupTags, "ec2-security-group-tags", nil,
		"the tags of the security groups of new interfaces (default: those of the machine's first interface)")
	fs.StringSliceVar(&o.limits, "ec2-instance-limits", nil,
		"the limits of instance types that EC2 does not describe, as `TYPE=INTERFACES:IPV4:IPV6`, "+
			"with the addresses of one interface: m5.large=3:10:10")
}

// Open returns the Cloud that the flags describe. All of its requests to EC2 pass one budget,
// the metrics of which are the collector.
func (o *Options) Open(ctx context.Context, log *slog.Logger, qps float64, burst int) (*Cloud, prometheus.Collector, error) {
	c := o.config
	if c.Cluster == "" {
		return nil, nil, errors.New("open EC2: --ec2-cluster is empty: want the name of the cluster, such as prod")
	}
	limits, err := parseLimits(o.limits)
	if err != nil {
		return nil, nil, err
	}
	all := budget.New(budget.Config{Cloud: Name, QPS: qps, Burst: burst})
	c.Limits, c.Log = limits, log
	c.Transport = all.Transport(nil, func(r *http.Request) string { return awsmiddleware.GetOperationName(r.Context()) })
	opened, err := New(ctx, c)
	return opened, all, err
}

// parseLimits reads the values of --ec2-instance-limits.
func parseLimits(texts []string) (map[string]cloud.Limits, error) {
	all := map[string]cloud.Limits{}
	for _, text := range texts {
		name, numbers, ok := strings.Cut(text, "=")
		parts := strings.Split(numbers, ":")
		var n [3]int
		ok = ok && name != "" && len(parts) == len(n)
		for i := 0; ok && i < len(n); i++ {
			value, err := strconv.Atoi(parts[i])
			n[i], ok = value, err == nil && value >= 0
		}
		if !ok || n[0] < 1 {
			return nil, fmt.Errorf("parse --ec2-instance-limits %q: want TYPE=INTERFACES:IPV4:IPV6, such as m5.large=3:10:10", text)
		}
		all[name] = cloud.Limits{
			Interfaces: n[0],
			Addresses:  [2]int{max(n[1]-1, 0), max(n[2]-1, 0)},
			PrefixBits: [2]int{prefixBits4, prefixBits6},
		}
	}
	return all, nil
}
