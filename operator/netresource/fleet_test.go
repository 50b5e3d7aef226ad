// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// bucket is the budget of requests to a cloud: 20 a second, and 30 at once.
type bucket struct {
	mu       sync.Mutex
	next     time.Time // of the next token
	requests map[string]int
}

const (
	refill  = time.Second / 20
	burst   = 30
	latency = 100 * time.Millisecond // of a request
)

func newBucket() *bucket { return &bucket{requests: map[string]int{}} }

// take counts a request, and returns how long it must wait for its token.
func (b *bucket) take(what string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if full := now.Add(-(burst - 1) * refill); b.next.Before(full) {
		b.next = full
	}
	wait := max(0, b.next.Sub(now))
	b.next = b.next.Add(refill)
	b.requests[what]++
	return wait
}

// try counts a request, and reports whether the cloud serves it: without a token it refuses.
func (b *bucket) try(what string) bool {
	b.mu.Lock()
	free := !b.next.After(time.Now())
	if !free {
		b.requests["refused"]++
	}
	b.mu.Unlock()
	if free {
		b.take(what)
	}
	time.Sleep(latency)
	return free
}

// pass sends requests one after the other, each when it has its token.
func (b *bucket) pass(what string, requests int) {
	for range requests {
		time.Sleep(b.take(what) + latency)
	}
}

// reset forgets the requests so far.
func (b *bucket) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = map[string]int{}
}

// counted returns the number of requests by call, and in all.
func (b *bucket) counted() (by map[string]int, all int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.requests {
		all += n
	}
	return maps.Clone(b.requests), all
}

// The requests of EC2 that the calls of a provider consist of.
const (
	readRequests   = 4 // DescribeInstances, DescribeNetworkInterfaces, DescribeSubnets, DescribeVpcs
	createRequests = 3 // CreateNetworkInterface with addresses, AttachNetworkInterface, ModifyNetworkInterfaceAttribute
)

// metered is a cloud whose calls consist of as many HTTP requests as those of EC2.
type metered struct {
	*memcloud.Cloud
	bucket *bucket
}

func (m *metered) Read(ctx context.Context) (*cloud.Snapshot, error) {
	s, err := m.Cloud.Read(ctx) // what the first request has seen
	m.bucket.pass("read", readRequests)
	return s, err
}

func (m *metered) Assign(ctx context.Context, instance, iface string, want cloud.Want) ([]cloud.Block, error) {
	m.bucket.pass("assign", 1)
	return m.Cloud.Assign(ctx, instance, iface, want)
}

func (m *metered) CreateInterface(ctx context.Context, instance string, want cloud.NewInterface) (*cloud.Interface, error) {
	m.bucket.pass("create", createRequests)
	return m.Cloud.CreateInterface(ctx, instance, want)
}

func (m *metered) DeleteOrphans(ctx context.Context, instance string, age time.Duration) ([]string, error) {
	m.bucket.pass("orphans", 1)
	return m.Cloud.DeleteOrphans(ctx, instance, age)
}

// fleet is the start of nodes within a second, each of which wants 8 free addresses: on the
// machine's first interface, or on one of their own.
type fleet struct {
	nodes int
	own   bool
}

// result is the time until the last node has its addresses, and the requests until then.
type result struct {
	took     time.Duration
	requests map[string]int
	all      int
}

// ours starts a fleet with a manager and cloudpool over a cloud that shows changes a second late.
func (f fleet) ours(t *testing.T) (res result) {
	synctest.Test(t, func(t *testing.T) {
		machines := memcloud.New(memcloud.Config{
			Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/16")},
			Interfaces: 4, PerInterface: 14, Lag: time.Second,
		})
		m := &metered{machines, newBucket()}
		r := &rig{t: t, api: memapi.New(), cloud: machines, agents: map[string]*agent{}}
		r.api.Changed = r.changed
		r.start(netresource.Config{
			Provider: cloudpool.New(cloudpool.Config{Cloud: m, Log: quiet()}),
			Workers:  50, ReleaseExcess: true, Log: quiet(), Random: seeded(),
		})
		rest(40 * time.Second)
		for i := range f.nodes {
			machines.AddInstance(nodeName(i), "subnet-a")
			if f.own {
				excludeFirst(t, machines, nodeName(i))
			}
		}
		rest(2 * time.Second) // a machine is shown before its kubelet registers it
		begun := time.Now()
		m.bucket.reset()
		for i := range f.nodes {
			r.add(nodeName(i), v1alpha1.IPAMSpec{PreAllocate: 8})
			time.Sleep(time.Second / time.Duration(f.nodes))
		}
		for i := 0; i < f.nodes; {
			if r.level(nodeName(i))[0] >= 8 {
				i++
				continue
			}
			time.Sleep(10 * time.Millisecond)
		}
		res.took = time.Since(begun)
		res.requests, res.all = m.bucket.counted()
		rest(2 * time.Minute)
		for i := range f.nodes {
			r.consistent(nodeName(i))
		}
		NewWithT(t).Expect(r.manager.Close()).To(Succeed())
	})
	return res
}

