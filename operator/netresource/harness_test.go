// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an API server, a cloud, a manager and the agents of all nodes.
type rig struct {
	t       testing.TB
	api     *memapi.API
	cloud   *memcloud.Cloud
	manager *netresource.NetResourceSetManager

	mu     sync.Mutex
	agents map[string]*agent
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// defaults returns the configuration that tests begin with.
func defaults() (memcloud.Config, netresource.Config) {
	return memcloud.Config{
			Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.1.0.0/21")},
			Interfaces: 8, PerInterface: 64,
		}, netresource.Config{
			ReleaseDelay: -1, ResyncInterval: 10 * time.Second, Workers: 4, Log: quiet(), Random: func() float64 { return .5 },
		}
}

// providerOf returns a new provider over a cloud, as for an operator that starts.
func providerOf(c *memcloud.Cloud) *cloudpool.Provider {
	lag := c.Config().Lag
	if lag == 0 {
		lag = -1
	}
	return cloudpool.New(cloudpool.Config{Cloud: c, Pre: 8, Prefixes: true, Consistency: lag, Log: quiet()})
}

func newRig(t testing.TB, cc memcloud.Config, c netresource.Config) *rig {
	r := &rig{t: t, api: memapi.New(), cloud: memcloud.New(cc), agents: map[string]*agent{}}
	r.api.Changed = r.changed
	r.start(c)
	return r
}

// start makes a manager, another one if there was one.
func (r *rig) start(c netresource.Config) {
	c.API = r.api
	if c.Instances == nil && c.Provider == nil {
		c.Provider = providerOf(r.cloud)
	}
	m, err := netresource.New(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.manager = m
	r.mu.Unlock()
	if err := m.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) changed(nrs *v1alpha1.NetResourceSet) {
	r.mu.Lock()
	m, a := r.manager, r.agents[nrs.Name]
	r.mu.Unlock()
	if m != nil {
		if err := m.Update(nrs); err != nil {
			r.t.Error(err)
		}
	}
	if a != nil && a.answers(nrs) {
		a.step()
	}
}

// add makes a node with its agent.
func (r *rig) add(name string, spec v1alpha1.IPAMSpec) *agent {
	a := &agent{rig: r, name: name, replies: true, leases: map[string]bool{}, cools: map[string]time.Time{}}
	r.mu.Lock()
	r.agents[name] = a
	r.mu.Unlock()
	r.cloud.AddInstance(name, "")
	nrs := &v1alpha1.NetResourceSet{}
	nrs.Name, nrs.Spec.IPAM = name, spec
	if _, err := r.api.Create(nrs); err != nil {
		r.t.Fatal(err)
	}
	return a
}

// agent leases IPv4 addresses of its node as pods want them, and answers.
type agent struct {
	rig     *rig
	name    string
	replies bool

	cool time.Duration

	mu     sync.Mutex
	want   int
	leases map[string]bool
	cools  map[string]time.Time // until when
}

// answers reports whether there is something to do.
func (a *agent) answers(nrs *v1alpha1.NetResourceSet) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.leases) < a.want {
		return true
	}
	for key, state := range nrs.Status.IPAM.ReleaseIPs {
		_, in := nrs.Spec.IPAM.Pool[key]
		if a.replies && handshake.Answer(state, handshake.Seen{InPool: in, Leased: a.leased(key)}) != state {
			return true
		}
	}
	return false
}

func (a *agent) leased(key string) bool {
	p, err := netip.ParsePrefix(key)
	if err != nil {
		_, cools := a.cools[key]
		return a.leases[key] || cools
	}
	for l := range a.leases {
		if p.Contains(netip.MustParseAddr(l)) {
			return true
		}
	}
	return false
}

// use changes how many pods there are.
func (a *agent) use(n int) {
	a.mu.Lock()
	a.want = n
	a.mu.Unlock()
	a.step()
}

// answer says whether it answers from now on.
func (a *agent) answer(does bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.replies = does
}

// lacks counts the pods without an address.
func (a *agent) lacks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.want - len(a.leases)
}

