// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2_test

import (
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

// network is a VPC with one subnet of a test, and a Cloud that sees it.
type network struct {
	*testing.T
	server         *mototest.Server
	vpc, subnet    string
	range6         string
	config         ec2.Config
	cloud          *ec2.Cloud
	sent           *recorder
	clusterMachine map[string]string
}

// newNetwork returns a network of its own on a server. change may alter the configuration.
func newNetwork(t *testing.T, server *mototest.Server, change func(*ec2.Config)) *network {
	t.Helper()
	vpc, range6 := server.VPC(t, "10.7.0.0/16", true)
	n := &network{
		T:              t,
		server:         server,
		vpc:            vpc,
		range6:         range6,
		sent:           &recorder{base: http.DefaultTransport},
		clusterMachine: map[string]string{"kubernetes.io/cluster/" + t.Name(): "owned"},
	}
	n.subnet = server.Subnet(t, vpc, "10.7.1.0/24", part6(range6), map[string]string{"use": "pods"})
	n.config = ec2.Config{
		Cluster:     t.Name(),
		Region:      mototest.Region,
		Endpoint:    server.URL,
		Credentials: mototest.Credentials(),
		Transport:   n.sent,
		FirstPause:  time.Millisecond,
		Log:         slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&n.config)
	}
	n.cloud = n.open()
	return n
}

// open returns a new Cloud with the network's configuration.
func (n *network) open() *ec2.Cloud {
	n.Helper()
	c, err := ec2.New(n.Context(), n.config)
	if err != nil {
		n.Fatal(err)
	}
	return c
}

// machine starts a machine of the cluster.
func (n *network) machine(kind string) string {
	n.Helper()
	return n.server.Machine(n, n.subnet, kind, n.clusterMachine)
}

// first returns the first interface of a machine.
func (n *network) first(instance string) *cloud.Interface {
	n.Helper()
	return n.read(instance).Interfaces[0]
}

// read returns a machine.
func (n *network) read(instance string) *cloud.Instance {
	n.Helper()
	s, err := n.cloud.ReadInstance(n.Context(), instance)
	if err != nil {
		n.Fatal(err)
	}
	return s.Instances[instance]
}

// interfaces returns the interfaces of the network's VPC as the cloud itself has them.
func (n *network) interfaces() []types.NetworkInterface {
	n.Helper()
	return slices.DeleteFunc(n.server.Interfaces(n), func(i types.NetworkInterface) bool { return *i.VpcId != n.vpc })
}

// part6 returns the first /64 of a VPC's range.
func part6(vpc string) string {
	return netip.PrefixFrom(netip.MustParsePrefix(vpc).Addr(), 64).String()
}

// prefixes returns the blocks of an interface that pods may get, sorted.
func prefixes(blocks []cloud.Block) (all []string) {
	for _, b := range blocks {
		if !b.Primary && b.Prefix.IsSingleIP() {
			all = append(all, b.Prefix.Addr().String())
		} else if !b.Primary {
			all = append(all, b.Prefix.String())
		}
	}
	slices.Sort(all)
	return all
}

// parsed returns blocks as prefixes.
func parsed(blocks []cloud.Block) (all []netip.Prefix) {
	for _, b := range blocks {
		all = append(all, b.Prefix)
	}
	return all
}

// recorder counts requests by operation, and answers those that intercept takes.
type recorder struct {
	base http.RoundTripper

	mu        sync.Mutex
	requests  []string
	intercept func(operation string, r *http.Request) *http.Response
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	operation := operationOf(request)
	r.mu.Lock()
	r.requests = append(r.requests, operation)
	intercept := r.intercept
	r.mu.Unlock()
	if intercept != nil {
		if answer := intercept(operation, request); answer != nil {
			return answer, nil
		}
	}
	return r.base.RoundTrip(request)
}

// take returns the operations since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.requests
	r.requests = nil
	return all
}

// with answers requests by a function for the duration of a test's part.
func (r *recorder) with(intercept func(string, *http.Request) *http.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.intercept = intercept
}

// TestAgainstMoto starts one server for all cases. Each has a VPC of its own.
func TestAgainstMoto(t *testing.T) {
	server := mototest.Start(t)
	for name, run := range map[string]func(*testing.T, *mototest.Server){
		"Read":                   testRead,
		"ReadUntagged":           testReadUntagged,
		"ReadManyInPages":        testReadManyInPages,
		"UnknownType":            testUnknownType,
		"Assign":                 testAssign,
		"AssignIPv6":             testAssignIPv6,
		"SubnetIsFull":           testSubnetIsFull,
		"Prefixes":               testPrefixes,
		"Create":                 testCreate,
		"CreateWithTaggedGroups": testCreateWithTaggedGroups,
		"CreateFailsHalfWay":     testCreateFailsHalfWay,
		"LostAnswers":            testLostAnswers,
		"Delete":                 testDelete,
		"Orphans":                testOrphans,
		"Throttled":              testThrottled,
		"ThrottledReading":       testThrottledReading,
		"EndOfAReading":          testReadingEndsWithItsContext,
	} {
		t.Run(name, func(t *testing.T) { run(t, server) })
	}
}

func operationOf(r *http.Request) string { return awsmiddleware.GetOperationName(r.Context()) }

func pfx(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func expectNoBlockTwice(g *WithT, all []types.NetworkInterface) {
	seen := map[string]string{}
	for _, n := range all {
		for _, a := range mototest.Addresses(n) {
			g.Expect(seen).NotTo(HaveKey(a), "of %s and %s", seen[a], *n.NetworkInterfaceId)
			seen[a] = *n.NetworkInterfaceId
		}
	}
}
