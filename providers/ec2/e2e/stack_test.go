// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/cloudlab"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

const (
	binVariable = "CADASTRE_TEST_EC2_BIN" // the folder of the programs
)

func TestMain(m *testing.M) { os.Exit(cloudlab.Main(m, binVariable)) }

// The properties of the proxy before moto.
const (
	staleFor = 3 * time.Second // less than --provider-consistency
	bucket   = 120             // requests at once
	refill   = 20              // requests in a second
)

// clusterName is the name of the cluster in tags.
const clusterName = "e2e"

// machineType has 3 interfaces with 6 addresses of each family, of which one IPv4 address is
// the interface's own.
const machineType = "t3.medium"

// gateway6 is the router of every subnet of EC2.
const gateway6 = "fe80:ec2::1"

// stack is a VPC in moto, behind a proxy, and a lab on it.
type stack struct {
	*cloudlab.Lab
	t       *testing.T
	server  *mototest.Server
	subnets map[string]netip.Prefix // by ID, the IPv4 range
	range6  string                  // of the VPC
	first   string                  // the subnet of the machines' first interfaces
	proxy   *faultproxy.Proxy
	url     string // of the proxy
	seed    uint64
	failing atomic.Int64 // requests that fail next
}

// newStack starts everything but operators and agents: a subnet of machines, and two that
// have the tag for new interfaces.
func newStack(t *testing.T) *stack {
	t.Helper()
	if why := cloudlab.Why(); why != "" {
		t.Skip("NOT RUN: ", why)
	}
	s := &stack{t: t, server: mototest.Start(t), subnets: map[string]netip.Prefix{}, seed: effort.Seed(t)}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	config := cloudlab.Config{
		Root:  "..",
		Cloud: ec2.Name,
		Modes: []string{"interfaces-ec2", "netresource-ec2"},
		Truth: s.truth,
	}
	vpc, range6 := s.server.VPC(t, "10.7.0.0/16", true)
	s.range6 = range6
	for i := range 3 {
		cidr, cidr6 := netip.MustParsePrefix(fmt.Sprintf("10.7.%d.0/24", i)), part(range6, i)
		tags := map[string]string{"use": "pods"}
		if i == 0 {
			tags = nil
		}
		id := s.server.Subnet(t, vpc, cidr.String(), cidr6.String(), tags)
		if i == 0 {
			s.first = id
		}
		s.subnets[id] = cidr
		config.Networks = append(config.Networks, cloudlab.Network{ID: id, Subnets: []cloudlab.Subnet{
			{CIDR: cidr, Gateway: cidr.Addr().Next()},
			{CIDR: cidr6, Gateway: netip.MustParseAddr(gateway6)},
		}})
	}
	s.startProxy()
	at, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	config.Ports = []int{port}
	s.Lab = cloudlab.New(t, os.Getenv(binVariable), config)
	return s
}

