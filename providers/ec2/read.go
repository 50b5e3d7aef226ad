// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud"
)

const (
	pageSize     = 1000             // objects of one answer
	filterValues = 200              // values of one filter of EC2
	vpcAge       = 10 * time.Minute // after which a VPC's ranges are read again
)

// readAttempts bounds the repetition of one request of a reading. A reading takes three to
// five requests. If the cloud refuses two in three for their rate, almost no reading
// succeeds without repetitions.
const readAttempts = 8

// page sends one request of a reading, and repeats it alone: the reading keeps the answers
// that it has. Each attempt takes a token of the budget. If the context ends during a
// repetition, the error is the cloud's last one.
func page[T, O any](
	ctx context.Context,
	c *Cloud,
	send func(context.Context, ...O) (T, error),
) (answer T, err error) {
	var refusal error
	err = c.repeatUpTo(ctx, readAttempts, func(ctx context.Context) (err error) {
		answer, err = send(ctx)
		if err != nil && ctx.Err() == nil {
			refusal = err
		}
		return err
	})
	if err != nil && refusal != nil {
		err = refusal
	}
	return answer, err
}

// vpcRanges holds the ranges of a VPC, the primary one first.
type vpcRanges struct {
	ranges []netip.Prefix
	read   time.Time
}

// Read implements cloud.Cloud. It sends one request for each 1000 machines, one for each 200
// machines with up to 1000 interfaces, one for the subnets, and now and then one for
// instance types and for the VPC.
func (c *Cloud) Read(ctx context.Context) (*cloud.Snapshot, error) {
	filters := append(tagFilters(c.config.InstanceTags), liveStates())
	if c.config.VPC != "" {
		filters = append(filters, filter("vpc-id", c.config.VPC))
	}
	machines, err := c.instances(ctx, &ec2.DescribeInstancesInput{Filters: filters, MaxResults: aws.Int32(pageSize)})
	if err != nil {
		return nil, fmt.Errorf("read the machines of cluster %s: %w", c.config.Cluster, explain(err))
	}
	s, err := c.snapshot(ctx, machines, "")
	if err != nil {
		return nil, fmt.Errorf("read the machines of cluster %s: %w", c.config.Cluster, err)
	}
	for _, i := range s.Instances {
		if i.Limits, err = c.limitsOf(i.Type); err != nil {
			// Other machines must not wait for this one. Without limits it gets nothing.
			c.config.Log.Error("machine without limits", "instance", i.ID, "err", err)
		}
	}
	return s, nil
}

// ReadInstance implements cloud.Cloud. The subnets are those of the machine's VPC and zone.
func (c *Cloud) ReadInstance(ctx context.Context, instance string) (*cloud.Snapshot, error) {
	fail := func(err error) (*cloud.Snapshot, error) {
		return nil, fmt.Errorf("read machine %s: %w", instance, err)
	}
	machines, err := c.instances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{instance}})
	if err != nil {
		return fail(explain(err))
	}
	if len(machines) == 0 {
		return fail(fmt.Errorf("%w: it is terminated", cloud.ErrNoInstance))
	}
	var zone string
	if p := machines[0].Placement; p != nil {
		zone = aws.ToString(p.AvailabilityZone)
	}
	s, err := c.snapshot(ctx, machines, zone)
	if err != nil {
		return fail(err)
	}
	i := s.Instances[instance]
	if i == nil {
		return fail(fmt.Errorf("%w: EC2 answered with another one", cloud.ErrNoInstance))
	}
	if i.Limits, err = c.limitsOf(i.Type); err != nil {
		return fail(err)
	}
	return s, nil
}

// liveStates selects machines that are not terminated.
func liveStates() types.Filter {
	return filter("instance-state-name", "pending", "running", "stopping", "stopped")
}

