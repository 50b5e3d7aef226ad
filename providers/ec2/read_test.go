// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

func testRead(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, func(c *ec2.Config) { c.SubnetTags = map[string]string{"use": "pods"} })
	other := server.Subnet(t, n.vpc, "10.7.2.0/24", "", nil)
	_, err := server.Client().AssociateVpcCidrBlock(t.Context(), &awsec2.AssociateVpcCidrBlockInput{VpcId: &n.vpc, CidrBlock: aws.String("10.3.0.0/16")})
	g.Expect(err).NotTo(HaveOccurred())
	one, two := n.machine("m5.large"), n.machine("t3.nano")
	gone := n.machine("m5.large")
	server.Terminate(t, gone)
	server.Machine(t, n.subnet, "m5.large", map[string]string{"kubernetes.io/cluster/another": "owned"})

	s, err := n.cloud.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.sent.take()).To(Equal([]string{
		"DescribeInstances", "DescribeInstanceTypes", "DescribeNetworkInterfaces", "DescribeVpcs", "DescribeSubnets",
	}))
	g.Expect(s.Instances).To(HaveLen(2))
	g.Expect(s.Instances).To(And(HaveKey(one), HaveKey(two)), "terminated machines and those of another cluster are left out")
	i := s.Instances[one]
	g.Expect(i.Type).To(Equal("m5.large"))
	g.Expect(i.Zone).To(Equal(mototest.Zone))
	g.Expect(i.Limits).To(Equal(cloud.Limits{Interfaces: 3, Addresses: [2]int{9, 9}, PrefixBits: [2]int{28, 80}}))
	g.Expect(s.Instances[two].Limits).To(Equal(cloud.Limits{Interfaces: 2, Addresses: [2]int{1, 1}, PrefixBits: [2]int{28, 80}}))
	g.Expect(i.Interfaces).To(HaveLen(1))
	first := i.Interfaces[0]
	g.Expect(first.Device).To(Equal(0))
	g.Expect(first.MAC).To(HavePrefix("02:"))
	g.Expect(first.Subnet).To(Equal(n.subnet))
	g.Expect(first.Owned).To(BeFalse())
	g.Expect(first.Blocks).To(HaveLen(1))
	g.Expect(first.Blocks[0].Primary).To(BeTrue())
	g.Expect(pfx("10.7.1.0/24").Contains(first.Blocks[0].Prefix.Addr())).To(BeTrue())

	subnet := s.Subnets[n.subnet]
	g.Expect(subnet.Ranges).To(Equal([]cloud.Range{
		{CIDR: pfx("10.7.1.0/24"), Gateway: netip.MustParseAddr("10.7.1.1")},
		{CIDR: pfx(part6(n.range6)), Gateway: netip.MustParseAddr("fe80:ec2::1")},
	}))
	g.Expect(subnet.VPC).To(Equal([]netip.Prefix{pfx("10.7.0.0/16"), pfx("10.3.0.0/16"), pfx(n.range6)}))
	g.Expect(subnet.Usable).To(BeTrue())
	g.Expect(subnet.Free).To(Equal(256 - 5 - 3))
	g.Expect(subnet.Tags).To(Equal(map[string]string{"use": "pods"}))
	g.Expect(s.Subnets[other].Usable).To(BeFalse(), "it lacks the tag")

	_, err = n.cloud.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.sent.take()).To(Equal([]string{"DescribeInstances", "DescribeNetworkInterfaces", "DescribeSubnets"}),
		"instance types and ranges of the VPC are kept")

	_, err = n.cloud.ReadInstance(t.Context(), gone)
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))
	_, err = n.cloud.ReadInstance(t.Context(), "i-0123456789abcdef0")
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))
}