func seeded() func() float64 {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, 2))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}

func excludeFirst(t *testing.T, c *memcloud.Cloud, instance string) {
	s, err := c.ReadInstance(t.Context(), instance)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	c.Change(instance, s.Instances[instance].Interfaces[0].ID, func(i *cloud.Interface) { i.Exclude = true })
}

// operatorOfCilium models the requests of Cilium's operator, from which CCE's is derived
// (pkg/aws/eni). Workers take the addresses of each node with one request, or create,
// attach and modify an interface. A reading of everything (4 requests: VPCs, subnets,
// security groups, interfaces) begins 10 milliseconds after a change. Only that reading
// shows the addresses to the node.
func (f fleet) operatorOfCilium(t *testing.T) (res result) {
	synctest.Test(t, func(t *testing.T) {
		b, begun := newBucket(), time.Now()
		var mu sync.Mutex
		shown, changed := 0, 0
		var work sync.WaitGroup
		slots := make(chan struct{}, 50)
		for i := range f.nodes {
			work.Go(func() {
				time.Sleep(time.Duration(i) * time.Second / time.Duration(f.nodes))
				slots <- struct{}{}
				if f.own {
					b.pass("create", createRequests)
				} else {
					b.pass("assign", 1)
				}
				<-slots
				mu.Lock()
				changed++
				mu.Unlock()
			})
		}
		b.pass("read", 4)
		for shown < f.nodes {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			now := changed
			mu.Unlock()
			if now > shown {
				b.pass("read", 4)
				shown = now
			}
		}
		work.Wait()
		res.took = time.Since(begun)
		res.requests, res.all = b.counted()
	})
	return res
}

// agentsOfAWS models the requests of AWS's agents (pkg/ipamd, pkg/awsutils) with
// WARM_IP_TARGET=8. Each agent reads its interfaces, and then assigns addresses, or creates
// an interface (DescribeSubnets, CreateNetworkInterface, DescribeInstances for a free
// device, AttachNetworkInterface, ModifyNetworkInterfaceAttribute). They do not know of
// each other. The cloud refuses requests above the budget, and the SDK repeats them after a
// random part of a time that doubles, from a second to 20.
func (f fleet) agentsOfAWS(t *testing.T) (res result) {
	synctest.Test(t, func(t *testing.T) {
		b, begun, random := newBucket(), time.Now(), seeded()
		calls := []string{"read", "assign"}
		if f.own {
			calls = []string{"read", "read", "create", "read", "create", "create"}
		}
		var work sync.WaitGroup
		for i := range f.nodes {
			work.Go(func() {
				time.Sleep(time.Duration(i) * time.Second / time.Duration(f.nodes))
				for _, call := range calls {
					for limit := time.Second; !b.try(call); limit = min(2*limit, 20*time.Second) {
						time.Sleep(time.Duration(random() * float64(limit)))
					}
				}
			})
		}
		work.Wait()
		res.took = time.Since(begun)
		res.requests, res.all = b.counted()
	})
	return res
}

// A hundred nodes that start at once have their addresses no later than with the published
// designs, and with no more requests. docs/results/clusters.md shows what it logs.
func TestFleetStartsAtOnce(t *testing.T) {
	for name, f := range map[string]fleet{
		"on the first interface":       {nodes: 100},
		"on an interface of their own": {nodes: 100, own: true},
	} {
		t.Run(name, func(t *testing.T) {
			g, ours := NewWithT(t), f.ours(t)
			t.Logf("cadastre: %s, %d requests %v", ours.took.Round(10*time.Millisecond), ours.all, ours.requests)
			for who, theirs := range map[string]result{"Cilium's operator": f.operatorOfCilium(t), "AWS's agents": f.agentsOfAWS(t)} {
				t.Logf("%s: %s, %d requests %v", who, theirs.took.Round(10*time.Millisecond), theirs.all, theirs.requests)
				g.Expect(ours.took).To(BeNumerically("<=", theirs.took), who)
				g.Expect(ours.all).To(BeNumerically("<=", theirs.all), who)
			}
		})
	}
}