func (a *agent) step() {
	if err := a.rig.api.Change(a.name, a.act); err != nil {
		a.rig.t.Error(err)
	}
}

// act makes the agent answer the newest version.
func (a *agent) act(nrs *v1alpha1.NetResourceSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ipam := &nrs.Status.IPAM
	for _, l := range slices.Sorted(maps.Keys(a.leases)) {
		if len(a.leases) > a.want {
			delete(a.leases, l)
			a.cools[l] = time.Now().Add(a.cool)
		}
	}
	maps.DeleteFunc(a.cools, func(_ string, until time.Time) bool { return !until.After(time.Now()) })
	for _, key := range slices.Sorted(maps.Keys(nrs.Spec.IPAM.Pool)) {
		if handshake.Allocatable(ipam.ReleaseIPs[key]) && !strings.Contains(key, ":") {
			a.allocate(key)
		}
	}
	for key, state := range ipam.ReleaseIPs {
		_, in := nrs.Spec.IPAM.Pool[key]
		switch next := handshake.Answer(state, handshake.Seen{InPool: in, Leased: a.leased(key)}); {
		case !a.replies:
		case next == handshake.None:
			delete(ipam.ReleaseIPs, key)
		default:
			ipam.ReleaseIPs[key] = next
		}
	}
	ipam.Used = v1alpha1.AllocationMap{}
	for l := range a.leases {
		ipam.Used[l] = v1alpha1.AllocationIP{Owner: "default/pod"}
	}
	for l := range a.cools {
		ipam.Used[l] = v1alpha1.AllocationIP{Owner: "cooling"}
	}
}

// allocate leases addresses of a key of the pool until there are enough.
func (a *agent) allocate(key string) {
	p, err := netip.ParsePrefix(key)
	if err != nil {
		ip := netip.MustParseAddr(key)
		p = netip.PrefixFrom(ip, ip.BitLen())
	}
	for ip := p.Addr(); p.Contains(ip) && len(a.leases) < a.want; ip = ip.Next() {
		if _, cools := a.cools[ip.String()]; !cools {
			a.leases[ip.String()] = true
		}
	}
}

// level returns the totals of the API server and the agent: total and used, without what
// is given back.
func (r *rig) level(name string) [2]int {
	nrs, err := r.api.Get(name)
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for key := range nrs.Spec.IPAM.Pool {
		if !handshake.GivingBack(nrs.Status.IPAM.ReleaseIPs[key]) {
			n++
		}
	}
	return [2]int{n, len(nrs.Status.IPAM.Used)}
}

// consistent checks what must hold at rest: pool and cloud agree, and what is
// leased is there.
func (r *rig) consistent(name string) {
	g := NewWithT(r.t)
	nrs, err := r.api.Get(name)
	g.Expect(err).NotTo(HaveOccurred())
	real := map[string]bool{}
	for _, u := range r.cloud.Units(name) {
		key := u.String()
		if u.IsSingleIP() {
			key = u.Addr().String()
		}
		real[key] = true
		g.Expect(nrs.Spec.IPAM.Pool).To(HaveKey(key), "%s: leaked at the provider", name)
	}
	for key := range nrs.Spec.IPAM.Pool {
		g.Expect(real).To(HaveKey(key), "%s: in the pool, and not the node's", name)
	}
	a := r.agents[name]
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.leases {
		ok := real[l]
		for key := range real {
			if p, err := netip.ParsePrefix(key); err == nil && p.Contains(netip.MustParseAddr(l)) {
				ok = true
			}
		}
		g.Expect(ok).To(BeTrue(), "%s: %s is leased and not the node's", name, l)
	}
}

// simulated runs a test in simulated time, and ends the manager with it.
func simulated(t *testing.T, cc memcloud.Config, c netresource.Config, test func(t *testing.T, g *WithT, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cc, c)
		defer func() { _ = r.manager.Close() }()
		test(t, NewWithT(t), r)
	})
}

// rest lets d go by, and everything come to rest.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }
