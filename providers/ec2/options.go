// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
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
}

// Flags defines the flags. Region and credentials may come from the environment, a profile or
// the machine, as with every program of AWS.
func (o *Options) Flags(fs *pflag.FlagSet) {
	c := &o.config
	fs.StringVar(&c.Cluster, "ec2-cluster", "",
		"the `name` of the cluster, which interfaces get in the tag "+TagCluster+
			"; interfaces with another name are never deleted (required)")
	fs.StringVar(&c.Region, "ec2-region", "", "the `region`; empty: AWS_REGION, the profile's, or the machine's")
	fs.StringVar(
		&c.Endpoint,
		"ec2-endpoint",
		"",
		"the `URL` of EC2, such as that of a VPC endpoint; empty: the region's",
	)
	fs.StringVar(
		&c.VPC,
		"ec2-vpc",
		"",
		"the `ID` of the VPC of the machines; empty: that of the machines with --ec2-instance-tags",
	)
	fs.Var(
		tags{&c.InstanceTags},
		"ec2-instance-tags",
		"the `tags` (KEY=VALUE,...) that select machines; an empty value means any "+
			"(default kubernetes.io/cluster/NAME=, or none with --ec2-vpc)",
	)
	fs.Var(tags{&c.SubnetTags}, "ec2-subnet-tags",
		"the `tags` of the subnets for new interfaces (default: the subnets of the machines' first interfaces)")
	fs.Var(tags{&c.SecurityGroupTags}, "ec2-security-group-tags",
		"the `tags` of the security groups of new interfaces (default: those of the machine's first interface)")
	fs.Var(
		limits{&c.Limits},
		"ec2-instance-limits",
		"the limits of an instance type that EC2 does not describe, as `TYPE=INTERFACES:IPV4:IPV6` "+
			"with the addresses of one interface, such as m5.large=3:10:10; may be repeated",
	)
}

// Open returns the Cloud that the flags describe. All of its requests to EC2 pass one budget,
// the metrics of which are the collector.
func (o *Options) Open(
	ctx context.Context,
	log *slog.Logger,
	qps float64,
	burst int,
) (*Cloud, prometheus.Collector, error) {
	c := o.config
	if c.Cluster == "" {
		return nil, nil, errors.New("open EC2: --ec2-cluster is empty: want the name of the cluster, such as prod")
	}
	all := budget.New(budget.Config{Cloud: Name, QPS: qps, Burst: burst})
	c.Log = log
	c.Transport = all.Transport(
		nil,
		func(r *http.Request) string { return awsmiddleware.GetOperationName(r.Context()) },
	)
	opened, err := New(ctx, c)
	return opened, all, err
}

// tags is the value of a flag with tags. Its zero value has an empty text, as the standard
// library's package flag requires.
type tags struct{ to *map[string]string }

func (v tags) Type() string { return "tags" }

func (v tags) String() string {
	if v.to == nil {
		return ""
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(*v.to)) {
		all = append(all, key+"="+(*v.to)[key])
	}
	return strings.Join(all, ",")
}

// Set adds tags.
func (v tags) Set(text string) error {
	all := maps.Clone(*v.to)
	if all == nil {
		all = map[string]string{}
	}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" {
			return fmt.Errorf("parse tag %q: want KEY=VALUE, or KEY= for any value", part)
		}
		all[key] = value
	}
	*v.to = all
	return nil
}

// limits is the value of --ec2-instance-limits.
type limits struct{ to *map[string]cloud.Limits }

func (v limits) Type() string { return "limits" }

func (v limits) String() string {
	if v.to == nil {
		return ""
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(*v.to)) {
		l := (*v.to)[name]
		all = append(all, fmt.Sprintf("%s=%d:%d:%d", name, l.Interfaces, l.Addresses[0]+1, l.Addresses[1]+1))
	}
	return strings.Join(all, ",")
}

// Set adds the limits of a type.
func (v limits) Set(text string) error {
	all := maps.Clone(*v.to)
	if all == nil {
		all = map[string]cloud.Limits{}
	}
	for part := range strings.SplitSeq(text, ",") {
		name, numbers, ok := strings.Cut(part, "=")
		parts := strings.Split(numbers, ":")
		var n [3]int
		ok = ok && name != "" && len(parts) == len(n)
		for i := 0; ok && i < len(n); i++ {
			value, err := strconv.Atoi(parts[i])
			n[i], ok = value, err == nil && value >= 0
		}
		if !ok || n[0] < 1 || n[1] < 1 {
			return fmt.Errorf("parse limits %q: want TYPE=INTERFACES:IPV4:IPV6, such as m5.large=3:10:10", part)
		}
		all[name] = cloud.Limits{
			Interfaces: n[0],
			Addresses:  [2]int{n[1] - 1, max(n[2]-1, 0)},
			PrefixBits: [2]int{prefixBits4, prefixBits6},
		}
	}
	*v.to = all
	return nil
}
