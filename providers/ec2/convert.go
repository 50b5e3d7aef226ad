// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud"
)

// facts holds the properties of an interface that never change.
type facts struct {
	subnet string
	owned  bool
	own    netip.Addr // its own IPv4 address
	own6   bool       // EC2 marks one of its IPv6 addresses as its own
}

// convert returns an interface in the form of package cloud.
func (c *Cloud) convert(n types.NetworkInterface) (*cloud.Interface, error) {
	tags := tagMap(n.TagSet)
	i := &cloud.Interface{
		ID:      aws.ToString(n.NetworkInterfaceId),
		MAC:     aws.ToString(n.MacAddress),
		Subnet:  aws.ToString(n.SubnetId),
		Trunk:   n.InterfaceType == types.NetworkInterfaceTypeTrunk,
		EFA:     n.InterfaceType == types.NetworkInterfaceTypeEfa || n.InterfaceType == types.NetworkInterfaceTypeEfaOnly,
		Owned:   c.owned(tags),
		Created: created(tags),
		Exclude: unmanaged(tags),
	}
	if a := n.Attachment; a != nil {
		i.Device = int(aws.ToInt32(a.DeviceIndex))
		if i.Created.IsZero() {
			i.Created = aws.ToTime(a.AttachTime)
		}
		// Addresses of an interface on a further network card are not assigned here: a device number
		// identifies an interface only together with its card.
		i.Exclude = i.Exclude || aws.ToInt32(a.NetworkCardIndex) != 0 || a.Status == types.AttachmentStatusDetaching
	}
	switch n.InterfaceType {
	case "", types.NetworkInterfaceTypeInterface, types.NetworkInterfaceTypeTrunk, types.NetworkInterfaceTypeEfa:
	default:
		i.Exclude = true // of a load balancer, or without IP
	}
	blocks, err := convertBlocks(n, i.Subnet, i.Owned)
	if err != nil {
		return nil, fmt.Errorf("read interface %s: %w", i.ID, err)
	}
	i.Blocks = blocks
	return i, nil
}

// owned reports whether CreateInterface of this cluster has created an interface.
func (c *Cloud) owned(tags map[string]string) bool {
	return tags[TagCluster] == c.config.Cluster && tags[TagInstance] != ""
}

// convertBlocks returns the addresses and prefixes of an interface.
func convertBlocks(n types.NetworkInterface, subnet string, owned bool) ([]cloud.Block, error) {
	var all []cloud.Block
	add := func(text *string, primary bool) error {
		p, err := parseBlock(aws.ToString(text))
		if err != nil {
			return err
		}
		all = append(all, cloud.Block{Prefix: p, Subnet: subnet, Primary: primary})
		return nil
	}
	for _, a := range n.PrivateIpAddresses {
		primary := aws.ToBool(a.Primary) || aws.ToString(a.PrivateIpAddress) == aws.ToString(n.PrivateIpAddress)
		if err := add(a.PrivateIpAddress, primary); err != nil {
			return nil, err
		}
	}
	for _, p := range n.Ipv4Prefixes {
		if err := add(p.Ipv4Prefix, false); err != nil {
			return nil, err
		}
	}
	// EC2 does not tell which IPv6 address the machine itself uses, unless one is marked. Without
	// a mark all of them count as the machine's own on an interface that it started with.
	unmarked := !owned && !marked(n)
	for _, a := range n.Ipv6Addresses {
		if err := add(a.Ipv6Address, aws.ToBool(a.IsPrimaryIpv6) || unmarked); err != nil {
			return nil, err
		}
	}
	for _, p := range n.Ipv6Prefixes {
		if err := add(p.Ipv6Prefix, false); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// marked reports whether EC2 marks an IPv6 address as the interface's own.
func marked(n types.NetworkInterface) bool {
	return slices.ContainsFunc(n.Ipv6Addresses, func(a types.NetworkInterfaceIpv6Address) bool {
		return aws.ToBool(a.IsPrimaryIpv6)
	})
}

// parseBlock reads an address or a prefix.
func parseBlock(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("parse %q of EC2: want an address or a prefix", text)
	}
	return p.Masked(), nil
}

// remember keeps the facts of interfaces.
func (c *Cloud) remember(all ...types.NetworkInterface) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.facts)+len(all) > maxFacts {
		clear(c.facts) // interfaces that are gone; the others are read again
	}
	for _, n := range all {
		own, _ := netip.ParseAddr(aws.ToString(n.PrivateIpAddress))
		c.facts[aws.ToString(n.NetworkInterfaceId)] = facts{
			subnet: aws.ToString(n.SubnetId),
			owned:  c.owned(tagMap(n.TagSet)),
			own:    own,
			own6:   marked(n),
		}
	}
}

// maxFacts bounds the memory of interfaces: some megabytes.
const maxFacts = 50000

// convertSubnet returns a subnet in the form of package cloud.
func convertSubnet(s types.Subnet, vpc []netip.Prefix) (*cloud.Subnet, error) {
	subnet := &cloud.Subnet{
		ID:   aws.ToString(s.SubnetId),
		Zone: aws.ToString(s.AvailabilityZone),
		VPC:  vpc,
		Free: -1,
		Tags: tagMap(s.Tags),
	}
	if text := aws.ToString(s.CidrBlock); text != "" {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read subnet %s: parse %q of EC2: want a prefix", subnet.ID, text)
		}
		subnet.Ranges = append(subnet.Ranges, cloud.Range{CIDR: p.Masked(), Gateway: p.Masked().Addr().Next()})
		if s.AvailableIpAddressCount != nil {
			subnet.Free = int(*s.AvailableIpAddressCount)
		}
	}
	for _, a := range s.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State != types.SubnetCidrBlockStateCodeAssociated {
			continue
		}
		p, err := netip.ParsePrefix(aws.ToString(a.Ipv6CidrBlock))
		if err != nil {
			return nil, fmt.Errorf("read subnet %s: parse %q of EC2: want a prefix", subnet.ID, aws.ToString(a.Ipv6CidrBlock))
		}
		subnet.Ranges = append(subnet.Ranges, cloud.Range{CIDR: p.Masked(), Gateway: gateway6()})
		break // a subnet has one
	}
	return subnet, nil
}

// gateway6 returns the address at which every subnet of EC2 has its IPv6 router.
func gateway6() netip.Addr { return netip.MustParseAddr("fe80:ec2::1") }