func testReadUntagged(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	n.config.VPC = n.vpc
	n.cloud = n.open()
	s, err := n.cloud.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Instances).To(BeEmpty())
	g.Expect(s.Subnets).To(HaveLen(1))
	id := server.Machine(t, n.subnet, "m5.large", nil)
	other := server.Subnet(t, n.vpc, "10.7.2.0/24", "", nil)
	s, err = n.cloud.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Instances).To(And(HaveLen(1), HaveKey(id)), "the VPC selects, without tags")
	g.Expect(s.Subnets[n.subnet].Usable).To(BeTrue(), "a machine's first interface is there")
	g.Expect(s.Subnets[other].Usable).To(BeFalse())

	elsewhere, _ := server.VPC(t, "10.8.0.0/16", false)
	far := server.Subnet(t, elsewhere, "10.8.1.0/24", "", nil)
	server.Machine(t, far, "m5.large", n.clusterMachine)
	n.machine("m5.large")
	n.config.VPC = ""
	_, err = n.open().Read(t.Context())
	g.Expect(err).To(MatchError(And(ContainSubstring("2 VPCs"), ContainSubstring("--ec2-vpc"))))

	excluded := n.first(id).ID
	for _, tag := range []types.Tag{
		{Key: aws.String(ec2.TagNoManage), Value: aws.String("true")},
		{Key: aws.String(ec2.TagNoManageAWS), Value: aws.String("true")},
	} {
		g.Expect(n.first(id).Exclude).To(BeFalse())
		_, err = server.Client().CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{excluded}, Tags: []types.Tag{tag}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(n.first(id).Exclude).To(BeTrue(), *tag.Key)
		tag.Value = aws.String("false")
		_, err = server.Client().CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{excluded}, Tags: []types.Tag{tag}})
		g.Expect(err).NotTo(HaveOccurred())
	}
}

func testReadManyInPages(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	in := &awsec2.RunInstancesInput{
		ImageId:      aws.String(mototest.Image),
		InstanceType: "m5.large",
		MinCount:     aws.Int32(120),
		MaxCount:     aws.Int32(120),
		SubnetId:     &n.subnet,
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeInstance,
			Tags:         []types.Tag{{Key: aws.String("kubernetes.io/cluster/" + n.config.Cluster), Value: aws.String("owned")}},
		}},
	}
	_, err := server.Client().RunInstances(t.Context(), in)
	g.Expect(err).NotTo(HaveOccurred())
	s, err := n.cloud.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Instances).To(HaveLen(120))
	for _, i := range s.Instances {
		g.Expect(i.Interfaces).To(HaveLen(1))
	}
	g.Expect(n.sent.take()).To(HaveLen(7), "the server's pages have 50 interfaces")
}

// answer returns an answer of EC2 with an error.
func answer(status int, code string) *http.Response {
	r := httptest.NewRecorder()
	r.WriteHeader(status)
	_, _ = io.WriteString(r, "<Response><Errors><Error><Code>"+code+"</Code><Message>by the test</Message></Error></Errors><RequestID>1</RequestID></Response>")
	return r.Result()
}

func testUnknownType(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	known, unknown := n.machine("m5.large"), n.machine("c5.large")
	n.sent.with(func(operation string, r *http.Request) *http.Response {
		if operation != "DescribeInstanceTypes" {
			return nil
		}
		text, err := io.ReadAll(r.Body)
		g.Expect(err).NotTo(HaveOccurred())
		r.Body = io.NopCloser(bytes.NewReader(text))
		if strings.Contains(string(text), "c5.large") {
			return answer(400, "InvalidInstanceType")
		}
		return nil
	})
	s, err := n.cloud.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred(), "other machines do not wait for this one")
	g.Expect(s.Instances[known].Limits.Interfaces).To(Equal(3))
	g.Expect(s.Instances[unknown].Limits).To(Equal(cloud.Limits{}))
	_, err = n.cloud.ReadInstance(t.Context(), unknown)
	g.Expect(err).To(MatchError(And(ContainSubstring("c5.large"), ContainSubstring("--ec2-instance-limits"))))
	n.config.Limits = map[string]cloud.Limits{"c5.large": {Interfaces: 2, Addresses: [2]int{4, 0}}}
	n.cloud = n.open()
	g.Expect(n.read(unknown).Limits).To(Equal(n.config.Limits["c5.large"]))
}
