// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

func testCreate(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	ctx := t.Context()
	n.sent.take()
	made, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet, Want: cloud.Want{Count: 4}, Device: 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.sent.take()).To(Equal([]string{
		"DescribeNetworkInterfaces", "CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute",
	}))
	g.Expect(made.Owned).To(BeTrue())
	g.Expect(made.Device).To(Equal(1))
	g.Expect(prefixes(made.Blocks)).To(HaveLen(4))
	shown := n.read(id).Interfaces[1]
	g.Expect(shown).To(Equal(made))
	n.sent.take()
	second, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet, Want: cloud.Want{Count: 1}, Device: 2})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.sent.take()).To(Equal([]string{
		"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute",
	}), "the machine was read before")
	g.Expect(n.cloud.DeleteInterface(ctx, id, second.ID)).To(Succeed())
	var real types.NetworkInterface
	for _, i := range n.interfaces() {
		if *i.NetworkInterfaceId == made.ID {
			real = i
		}
	}
	tags := map[string]string{}
	for _, tag := range real.TagSet {
		tags[*tag.Key] = *tag.Value
	}
	g.Expect(tags).To(HaveKeyWithValue(ec2.TagCluster, n.config.Cluster))
	g.Expect(tags).To(HaveKeyWithValue(ec2.TagInstance, id))
	g.Expect(time.Parse(time.RFC3339, tags[ec2.TagCreated])).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(*real.Attachment.DeleteOnTermination).To(BeTrue())

	third, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet, Device: 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third.Device).To(Equal(2), "device 1 is taken, the caller's reading was old")
	g.Expect(prefixes(third.Blocks)).To(BeEmpty())
	_, err = n.cloud.CreateInterface(ctx, "i-0123456789abcdef0", cloud.NewInterface{Subnet: n.subnet, Device: 1})
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))

	server.Terminate(t, id)
	g.Expect(n.interfaces()).To(BeEmpty(), "its interfaces end with the machine")
}

func testCreateWithTaggedGroups(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, func(c *ec2.Config) { c.SecurityGroupTags = map[string]string{"for": c.Cluster} })
	id := n.machine("m5.large")
	ctx := t.Context()
	_, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).To(MatchError(And(ContainSubstring("no security group"), ContainSubstring("--ec2-security-group-tags"))))
	group, err := server.Client().CreateSecurityGroup(ctx, &awsec2.CreateSecurityGroupInput{
		GroupName: aws.String("pods"), Description: aws.String("pods"), VpcId: &n.vpc,
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeSecurityGroup,
			Tags:         []types.Tag{{Key: aws.String("for"), Value: &n.config.Cluster}},
		}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	made, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).NotTo(HaveOccurred())
	at := slices.IndexFunc(n.interfaces(), func(i types.NetworkInterface) bool { return *i.NetworkInterfaceId == made.ID })
	var groups []string
	for _, g := range n.interfaces()[at].Groups {
		groups = append(groups, *g.GroupId)
	}
	g.Expect(groups).To(ContainElement(*group.GroupId))
}

// moto has no failure of its own between the steps, so the machine is full (attach), or the
// answer is replaced.
func testCreateFailsHalfWay(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("t3.nano")
	ctx := t.Context()
	_, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).To(And(MatchError(cloud.ErrFull), MatchError(And(ContainSubstring("AttachmentLimitExceeded")))))
	g.Expect(n.interfaces()).To(HaveLen(2), "the interface without a place was deleted")

	n = newNetwork(t, server, nil)
	id = n.machine("m5.large")
	for _, step := range []string{"AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"} {
		n.sent.with(func(operation string, _ *http.Request) *http.Response {
			if operation == step {
				return answer(403, "UnauthorizedOperation")
			}
			return nil
		})
		_, err = n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet})
		g.Expect(err).To(MatchError(And(ContainSubstring("UnauthorizedOperation"), ContainSubstring("the role lacks a permission"))), step)
		g.Expect(n.interfaces()).To(HaveLen(1), step)
	}
	// A caller that gives up after the creation leaves nothing either.
	giveUp, cancel := context.WithCancel(ctx)
	n.sent.with(func(operation string, _ *http.Request) *http.Response {
		if operation == "AttachNetworkInterface" {
			cancel()
			return answer(500, "InternalError")
		}
		return nil
	})
	_, err = n.cloud.CreateInterface(giveUp, id, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).To(HaveOccurred())
	g.Expect(n.interfaces()).To(HaveLen(1))
}

