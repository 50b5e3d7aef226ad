// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud"
)

// facts holds the properties of an interface that never change.
type facts struct {
	subnet string
	own    netip.Addr   // its own IPv4 address
	own6   []netip.Addr // its own IPv6 addresses, if told6
	told6  bool         // EC2 marks one as its own, or TagOwnIPv6 has them
}

// convert returns an interface in the form of package cloud.
func (c *Cloud) convert(n types.NetworkInterface) (*cloud.Interface, error) {
	tags := tagMap(n.TagSet)
	i := &cloud.Interface{
		ID:     aws.ToString(n.NetworkInterfaceId),
		MAC:    aws.ToString(n.MacAddress),
		Subnet: aws.ToString(n.SubnetId),
		Trunk:  n.InterfaceType == types.NetworkInterfaceTypeTrunk,
		EFA: n.InterfaceType == types.NetworkInterfaceTypeEfa ||
			n.InterfaceType == types.NetworkInterfaceTypeEfaOnly,
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
	own6, told := c.ownIPv6(n)
	blocks, err := convertBlocks(n, i.Subnet, func(a netip.Addr) bool { return !told || slices.Contains(own6, a) })
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

// convertBlocks returns the addresses and prefixes of an interface. own reports whether an IPv6
// address is the interface's own.
func convertBlocks(n types.NetworkInterface, subnet string, own func(netip.Addr) bool) ([]cloud.Block, error) {
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
	for _, a := range n.Ipv6Addresses {
		address, err := netip.ParseAddr(aws.ToString(a.Ipv6Address))
		if err != nil {
			return nil, fmt.Errorf("parse %q of EC2: want an address", aws.ToString(a.Ipv6Address))
		}
		all = append(all, cloud.Block{Prefix: netip.PrefixFrom(address, 128), Subnet: subnet, Primary: own(address)})
	}
	for _, p := range n.Ipv6Prefixes {
		if err := add(p.Ipv6Prefix, false); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ownIPv6 returns an interface's own IPv6 addresses. Without an answer all of its IPv6
// addresses may be the machine's own.
func (c *Cloud) ownIPv6(n types.NetworkInterface) (own []netip.Addr, told bool) {
	tags := tagMap(n.TagSet)
	for _, a := range n.Ipv6Addresses {
		if address, err := netip.ParseAddr(aws.ToString(a.Ipv6Address)); err == nil && aws.ToBool(a.IsPrimaryIpv6) {
			own, told = append(own, address), true
		}
	}
	if text, ok := tags[TagOwnIPv6]; ok {
		told = true
		for word := range strings.FieldsSeq(text) {
			if address, err := netip.ParseAddr(word); err == nil {
				own = append(own, address)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.facts[aws.ToString(n.NetworkInterfaceId)]; !told && f.told6 { // a reading from before the tag
		return f.own6, true
	}
	return own, told || c.owned(tags)
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
	for _, n := range all {
		own, _ := netip.ParseAddr(aws.ToString(n.PrivateIpAddress))
		f := facts{subnet: aws.ToString(n.SubnetId), own: own}
		f.own6, f.told6 = c.ownIPv6(n)
		c.keep(aws.ToString(n.NetworkInterfaceId), f)
		c.keepFirst(n)
	}
}

// firstInterface holds what new interfaces of a machine have from its first one.
type firstInterface struct {
	vpc    string
	groups []string
}

// keepFirst keeps an interface if it is the first one of a machine.
func (c *Cloud) keepFirst(n types.NetworkInterface) {
	a := n.Attachment
	if a == nil || a.InstanceId == nil || aws.ToInt32(a.DeviceIndex) != 0 || aws.ToInt32(a.NetworkCardIndex) != 0 {
		return
	}
	first := firstInterface{vpc: aws.ToString(n.VpcId)}
	for _, g := range n.Groups {
		first.groups = append(first.groups, aws.ToString(g.GroupId))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.firsts) >= maxFacts {
		clear(c.firsts)
	}
	c.firsts[*a.InstanceId] = first
}

// firstOf returns the first interface of a machine, as the last reading showed it.
func (c *Cloud) firstOf(instance string) (first firstInterface, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, known = c.firsts[instance]
	return first, known
}

// keep keeps the facts of an interface.
func (c *Cloud) keep(id string, f facts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.facts) >= maxFacts {
		clear(c.facts) // most are of interfaces that are gone; the others are read again
	}
	c.facts[id] = f
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
			return nil, fmt.Errorf(
				"read subnet %s: parse %q of EC2: want a prefix",
				subnet.ID,
				aws.ToString(a.Ipv6CidrBlock),
			)
		}
		subnet.Ranges = append(subnet.Ranges, cloud.Range{CIDR: p.Masked(), Gateway: gateway6()})
		break // a subnet has one
	}
	return subnet, nil
}

// gateway6 returns the address at which every subnet of EC2 has its IPv6 router.
func gateway6() netip.Addr { return netip.MustParseAddr("fe80:ec2::1") }