// instances reads machines, without terminated ones.
func (c *Cloud) instances(ctx context.Context, in *ec2.DescribeInstancesInput) ([]types.Instance, error) {
	var all []types.Instance
	pages := ec2.NewDescribeInstancesPaginator(c.ec2, in)
	for pages.HasMorePages() {
		page, err := page(ctx, c, pages.NextPage)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Reservations {
			all = append(all, r.Instances...)
		}
	}
	return slices.DeleteFunc(all, func(i types.Instance) bool {
		return i.State != nil && (i.State.Name == types.InstanceStateNameTerminated ||
			i.State.Name == types.InstanceStateNameShuttingDown)
	}), nil
}

// snapshot reads the rest of the machines, all without their limits. A zone limits the
// subnets.
func (c *Cloud) snapshot(ctx context.Context, machines []types.Instance, zone string) (*cloud.Snapshot, error) {
	s := &cloud.Snapshot{Instances: map[string]*cloud.Instance{}, Subnets: map[string]*cloud.Subnet{}}
	kinds, vpcs := map[string]bool{}, map[string]bool{}
	for _, m := range machines {
		i := &cloud.Instance{ID: aws.ToString(m.InstanceId), Type: string(m.InstanceType)}
		if m.Placement != nil {
			i.Zone = aws.ToString(m.Placement.AvailabilityZone)
		}
		s.Instances[i.ID] = i
		kinds[i.Type] = true
		vpcs[aws.ToString(m.VpcId)] = true
	}
	if c.config.VPC != "" {
		vpcs[c.config.VPC] = true
	}
	if len(vpcs) > 1 {
		return nil, fmt.Errorf("the machines are in %d VPCs (%s): set --ec2-vpc to one of them",
			len(vpcs), strings.Join(slices.Sorted(maps.Keys(vpcs)), ", "))
	}
	if err := c.learnTypes(ctx, kinds); err != nil {
		return nil, err
	}
	if err := c.addInterfaces(ctx, s); err != nil {
		return nil, err
	}
	for vpc := range vpcs {
		if err := c.addSubnets(ctx, s, vpc, zone); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// addInterfaces reads the interfaces of all machines.
func (c *Cloud) addInterfaces(ctx context.Context, s *cloud.Snapshot) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(s.Instances)), filterValues) {
		found, err := c.interfaces(ctx, filter("attachment.instance-id", ids...))
		if err != nil {
			return fmt.Errorf("read the interfaces of %d machines: %w", len(ids), explain(err))
		}
		for _, n := range found {
			if n.Attachment == nil || s.Instances[aws.ToString(n.Attachment.InstanceId)] == nil {
				continue
			}
			converted, err := c.convert(n)
			if err != nil {
				return err
			}
			i := s.Instances[aws.ToString(n.Attachment.InstanceId)]
			i.Interfaces = append(i.Interfaces, converted)
		}
	}
	for _, i := range s.Instances {
		slices.SortFunc(i.Interfaces, func(a, b *cloud.Interface) int {
			return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.ID, b.ID))
		})
	}
	return nil
}

// interfaces reads the interfaces that filters select.
func (c *Cloud) interfaces(ctx context.Context, filters ...types.Filter) ([]types.NetworkInterface, error) {
	in := &ec2.DescribeNetworkInterfacesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	var all []types.NetworkInterface
	pages := ec2.NewDescribeNetworkInterfacesPaginator(c.ec2, in)
	for pages.HasMorePages() {
		page, err := page(ctx, c, pages.NextPage)
		if err != nil {
			return nil, err
		}
		all = append(all, page.NetworkInterfaces...)
	}
	c.remember(all...)
	return all, nil
}

