// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package mototest

import (
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Image is an image of which moto starts machines.
const Image = "ami-12c6146b"

// Zone is the zone of subnets.
const Zone = Region + "a"

// VPC creates a VPC with an IPv4 range and, with v6, an IPv6 range, which it returns.
func (s *Server) VPC(t testing.TB, cidr string, v6 bool) (id, range6 string) {
	t.Helper()
	answer, err := s.Client().CreateVpc(t.Context(), &ec2.CreateVpcInput{
		CidrBlock:                   &cidr,
		AmazonProvidedIpv6CidrBlock: &v6,
	})
	if err != nil {
		t.Fatalf("create VPC %s: %v", cidr, err)
	}
	for _, a := range answer.Vpc.Ipv6CidrBlockAssociationSet {
		range6 = aws.ToString(a.Ipv6CidrBlock)
	}
	return aws.ToString(answer.Vpc.VpcId), range6
}

// Subnet creates a subnet in Zone. cidr6 may be empty.
func (s *Server) Subnet(t testing.TB, vpc, cidr, cidr6 string, tags map[string]string) string {
	t.Helper()
	in := &ec2.CreateSubnetInput{
		VpcId:             &vpc,
		CidrBlock:         &cidr,
		AvailabilityZone:  aws.String(Zone),
		TagSpecifications: specification(types.ResourceTypeSubnet, tags),
	}
	if cidr6 != "" {
		in.Ipv6CidrBlock = &cidr6
	}
	answer, err := s.Client().CreateSubnet(t.Context(), in)
	if err != nil {
		t.Fatalf("create subnet %s: %v", cidr, err)
	}
	return aws.ToString(answer.Subnet.SubnetId)
}

// Machine starts a machine in a subnet.
func (s *Server) Machine(t testing.TB, subnet, kind string, tags map[string]string) string {
	t.Helper()
	answer, err := s.Client().RunInstances(t.Context(), &ec2.RunInstancesInput{
		ImageId:           aws.String(Image),
		InstanceType:      types.InstanceType(kind),
		MinCount:          aws.Int32(1),
		MaxCount:          aws.Int32(1),
		SubnetId:          &subnet,
		TagSpecifications: specification(types.ResourceTypeInstance, tags),
	})
	if err != nil {
		t.Fatalf("start a machine of type %s in %s: %v", kind, subnet, err)
	}
	return aws.ToString(answer.Instances[0].InstanceId)
}

// Terminate terminates a machine.
func (s *Server) Terminate(t testing.TB, instance string) {
	t.Helper()
	_, err := s.Client().TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{instance}})
	if err != nil {
		t.Fatalf("terminate %s: %v", instance, err)
	}
}

// Interfaces returns all interfaces of the cloud, attached ones and others.
func (s *Server) Interfaces(t testing.TB) (all []types.NetworkInterface) {
	t.Helper()
	pages := ec2.NewDescribeNetworkInterfacesPaginator(s.Client(), &ec2.DescribeNetworkInterfacesInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatalf("read all interfaces: %v", err)
		}
		all = append(all, page.NetworkInterfaces...)
	}
	return all
}

// Addresses returns the addresses and prefixes of interfaces, sorted, without their own ones.
func Addresses(of ...types.NetworkInterface) (all []string) {
	for _, n := range of {
		for _, a := range n.PrivateIpAddresses {
			if !aws.ToBool(a.Primary) {
				all = append(all, aws.ToString(a.PrivateIpAddress))
			}
		}
		for _, p := range n.Ipv4Prefixes {
			all = append(all, aws.ToString(p.Ipv4Prefix))
		}
		for _, a := range n.Ipv6Addresses {
			all = append(all, aws.ToString(a.Ipv6Address))
		}
		for _, p := range n.Ipv6Prefixes {
			all = append(all, aws.ToString(p.Ipv6Prefix))
		}
	}
	slices.Sort(all)
	return all
}

// specification returns the tags of a new object.
func specification(kind types.ResourceType, tags map[string]string) []types.TagSpecification {
	if len(tags) == 0 {
		return nil
	}
	s := types.TagSpecification{ResourceType: kind}
	for key, value := range tags {
		s.Tags = append(s.Tags, types.Tag{Key: &key, Value: &value})
	}
	return []types.TagSpecification{s}
}
