// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud"
)

// The lengths of EC2's prefixes.
const (
	prefixBits4 = 28
	prefixBits6 = 80
)

// typeLimits holds the limits of an instance type, or the time at which EC2 did not know it.
type typeLimits struct {
	limits  cloud.Limits
	unknown time.Time
}

const (
	unknownAge  = 10 * time.Minute // after which EC2 is asked again for a type that it did not know
	typesAtOnce = 100              // that one request describes
)

// unknownTypeError names an instance type without limits.
type unknownTypeError string

func (e unknownTypeError) Error() string {
	return fmt.Sprintf("EC2 does not describe the instance type %q: "+
		"set --ec2-instance-limits=%s=INTERFACES:IPV4:IPV6, the addresses of one interface with its own one",
		string(e), string(e))
}

// learnTypes reads the limits of types that are not known yet.
func (c *Cloud) learnTypes(ctx context.Context, wanted map[string]bool) error {
	for names := range slices.Chunk(c.missingTypes(wanted), typesAtOnce) {
		err := c.describeTypes(ctx, names)
		if code(err) == codeInstanceType { // EC2 describes all of them or none
			err = nil
			for i := 0; i < len(names) && err == nil; i++ {
				err = c.describeTypes(ctx, names[i:i+1])
			}
		}
		if err != nil {
			return fmt.Errorf("describe instance types %v: %w", names, explain(err))
		}
	}
	return nil
}

// missingTypes returns the types that EC2 must be asked for.
func (c *Cloud) missingTypes(wanted map[string]bool) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		_, configured := c.config.Limits[name]
		known, asked := c.types[name]
		if configured || asked && (known.unknown.IsZero() || c.config.Now().Sub(known.unknown) < unknownAge) {
			continue
		}
		names = append(names, name)
	}
	return names
}

// describeTypes reads the limits of types and keeps them. A single type that EC2 does not know
// is kept as unknown.
func (c *Cloud) describeTypes(ctx context.Context, names []string) error {
	in := &ec2.DescribeInstanceTypesInput{}
	for _, name := range names {
		in.InstanceTypes = append(in.InstanceTypes, types.InstanceType(name))
	}
	found := map[string]typeLimits{}
	pages := ec2.NewDescribeInstanceTypesPaginator(c.ec2, in)
	for pages.HasMorePages() {
		page, err := page(ctx, c, pages.NextPage)
		if code(err) == codeInstanceType && len(names) == 1 {
			break
		}
		if err != nil {
			return err
		}
		for _, info := range page.InstanceTypes {
			found[string(info.InstanceType)] = typeLimits{limits: convertLimits(info)}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if limits, ok := found[name]; ok {
			c.types[name] = limits
		} else {
			c.types[name] = typeLimits{unknown: c.config.Now()}
		}
	}
	return nil
}

// limitsOf returns the limits of a type that learnTypes has read.
func (c *Cloud) limitsOf(name string) (cloud.Limits, error) {
	if limits, ok := c.config.Limits[name]; ok {
		return limits, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.types[name]
	if !ok || !known.unknown.IsZero() {
		return cloud.Limits{}, unknownTypeError(name)
	}
	return known.limits, nil
}

// convertLimits returns the limits of a type. Of several network cards the first one counts.
func convertLimits(info types.InstanceTypeInfo) cloud.Limits {
	n := info.NetworkInfo
	if n == nil {
		return cloud.Limits{}
	}
	limits := cloud.Limits{Interfaces: int(aws.ToInt32(n.MaximumNetworkInterfaces))}
	for _, card := range n.NetworkCards {
		if aws.ToInt32(card.NetworkCardIndex) == 0 && card.MaximumNetworkInterfaces != nil {
			limits.Interfaces = int(*card.MaximumNetworkInterfaces)
		}
	}
	limits.Addresses[0] = max(int(aws.ToInt32(n.Ipv4AddressesPerInterface))-1, 0)
	if aws.ToBool(n.Ipv6Supported) {
		limits.Addresses[1] = max(int(aws.ToInt32(n.Ipv6AddressesPerInterface))-1, 0)
	}
	if info.Hypervisor == types.InstanceTypeHypervisorNitro || aws.ToBool(info.BareMetal) {
		limits.PrefixBits = [2]int{prefixBits4, prefixBits6}
	}
	return limits
}
