// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config is a Configuration.
type config struct {
	mode   string
	v4, v6 bool

	mu     sync.Mutex
	native *ipam.CIDR
}

func (c *config) IPv4Enabled() bool                { return c.v4 }
func (c *config) IPv6Enabled() bool                { return c.v6 }
func (c *config) IPAMMode() string                 { return c.mode }
func (c *config) HealthCheckingEnabled() bool      { return false }
func (c *config) UnreachableRoutesEnabled() bool   { return false }
func (c *config) GetCCEEndpointGC() time.Duration  { return 30 * time.Second }
func (c *config) GetFixedIPTimeout() time.Duration { return 30 * time.Second }
func (c *config) SetIPv4NativeRoutingCIDR(n *ipam.CIDR) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.native = n
}
func (c *config) GetIPv4NativeRoutingCIDR() *ipam.CIDR {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.native
}

func mode(name string) *config { return &config{mode: name, v4: true, v6: true} }

// node is a NodeAddressing.
type node struct{ v4, v6 string }

func (n node) IPv4() ipam.NodeAddressingFamily { return allocationCIDR(n.v4) }
func (n node) IPv6() ipam.NodeAddressingFamily { return allocationCIDR(n.v6) }

type allocationCIDR string

func (s allocationCIDR) AllocationCIDR() *ipam.CIDR {
	p, _ := netip.ParsePrefix(string(s))
	return ipam.NewCIDR(p)
}

// owner is an Owner and a K8sEventRegister that records its calls.
type owner struct {
	mu     sync.Mutex
	cidrs  [][2][]string
	made   int
	events []string
	subs   []ipam.NetResourceSetSubscriber
}

func (o *owner) UpdateNetResourceSetResource() { o.mu.Lock(); o.made++; o.mu.Unlock() }
func (o *owner) ResourceType() string          { return "NRS" }
func (o *owner) LocalAllocCIDRsUpdated(v4, v6 []*ipam.CIDR) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var cidrs [2][]string
	for i, list := range [][]*ipam.CIDR{v4, v6} {
		for _, c := range list {
			cidrs[i] = append(cidrs[i], c.String())
		}
	}
	o.cidrs = append(o.cidrs, cidrs)
}
func (o *owner) K8sEventReceived(kind, scope, action string, valid, equal bool) {
	o.events = append(o.events, fmt.Sprint(kind, " ", scope, " ", action, " ", valid, " ", equal))
}
func (o *owner) K8sEventProcessed(scope, action string, ok bool) {
	o.events = append(o.events, fmt.Sprint(scope, " ", action, " ", ok))
}
func (o *owner) RegisterNetResourceSetSubscriber(s ipam.NetResourceSetSubscriber) {
	o.subs = append(o.subs, s)
}

// world is an IPAM on a ledger with a clock that the test sets.
type world struct {
	*ipam.IPAM
	g       Gomega
	deps    ipam.Deps
	journal ledger.Journal
	uptime  time.Duration
	boot    string
	tokens  atomic.Int64
}

// start opens the ledger, with the null journal if the world has none, and makes the
// IPAM; a second call is a restart.
func (w *world) start() {
	g := w.g
	if w.journal == nil {
		w.journal = ledger.NullJournal{}
	}
	l, err := ledger.Open(context.Background(), w.journal, ledger.Options{
		Uptime: func() time.Duration { return w.uptime }, BootID: w.boot, Now: func() time.Time { return time.Unix(1e9, 0) },
	})
	g.Expect(err).NotTo(HaveOccurred())
	w.deps.Ledger = l
	w.deps.UUID = func() string { return fmt.Sprint("uuid-", w.tokens.Add(1)) }
	w.IPAM, err = ipam.New(context.Background(), w.deps)
	g.Expect(err).NotTo(HaveOccurred())
}

func (w *world) consistent() { w.g.Expect(w.deps.Ledger.Check(context.Background())).To(BeEmpty()) }

// hosted returns an IPAM in host scope.
func hosted(g Gomega, j ledger.Journal, v4, v6 string) *world {
	w := &world{g: g, journal: j, boot: "boot", uptime: time.Hour, deps: ipam.Deps{
		Config: &config{mode: "kubernetes", v4: v4 != "", v6: v6 != ""}, Node: node{v4, v6},
	}}
	w.start()
	return w
}

func ip(s string) net.IP { return net.ParseIP(s) }

func text(r *ipam.AllocationResult) string {
	if r == nil {
		return ""
	}
	return r.IP.String()
}

// held returns the owner of each address.
func (w *world) held() map[string]string {
	four, six, _ := w.Dump()
	all := map[string]string{}
	for a, o := range four {
		all[a] = o
	}
	for a, o := range six {
		all[a] = o
	}
	return all
}