// iface reads one interface. The error of EC2 is returned as it is.
func (c *Cloud) iface(ctx context.Context, id string) (types.NetworkInterface, error) {
	answer, err := c.ec2.DescribeNetworkInterfaces(
		ctx,
		&ec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{id}},
	)
	if err != nil {
		return types.NetworkInterface{}, err
	}
	if len(answer.NetworkInterfaces) != 1 {
		return types.NetworkInterface{}, fmt.Errorf(
			"EC2 answered with %d interfaces: want 1",
			len(answer.NetworkInterfaces),
		)
	}
	c.remember(answer.NetworkInterfaces...)
	return answer.NetworkInterfaces[0], nil
}

// addSubnets reads the subnets of a VPC, and its ranges.
func (c *Cloud) addSubnets(ctx context.Context, s *cloud.Snapshot, vpc, zone string) error {
	ranges, err := c.vpcRanges(ctx, vpc)
	if err != nil {
		return err
	}
	in := &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("vpc-id", vpc)}, MaxResults: aws.Int32(pageSize)}
	if zone != "" {
		in.Filters = append(in.Filters, filter("availability-zone", zone))
	}
	first := map[string]bool{}
	for _, i := range s.Instances {
		for _, n := range i.Interfaces {
			if n.Device == 0 {
				first[n.Subnet] = true
			}
		}
	}
	pages := ec2.NewDescribeSubnetsPaginator(c.ec2, in)
	for pages.HasMorePages() {
		page, err := page(ctx, c, pages.NextPage)
		if err != nil {
			return fmt.Errorf("read the subnets of %s: %w", vpc, explain(err))
		}
		for _, found := range page.Subnets {
			subnet, err := convertSubnet(found, ranges)
			if err != nil {
				return err
			}
			selected := first[subnet.ID]
			if len(c.config.SubnetTags) > 0 {
				selected = matches(subnet.Tags, c.config.SubnetTags)
			}
			subnet.Usable = selected && (found.State == "" || found.State == types.SubnetStateAvailable)
			s.Subnets[subnet.ID] = subnet
		}
	}
	return nil
}

// vpcRanges returns the ranges of a VPC: its first IPv4 range, then the others.
func (c *Cloud) vpcRanges(ctx context.Context, vpc string) ([]netip.Prefix, error) {
	c.mu.Lock()
	kept, ok := c.vpcs[vpc]
	c.mu.Unlock()
	now := c.config.Now()
	if ok && now.Sub(kept.read) < vpcAge {
		return kept.ranges, nil
	}
	answer, err := page(ctx, c, func(ctx context.Context, o ...func(*ec2.Options)) (*ec2.DescribeVpcsOutput, error) {
		return c.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{VpcIds: []string{vpc}}, o...)
	})
	if err != nil {
		return nil, fmt.Errorf("read the ranges of %s: %w", vpc, explain(err))
	}
	var ranges []netip.Prefix
	add := func(text *string) error {
		p, err := netip.ParsePrefix(aws.ToString(text))
		if err != nil {
			return fmt.Errorf("read the ranges of %s: parse %q of EC2: want a prefix", vpc, aws.ToString(text))
		}
		if !slices.Contains(ranges, p) {
			ranges = append(ranges, p)
		}
		return nil
	}
	for _, v := range answer.Vpcs {
		if err := addRanges(v, add); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vpcs[vpc] = vpcRanges{ranges, now}
	return ranges, nil
}

// addRanges calls add for each range of a VPC.
func addRanges(v types.Vpc, add func(*string) error) error {
	if v.CidrBlock != nil {
		if err := add(v.CidrBlock); err != nil {
			return err
		}
	}
	for _, a := range v.CidrBlockAssociationSet {
		if a.CidrBlockState != nil && a.CidrBlockState.State != types.VpcCidrBlockStateCodeAssociated {
			continue
		}
		if err := add(a.CidrBlock); err != nil {
			return err
		}
	}
	for _, a := range v.Ipv6CidrBlockAssociationSet {
		if a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State != types.VpcCidrBlockStateCodeAssociated {
			continue
		}
		if err := add(a.Ipv6CidrBlock); err != nil {
			return err
		}
	}
	return nil
}
