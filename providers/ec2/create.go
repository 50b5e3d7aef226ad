// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud"
)

// groupAge is the time after which security groups are read again.
const groupAge = 10 * time.Minute

// CreateInterface implements cloud.Cloud: it creates the interface with its tags and
// addresses, attaches it, and lets it end with its machine. If a step fails it removes the
// interface; DeleteOrphans removes it later if that fails too.
func (c *Cloud) CreateInterface(
	ctx context.Context,
	instance string,
	want cloud.NewInterface,
) (*cloud.Interface, error) {
	fail := func(err error) (*cloud.Interface, error) {
		return nil, fmt.Errorf("create an interface with %s in subnet %s for machine %s: %w",
			describe(want.Want), want.Subnet, instance, err)
	}
	if want.Subnet == "" || want.Count < 0 {
		return fail(fmt.Errorf("subnet %q, count %d: want a subnet's ID and a count from 0", want.Subnet, want.Count))
	}
	first, device, err := c.place(ctx, instance, want.Device)
	if err != nil {
		return fail(explain(err))
	}
	groups, err := c.securityGroups(ctx, first)
	if err != nil {
		return fail(explain(err))
	}
	created, err := c.create(ctx, instance, want, groups)
	if errors.Is(explain(err), cloud.ErrFull) && want.Count > 1 {
		want.Count = 1
		created, err = c.create(ctx, instance, want, groups)
	}
	if err != nil {
		return fail(explain(err))
	}
	iface, err := c.use(ctx, instance, created, device)
	if err == nil {
		return iface, nil
	}
	id := aws.ToString(created.NetworkInterfaceId)
	err = fmt.Errorf("attach interface %s: %w", id, explain(err))
	cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.CleanUpTimeout)
	defer cancel()
	if removed := c.remove(cleanUp, id); removed != nil {
		// It has the tags of an orphan, so it is deleted later.
		c.config.Log.Warn("interface remains as an orphan", "interface", id, "instance", instance, "err", removed)
		err = fmt.Errorf("%w; and remove it: %w", err, explain(removed))
	}
	return fail(err)
}

// place returns the first interface of a machine and the device number of a new one. It asks EC2
// only for what neither the caller nor an earlier reading says: if the wanted number is taken,
// attach finds another one.
func (c *Cloud) place(ctx context.Context, instance string, wanted int) (firstInterface, int, error) {
	if first, known := c.firstOf(instance); known && wanted > 0 {
		return first, wanted, nil
	}
	attached, err := c.interfaces(ctx, filter("attachment.instance-id", instance))
	if err != nil {
		return firstInterface{}, 0, err
	}
	if len(attached) == 0 {
		return firstInterface{}, 0, fmt.Errorf("%w, or does not show its interfaces yet", cloud.ErrNoInstance)
	}
	first, known := c.firstOf(instance)
	if !known {
		return firstInterface{}, 0, errors.New("the machine does not show its first interface yet")
	}
	return first, freeDevice(attached, wanted), nil
}

// freeDevice returns the wanted device number if it is free, or else the lowest free one.
func freeDevice(attached []types.NetworkInterface, wanted int) int {
	used := map[int]bool{0: true}
	for _, n := range attached {
		if n.Attachment != nil && aws.ToInt32(n.Attachment.NetworkCardIndex) == 0 {
			used[int(aws.ToInt32(n.Attachment.DeviceIndex))] = true
		}
	}
	if wanted > 0 && !used[wanted] {
		return wanted
	}
	device := 1
	for used[device] {
		device++
	}
	return device
}

// create sends CreateNetworkInterface. A lost answer is asked for again with the same token,
// for which EC2 creates one interface only.
func (c *Cloud) create(
	ctx context.Context,
	instance string,
	want cloud.NewInterface,
	groups []string,
) (types.NetworkInterface, error) {
	in := &ec2.CreateNetworkInterfaceInput{
		SubnetId:    &want.Subnet,
		ClientToken: aws.String(c.config.Token()),
		Description: aws.String("Cadastre, cluster " + c.config.Cluster + ", machine " + instance),
		Groups:      groups,
		TagSpecifications: []types.TagSpecification{
			c.tagSpecification(instance, c.config.Now().UTC().Format(time.RFC3339)),
		},
	}
	if want.Count > 0 {
		count := aws.Int32(int32(want.Count))
		switch {
		case want.IPv6 && want.Prefixes:
			in.Ipv6PrefixCount = count
		case want.IPv6:
			in.Ipv6AddressCount = count
		case want.Prefixes:
			in.Ipv4PrefixCount = count
		default:
			in.SecondaryPrivateIpAddressCount = count
		}
	}
	var created types.NetworkInterface
	err := c.repeat(ctx, func(ctx context.Context) error {
		answer, err := c.ec2.CreateNetworkInterface(ctx, in)
		if err == nil && answer.NetworkInterface == nil {
			err = errors.New("EC2 answered without an interface")
		}
		if err == nil {
			created = *answer.NetworkInterface
		}
		return err
	})
	if err != nil {
		return types.NetworkInterface{}, err
	}
	if len(created.TagSet) == 0 { // an answer without tags is not a fact
		created.TagSet = in.TagSpecifications[0].Tags
	}
	c.remember(created)
	return created, nil
}

