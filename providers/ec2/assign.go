// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud"
)

// Assign implements cloud.Cloud. EC2 assigns all or nothing, and takes them from the
// interface's own subnet. If there is no room for all, Assign asks for one.
func (c *Cloud) Assign(ctx context.Context, instance, iface string, want cloud.Want) ([]cloud.Block, error) {
	fail := func(err error) ([]cloud.Block, error) {
		return nil, fmt.Errorf("assign %s to interface %s of machine %s: %w", describe(want), iface, instance, err)
	}
	if want.Count <= 0 {
		return fail(fmt.Errorf("count %d: want at least 1", want.Count))
	}
	f, err := c.factsOf(ctx, iface)
	if err != nil {
		return fail(explain(err))
	}
	if want.Subnet != "" && want.Subnet != f.subnet {
		return fail(fmt.Errorf("%w: the interface is in subnet %s, and EC2 assigns addresses of that one only: "+
			"want another interface for subnet %s", cloud.ErrFull, f.subnet, want.Subnet))
	}
	if want.IPv6 && !want.Prefixes && !f.told6 {
		if err := c.tellOwnIPv6(ctx, iface); err != nil {
			return fail(err)
		}
	}
	texts, err := c.assign(ctx, iface, want)
	if errors.Is(explain(err), cloud.ErrFull) && want.Count > 1 {
		want.Count = 1
		texts, err = c.assign(ctx, iface, want)
	}
	if err != nil {
		return fail(explain(err))
	}
	var blocks []cloud.Block
	for _, text := range texts {
		p, err := parseBlock(text)
		if err != nil {
			return fail(err)
		}
		blocks = append(blocks, cloud.Block{Prefix: p, Subnet: f.subnet})
	}
	if len(blocks) == 0 {
		return fail(errors.New("EC2 has assigned none and reported no error"))
	}
	return blocks, nil
}

// tellOwnIPv6 writes the tag with the IPv6 addresses that an interface has before the first
// one for pods is assigned.
func (c *Cloud) tellOwnIPv6(ctx context.Context, iface string) error {
	n, err := c.iface(ctx, iface)
	if err != nil {
		return explain(err)
	}
	if _, told := c.ownIPv6(n); told {
		return nil
	}
	var own []netip.Addr
	var texts []string
	for _, a := range n.Ipv6Addresses {
		address, err := netip.ParseAddr(aws.ToString(a.Ipv6Address))
		if err != nil {
			return fmt.Errorf("parse %q of EC2: want an address", aws.ToString(a.Ipv6Address))
		}
		own, texts = append(own, address), append(texts, address.String())
	}
	value := strings.Join(texts, " ")
	if len(value) > maxTagValue {
		return fmt.Errorf("%w: the machine itself has %d IPv6 addresses, too many for the tag %s: "+
			"want prefixes, or the addresses of another interface", cloud.ErrFull, len(own), TagOwnIPv6)
	}
	_, err = c.ec2.CreateTags(ctx, &ec2.CreateTagsInput{
		Resources: []string{iface},
		Tags:      []types.Tag{{Key: aws.String(TagOwnIPv6), Value: &value}},
	})
	if err != nil {
		return fmt.Errorf("tag the machine's own IPv6 addresses: %w", explain(err))
	}
	f, err := c.factsOf(ctx, iface)
	if err != nil {
		return explain(err)
	}
	f.own6, f.told6 = own, true
	c.keep(iface, f)
	return nil
}

// maxTagValue is the length of a tag's value in EC2.
const maxTagValue = 256

// describe returns a request in words.
func describe(want cloud.Want) string {
	family, unit := "IPv4", "addresses"
	if want.IPv6 {
		family = "IPv6"
	}
	if want.Prefixes {
		unit = "prefixes"
	}
	return fmt.Sprintf("%d %s %s", want.Count, family, unit)
}

// assign sends the request of Assign and returns EC2's answer.
func (c *Cloud) assign(ctx context.Context, iface string, want cloud.Want) (texts []string, err error) {
	count := aws.Int32(int32(want.Count))
	if want.IPv6 {
		in := &ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &iface}
		if want.Prefixes {
			in.Ipv6PrefixCount = count
		} else {
			in.Ipv6AddressCount = count
		}
		answer, err := c.ec2.AssignIpv6Addresses(ctx, in)
		if err != nil {
			return nil, err
		}
		return append(answer.AssignedIpv6Addresses, answer.AssignedIpv6Prefixes...), nil
	}
	in := &ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &iface}
	if want.Prefixes {
		in.Ipv4PrefixCount = count
	} else {
		in.SecondaryPrivateIpAddressCount = count
	}
	answer, err := c.ec2.AssignPrivateIpAddresses(ctx, in)
	if err != nil {
		return nil, err
	}
	for _, a := range answer.AssignedPrivateIpAddresses {
		texts = append(texts, aws.ToString(a.PrivateIpAddress))
	}
	for _, p := range answer.AssignedIpv4Prefixes {
		texts = append(texts, aws.ToString(p.Ipv4Prefix))
	}
	return texts, nil
}