// lose sends the nth request of an operation and closes the connection without the answer.
type lose struct {
	base      http.RoundTripper
	operation string
	left      int
}

func (l *lose) RoundTrip(r *http.Request) (*http.Response, error) {
	rec, err := l.base.RoundTrip(r)
	if err != nil || l.left == 0 || operationOf(r) != l.operation {
		return rec, err
	}
	l.left--
	_ = rec.Body.Close()
	return nil, http.ErrServerClosed
}

func testLostAnswers(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	for _, step := range []string{"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"} {
		n.sent.base = &lose{http.DefaultTransport, step, 2}
		made, err := n.cloud.CreateInterface(t.Context(), id, cloud.NewInterface{Subnet: n.subnet, Want: cloud.Want{Count: 2}})
		g.Expect(err).NotTo(HaveOccurred(), step)
		g.Expect(n.interfaces()).To(HaveLen(2), "one interface of one token: %s", step)
		g.Expect(n.read(id).Interfaces[1]).To(Equal(made), step)
		g.Expect(n.cloud.DeleteInterface(t.Context(), id, made.ID)).To(Succeed(), step)
	}
	for _, step := range []string{"DetachNetworkInterface", "DeleteNetworkInterface"} {
		made, err := n.cloud.CreateInterface(t.Context(), id, cloud.NewInterface{Subnet: n.subnet})
		g.Expect(err).NotTo(HaveOccurred(), step)
		n.sent.base = &lose{http.DefaultTransport, step, 1}
		g.Expect(n.cloud.DeleteInterface(t.Context(), id, made.ID)).To(Succeed(), step)
		g.Expect(n.interfaces()).To(HaveLen(1), step)
	}
}

func testDelete(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	one, two := n.machine("m5.large"), n.machine("m5.large")
	ctx := t.Context()
	made, err := n.cloud.CreateInterface(ctx, one, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.cloud.DeleteInterface(ctx, two, made.ID)).To(MatchError(ContainSubstring("attached to machine " + one)))
	foreign, err := server.Client().CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{SubnetId: &n.subnet})
	g.Expect(err).NotTo(HaveOccurred())
	stranger := *foreign.NetworkInterface.NetworkInterfaceId
	g.Expect(n.cloud.DeleteInterface(ctx, one, stranger)).To(MatchError(ContainSubstring("has not created it")))
	g.Expect(n.cloud.DeleteInterface(ctx, one, n.first(one).ID)).To(MatchError(ContainSubstring("has not created it")))
	other := n.config
	other.Cluster = "another"
	another, err := ec2.New(ctx, other)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(another.DeleteInterface(ctx, one, made.ID)).To(MatchError(ContainSubstring("has not created it")))
	g.Expect(n.interfaces()).To(HaveLen(4))

	g.Expect(n.cloud.DeleteInterface(ctx, one, made.ID)).To(Succeed())
	g.Expect(n.cloud.DeleteInterface(ctx, one, made.ID)).To(Succeed(), "it is gone")
	g.Expect(n.interfaces()).To(HaveLen(3))
}