// use attaches a new interface to a machine and lets it end with the machine.
func (c *Cloud) use(
	ctx context.Context,
	instance string,
	created types.NetworkInterface,
	device int,
) (*cloud.Interface, error) {
	id := aws.ToString(created.NetworkInterfaceId)
	attachment, device, err := c.attach(ctx, id, instance, device)
	if err != nil {
		return nil, err
	}
	err = c.repeat(ctx, func(ctx context.Context) error {
		_, err := c.ec2.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: &id,
			Attachment: &types.NetworkInterfaceAttachmentChanges{
				AttachmentId:        &attachment,
				DeleteOnTermination: aws.Bool(true),
			},
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("let it end with its machine: %w", err)
	}
	iface, err := c.convert(created)
	if err != nil {
		return nil, err
	}
	iface.Device = device
	return iface, nil
}

// attach attaches an interface and returns the ID of the attachment and the device number.
// EC2 knows no token for it, so an answer that leaves the outcome open is decided by reading
// the interface. A new interface may not be known everywhere for some seconds.
func (c *Cloud) attach(ctx context.Context, id, instance string, device int) (string, int, error) {
	for failures := 1; ; failures++ {
		answer, err := c.ec2.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
			NetworkInterfaceId: &id,
			InstanceId:         &instance,
			DeviceIndex:        aws.Int32(int32(device)),
		})
		if err == nil {
			return aws.ToString(answer.AttachmentId), device, nil
		}
		taken := code(err) == codeParameterValue && strings.Contains(err.Error(), "device index")
		maybe := taken || uncertain(err) || code(err) == codeInterfaceInUse
		again := maybe || transient(err) || code(err) == codeInterfaceNotFound
		if !again || failures == attempts || c.wait(ctx, failures) != nil {
			return "", 0, err
		}
		if !maybe {
			continue
		}
		now, readErr := c.iface(ctx, id)
		if a := now.Attachment; readErr == nil && a != nil && aws.ToString(a.InstanceId) == instance {
			return aws.ToString(a.AttachmentId), int(aws.ToInt32(a.DeviceIndex)), nil
		}
		if taken {
			device++ // of an interface that no reading shows yet
		}
	}
}

// securityGroups returns the security groups of a new interface of a machine.
func (c *Cloud) securityGroups(ctx context.Context, first firstInterface) ([]string, error) {
	if len(c.config.SecurityGroupTags) == 0 {
		return first.groups, nil
	}
	return c.taggedGroups(ctx, first.vpc)
}

// taggedGroups returns the security groups of a VPC that Config.SecurityGroupTags selects.
func (c *Cloud) taggedGroups(ctx context.Context, vpc string) ([]string, error) {
	now := c.config.Now()
	c.mu.Lock()
	kept, ok := c.groups[vpc]
	c.mu.Unlock()
	if ok && now.Sub(kept.read) < groupAge {
		return kept.ids, nil
	}
	pages := ec2.NewDescribeSecurityGroupsPaginator(c.ec2, &ec2.DescribeSecurityGroupsInput{
		Filters: append(tagFilters(c.config.SecurityGroupTags), filter("vpc-id", vpc)),
	})
	var ids []string
	for pages.HasMorePages() {
		page, err := page(ctx, c, pages.NextPage)
		if err != nil {
			return nil, fmt.Errorf("read security groups: %w", err)
		}
		for _, g := range page.SecurityGroups {
			ids = append(ids, aws.ToString(g.GroupId))
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf(
			"no security group of %s has the tags %v of --ec2-security-group-tags",
			vpc,
			c.config.SecurityGroupTags,
		)
	}
	slices.Sort(ids)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[vpc] = groupsOfVPC{ids, now}
	return ids, nil
}