// part returns a /64 of a VPC's range.
func part(vpc string, number int) netip.Prefix {
	a := netip.MustParsePrefix(vpc).Addr().As16()
	a[7] = byte(number)
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// startProxy starts the proxy before moto, without faults but its rate and its old readings.
func (s *stack) startProxy() {
	s.t.Helper()
	random := rand.New(rand.NewPCG(s.seed, 1))
	proxy, at, err := faultproxy.Start(faultproxy.Config{
		Target:  s.server.URL,
		Dialect: faultproxy.EC2(),
		Bucket:  bucket,
		Refill:  refill,
		Stale:   staleFor,
		Random:  random.Float64,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(proxy.Close)
	s.proxy, s.url = proxy, at
}

// flags returns those of the provider, for operators and agents.
func (s *stack) flags(more ...string) []string {
	return append([]string{
		"--ec2-cluster=" + clusterName,
		"--ec2-region=" + mototest.Region,
		"--ec2-endpoint=" + s.url,
		"--ec2-subnet-tags=use=pods",
	}, more...)
}

// storm begins random faults. Only an empty bucket throttles. The answer to the next creation of an interface is lost in any
// case: no program knows that interface.
func (s *stack) storm() {
	random := rand.New(rand.NewPCG(s.seed, 2))
	faults := faultproxy.Storm(
		faultproxy.Rates{Lost: .05, Burst: .005, BurstLength: 5},
		random.Float64,
	)
	var once sync.Once
	s.proxy.SetPlan(func(r faultproxy.Request) faultproxy.Outcome {
		if r.Operation == noise {
			return faultproxy.Fail
		}
		outcome := faults(r)
		if s.failing.Add(-1) >= 0 {
			outcome = faultproxy.Fail
		}
		if r.Operation == "CreateNetworkInterface" {
			once.Do(func() { outcome = faultproxy.Lose })
		}
		return outcome
	})
}

// fail makes the next requests fail.
func (s *stack) fail(requests int64) { s.failing.Store(requests) }

// noise is the operation that busy sends. The proxy takes a token for it, and moto does not see it.
const noise = "DescribeRegions"

// enough is the number of the programs' requests that each time of load throttles.
const enough = 5

// busy empties the bucket, as other programs of the account do, and sends twice as many
// requests as tokens come in, until the bucket has throttled enough requests of the programs.
// With that load for longer a slow machine gives the programs no token in minutes.
func (s *stack) busy() {
	s.t.Helper()
	client := awsec2.New(awsec2.Options{
		Region:       mototest.Region,
		BaseEndpoint: &s.url,
		Credentials:  mototest.Credentials(),
		Retryer:      aws.NopRetryer{},
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	before := s.counts()[faultproxy.Throttle]
	send := func() { _, _ = client.DescribeRegions(ctx, &awsec2.DescribeRegionsInput{}) } // all are refused
	for range bucket {
		send()
	}
	all.Go(func() {
		again := time.NewTicker(time.Second / (2 * refill))
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
				send()
			}
		}
	})
	s.Eventually(func() int { return s.counts()[faultproxy.Throttle] - before }, cloudlab.Patience, cloudlab.Pace).
		Should(BeNumerically(">=", enough), "requests of the programs that the bucket throttles")
}

// truth reads moto without proxy and provider.
func (s *stack) truth(ctx context.Context) (t cloudlab.Truth, err error) {
	pages := awsec2.NewDescribeNetworkInterfacesPaginator(s.server.Client(), &awsec2.DescribeNetworkInterfacesInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return t, fmt.Errorf("read all interfaces: %w", err)
		}
		for _, n := range page.NetworkInterfaces {
			id := aws.ToString(n.NetworkInterfaceId)
			subnet, ok := s.subnets[aws.ToString(n.SubnetId)]
			switch {
			case !ok: // of another VPC
			case n.Attachment == nil || n.Attachment.InstanceId == nil:
				t.Orphans = append(t.Orphans, id)
			default:
				port, err := portOf(n, subnet)
				if err != nil {
					return t, fmt.Errorf("read interface %s: %w", id, err)
				}
				t.Ports = append(t.Ports, port)
			}
		}
	}
	return t, nil
}

// portOf converts an interface of a machine. The machines themselves have no IPv6 address.
func portOf(n types.NetworkInterface, subnet netip.Prefix) (cloudlab.Port, error) {
	port := cloudlab.Port{
		ID:      aws.ToString(n.NetworkInterfaceId),
		Machine: aws.ToString(n.Attachment.InstanceId),
		Network: aws.ToString(n.SubnetId),
		MAC:     aws.ToString(n.MacAddress),
		First:   aws.ToInt32(n.Attachment.DeviceIndex) == 0,
	}
	for _, x := range n.PrivateIpAddresses {
		a, err := netip.ParseAddr(aws.ToString(x.PrivateIpAddress))
		if err != nil {
			return port, err
		}
		if aws.ToBool(x.Primary) {
			port.Own = append(port.Own, netip.PrefixFrom(a, subnet.Bits()))
			continue
		}
		port.Blocks = append(port.Blocks, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, x := range n.Ipv6Addresses {
		a, err := netip.ParseAddr(aws.ToString(x.Ipv6Address))
		if err != nil {
			return port, err
		}
		port.Blocks = append(port.Blocks, netip.PrefixFrom(a, a.BitLen()))
	}
	return port, nil
}

// boot starts a machine and returns its ID, the provider ID of its node, and its addresses.
func (s *stack) boot() (machine, providerID string, own []netip.Addr) {
	s.t.Helper()
	machine = s.server.Machine(s.t, s.first, machineType, map[string]string{"kubernetes.io/cluster/" + clusterName: "owned"})
	truth, err := s.truth(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(truth.Ports, func(p cloudlab.Port) bool { return p.Machine == machine })
	for _, p := range truth.Ports[i].Own {
		own = append(own, p.Addr())
	}
	return machine, fmt.Sprintf("aws:///%s/%s", mototest.Zone, machine), own
}

// counts returns the proxy's sums by outcome, without those of busy.
func (s *stack) counts() map[faultproxy.Outcome]int {
	sums := map[faultproxy.Outcome]int{}
	for c, n := range s.proxy.Counts() {
		if c.Operation != noise {
			sums[c.Outcome] += n
		}
	}
	return sums
}

// load returns the number of requests of busy, and how many of them the bucket has throttled.
func (s *stack) load() (sent, throttled int) {
	for c, n := range s.proxy.Counts() {
		if c.Operation != noise {
			continue
		}
		sent += n
		if c.Outcome == faultproxy.Throttle {
			throttled += n
		}
	}
	return sent, throttled
}