func testOrphans(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	n := newNetwork(t, server, func(c *ec2.Config) { c.Now = func() time.Time { return now } })
	ctx := t.Context()
	one, two := n.machine("m5.large"), n.machine("m5.large")
	orphan := func(instance string) string { // as a killed process leaves it
		made, err := n.cloud.CreateInterface(ctx, instance, cloud.NewInterface{Subnet: n.subnet})
		g.Expect(err).NotTo(HaveOccurred())
		at := slices.IndexFunc(n.interfaces(), func(i types.NetworkInterface) bool { return *i.NetworkInterfaceId == made.ID })
		_, err = server.Client().DetachNetworkInterface(ctx, &awsec2.DetachNetworkInterfaceInput{AttachmentId: n.interfaces()[at].Attachment.AttachmentId})
		g.Expect(err).NotTo(HaveOccurred())
		return made.ID
	}
	first, second := orphan(one), orphan(two)
	used, err := n.cloud.CreateInterface(ctx, one, cloud.NewInterface{Subnet: n.subnet})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = server.Client().CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{
		SubnetId: &n.subnet,
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface,
			Tags: []types.Tag{
				{Key: aws.String(ec2.TagCluster), Value: aws.String("another")},
				{Key: aws.String(ec2.TagInstance), Value: &one},
				{Key: aws.String(ec2.TagCreated), Value: aws.String("2020-01-01T00:00:00Z")},
			},
		}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.cloud.DeleteOrphans(ctx, "", time.Minute)).To(BeEmpty(), "they are young")
	now = now.Add(2 * time.Minute)
	young := orphan(one)
	g.Expect(n.cloud.DeleteOrphans(ctx, two, time.Minute)).To(Equal([]string{second}))
	g.Expect(n.cloud.DeleteOrphans(ctx, "", time.Minute)).To(Equal([]string{first}))
	g.Expect(n.cloud.DeleteOrphans(ctx, "", time.Minute)).To(BeEmpty())
	var left []string
	for _, i := range n.interfaces() {
		left = append(left, *i.NetworkInterfaceId)
	}
	g.Expect(left).To(And(HaveLen(5), ContainElements(young, used.ID)))
}

func testThrottled(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	first := n.first(id)
	n.sent.take()
	n.sent.with(func(string, *http.Request) *http.Response { return answer(503, "RequestLimitExceeded") })
	_, err := n.cloud.Read(t.Context())
	g.Expect(err).To(And(MatchError(cloud.ErrThrottled), MatchError(And(ContainSubstring("lower the request budget")))))
	_, err = n.cloud.Assign(t.Context(), id, first.ID, cloud.Want{Count: 5})
	g.Expect(err).To(MatchError(cloud.ErrThrottled))
	sent := n.sent.take()
	reads := slices.Repeat([]string{"DescribeInstances"}, len(sent)-1)
	g.Expect(len(reads)).To(BeNumerically(">", 1))
	g.Expect(sent).To(Equal(append(reads, "AssignPrivateIpAddresses")), "only a reading is repeated")
}

// testThrottledReading throttles three in four requests of each operation, for their rate or
// by an error of the server. A reading takes five requests, and succeeds.
func testThrottledReading(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	for _, code := range []string{"RequestLimitExceeded", "InternalError"} {
		passed, refused := map[string]int{}, map[string]int{}
		n.sent.with(func(operation string, _ *http.Request) *http.Response {
			if refused[operation] < 3 {
				refused[operation]++
				return answer(503, code)
			}
			refused[operation] = 0
			passed[operation]++
			return nil
		})
		for _, read := range []func() (*cloud.Snapshot, error){
			func() (*cloud.Snapshot, error) { return n.cloud.Read(t.Context()) },
			func() (*cloud.Snapshot, error) { return n.cloud.ReadInstance(t.Context(), id) },
		} {
			n.cloud = n.open() // it knows neither types nor ranges
			clear(passed)
			s, err := read()
			g.Expect(err).NotTo(HaveOccurred(), code)
			g.Expect(s.Instances).To(HaveKey(id))
			g.Expect(s.Instances[id].Interfaces).To(HaveLen(1))
			g.Expect(passed).To(Equal(map[string]int{
				"DescribeInstances": 1, "DescribeInstanceTypes": 1, "DescribeNetworkInterfaces": 1, "DescribeVpcs": 1, "DescribeSubnets": 1,
			}), "a request that has succeeded is not sent again")
		}
	}
}

// testReadingEndsWithItsContext throttles a request, and lets the context end during its
// repetition: the error is EC2's, so that its reader waits before the next reading.
func testReadingEndsWithItsContext(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	ctx, cancel := context.WithCancel(t.Context())
	throttled := false
	n.sent.with(func(_ string, r *http.Request) *http.Response {
		if !throttled {
			throttled = true
			return answer(503, "RequestLimitExceeded")
		}
		cancel()
		<-r.Context().Done()
		return nil
	})
	_, err := n.cloud.Read(ctx)
	g.Expect(err).To(MatchError(cloud.ErrThrottled))
	g.Expect(n.sent.take()).To(Equal([]string{"DescribeInstances", "DescribeInstances"}))
}