// factsOf returns the facts of an interface, which it reads if they are not kept.
func (c *Cloud) factsOf(ctx context.Context, iface string) (facts, error) {
	c.mu.Lock()
	f, ok := c.facts[iface]
	c.mu.Unlock()
	if ok {
		return f, nil
	}
	if _, err := c.iface(ctx, iface); err != nil {
		return facts{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts[iface], nil
}

// Unassign implements cloud.Cloud.
func (c *Cloud) Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error {
	fail := func(err error) error {
		return fmt.Errorf("unassign %v from interface %s of machine %s: %w", blocks, iface, instance, err)
	}
	if len(blocks) == 0 {
		return nil
	}
	f, err := c.factsOf(ctx, iface)
	if code(err) == codeInterfaceNotFound {
		return nil
	}
	if err != nil {
		return fail(explain(err))
	}
	left := blocks
	for _, b := range blocks {
		if a := b.Addr(); b.IsSingleIP() && (a == f.own || a.Is6() && (!f.told6 || slices.Contains(f.own6, a))) {
			return fail(fmt.Errorf("%s is the interface's own address", a))
		}
	}
	err = c.unassign(ctx, iface, left)
	if notAssigned(err) && len(left) > 1 { // one of them is not there, and EC2 has removed none
		if left, err = c.assigned(ctx, iface, left); err != nil {
			return fail(err)
		}
		err = c.unassign(ctx, iface, left)
	}
	if notAssigned(err) { // the reading has shown addresses that are gone
		err = c.unassignEach(ctx, iface, left)
	}
	if code(err) == codeInterfaceNotFound {
		return nil
	}
	if err != nil {
		return fail(explain(err))
	}
	return nil
}

// notAssigned reports whether EC2 has refused to remove an address because it is not there.
func notAssigned(err error) bool {
	return code(err) == codeParameterValue && strings.Contains(err.Error(), "not assigned")
}

// unassignEach removes blocks one by one. A block that is not there is no error.
func (c *Cloud) unassignEach(ctx context.Context, iface string, blocks []netip.Prefix) error {
	for i := range blocks {
		if err := c.unassign(ctx, iface, blocks[i:i+1]); err != nil && !notAssigned(err) {
			return err
		}
	}
	return nil
}

// assigned returns the blocks that an interface has, and an error if one is its own address.
func (c *Cloud) assigned(ctx context.Context, iface string, blocks []netip.Prefix) (left []netip.Prefix, err error) {
	n, err := c.iface(ctx, iface)
	if code(err) == codeInterfaceNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err)
	}
	now, err := c.convert(n)
	if err != nil {
		return nil, err
	}
	for _, b := range now.Blocks {
		if !slices.Contains(blocks, b.Prefix) {
			continue
		}
		if b.Primary {
			return nil, fmt.Errorf("%s is the interface's own address", b.Prefix.Addr())
		}
		left = append(left, b.Prefix)
	}
	return left, nil
}

// unassign sends the requests of Unassign: one for each family and kind that there is.
func (c *Cloud) unassign(ctx context.Context, iface string, blocks []netip.Prefix) error {
	var v4, v4Prefixes, v6, v6Prefixes []string
	for _, b := range blocks {
		switch {
		case b.Addr().Is4() && b.IsSingleIP():
			v4 = append(v4, b.Addr().String())
		case b.Addr().Is4():
			v4Prefixes = append(v4Prefixes, b.String())
		case b.IsSingleIP():
			v6 = append(v6, b.Addr().String())
		default:
			v6Prefixes = append(v6Prefixes, b.String())
		}
	}
	for _, in := range []*ec2.UnassignPrivateIpAddressesInput{
		{NetworkInterfaceId: &iface, PrivateIpAddresses: v4},
		{NetworkInterfaceId: &iface, Ipv4Prefixes: v4Prefixes},
	} {
		if len(in.PrivateIpAddresses)+len(in.Ipv4Prefixes) == 0 {
			continue
		}
		if _, err := c.ec2.UnassignPrivateIpAddresses(ctx, in); err != nil {
			return err
		}
	}
	for _, in := range []*ec2.UnassignIpv6AddressesInput{
		{NetworkInterfaceId: &iface, Ipv6Addresses: v6},
		{NetworkInterfaceId: &iface, Ipv6Prefixes: v6Prefixes},
	} {
		if len(in.Ipv6Addresses)+len(in.Ipv6Prefixes) == 0 {
			continue
		}
		if _, err := c.ec2.UnassignIpv6Addresses(ctx, in); err != nil {
			return err
		}
	}
	return nil
}

// tagSpecification returns the tags of a new interface.
func (c *Cloud) tagSpecification(instance, at string) types.TagSpecification {
	return types.TagSpecification{
		ResourceType: types.ResourceTypeNetworkInterface,
		Tags: []types.Tag{
			{Key: aws.String(TagCluster), Value: &c.config.Cluster},
			{Key: aws.String(TagInstance), Value: &instance},
			{Key: aws.String(TagCreated), Value: &at},
		},
	}
}
