// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// pending makes the lease of a container pending and returns it.
func (a *agent) pending(container string) ledger.Lease {
	l := a.leases.ByKey(ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"})[0]
	err := a.leases.StartExpiry(context.Background(), ledger.Selector{Key: l.Key, Generation: l.Generation, Reason: "gone"},
		ledger.Expiry{Token: ledger.ReclaimToken, After: time.Hour})
	a.g.Expect(err).NotTo(HaveOccurred())
	return a.leases.ByKey(l.Key)[0]
}

func TestReclaim(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, dual)
	values := len(a.loop.txn.values)
	a.add("c1")
	g.Expect(len(a.loop.txn.values)).To(BeNumerically(">", values))
	l := a.pending("c1")
	freed, err := a.Reclaim(t.Context(), l, "gone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(freed).To(BeTrue())
	g.Expect(a.held()).To(BeEmpty())
	g.Expect(a.loop.txn.values).To(HaveLen(values), "its southbound values go too")
	freed, err = a.Reclaim(t.Context(), l, "gone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(freed).To(BeFalse())
}

// A lease that is not pending any more, or another claim, is not released.
func TestReclaimOfALeaseInUse(t *testing.T) {
	for name, change := range map[string]func(a *agent, l ledger.Lease){
		"it was undone": func(a *agent, l ledger.Lease) {
			a.g.Expect(a.leases.StopExpiry(context.Background(), ledger.Selector{Key: l.Key}, ledger.ReclaimToken)).To(Succeed())
		},
		"the ADD was repeated":   func(a *agent, _ ledger.Lease) { a.add("c1") },
		"it was added once more": func(a *agent, _ ledger.Lease) { a.del("c1"); a.add("c1"); a.pending("c1") },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, plain)
			a.add("c1")
			l := a.pending("c1")
			change(a, l)
			freed, err := a.Reclaim(t.Context(), l, "gone")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(freed).To(BeFalse())
			g.Expect(a.held()).To(Equal([]string{"c1"}))
		})
	}
}

// The reclaim and a repeated ADD reach the loop in either order.
func TestReclaimAndAnADD(t *testing.T) {
	for _, first := range []int{0, 1} {
		slowly(t, func(g Gomega, a *agent) {
			a.begin(request("ADD", "c1"))
			a.drain()
			l := a.pending("c1")
			done := make(chan error, 1)
			go func() {
				_, err := a.Reclaim(context.Background(), l, "gone")
				done <- err
			}()
			synctest.Wait()
			add := a.begin(request("ADD", "c1"))
			g.Expect(a.Busy(l.Key)).To(BeTrue())
			a.loop.step(first)
			synctest.Wait()
			a.drain()
			g.Expect(<-done).To(Succeed())
			g.Expect(add.err).NotTo(HaveOccurred())
			g.Expect(a.held()).To(Equal([]string{"c1"}), "the caller of the ADD has an address")
			now := a.leases.ByKey(l.Key)[0]
			g.Expect(now.State).To(Equal(ledger.Held))
			g.Expect(add.reply.IPs[0].Address).To(Equal(now.Prefix().String()))
		})
	}
}

// A pod whose reclaim is pending stays a pod: it keeps its sandbox and its routes over a resync.
func TestAPendingPodStays(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	l := a.pending("c1")
	key, ok := a.NewestSandbox(pod("pod-c1"))
	g.Expect(ok).To(BeTrue())
	before := len(a.loop.txn.values)
	g.Expect(a.Resync(nil, nil, 1, nil)).To(Succeed())
	after, still := a.NewestSandbox(pod("pod-c1"))
	g.Expect([]any{after, still}).To(Equal([]any{key, ok}))
	g.Expect(a.loop.txn.values).To(HaveLen(before))
	_, err := a.serve(request("CHECK", "c1"))
	g.Expect(err).NotTo(HaveOccurred(), l.Addr.String())
}

// An agent without witnesses frees nothing and says so.
func TestGCWithoutWitnesses(t *testing.T) {
	g := NewWithT(t)
	a := newReporting(t, plain)
	a.Reclaims = nil
	a.add("c1")
	_, err := a.serve(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.text.String()).To(ContainSubstring("10.1.5.2: this agent reclaims nothing: it has no witnesses"))
	g.Expect(a.held()).To(Equal([]string{"c1"}))
}

// links is a kernel with one interface.
type links struct {
	addrs         []netip.Prefix
	exists, known bool
	err           error
}

func (l links) Interface(context.Context, string, string) ([]netip.Prefix, bool, bool, error) {
	return l.addrs, l.exists, l.known, l.err
}

func TestCheckOfTheInterface(t *testing.T) {
	local, other := netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("10.1.5.77/24")
	for name, c := range map[string]struct {
		kernel func(lease netip.Prefix) links
		code   uint
		saying string
	}{
		"the same":       {func(p netip.Prefix) links { return links{[]netip.Prefix{p}, true, true, nil} }, 0, ""},
		"and link-local": {func(p netip.Prefix) links { return links{[]netip.Prefix{local, p}, true, true, nil} }, 0, ""},
		"and one of a router advertisement": {func(p netip.Prefix) links {
			return links{[]netip.Prefix{p, netip.MustParsePrefix("2001:db8::42:acff:fe11:2/64")}, true, true, nil}
		}, 0, ""},
		"as a host": {func(p netip.Prefix) links {
			return links{[]netip.Prefix{netip.PrefixFrom(p.Addr(), 32)}, true, true, nil}
		}, 0, ""},
		"another one":        {func(netip.Prefix) links { return links{[]netip.Prefix{other}, true, true, nil} }, cni.CodeDiffers, "[10.1.5.77]"},
		"one more":           {func(p netip.Prefix) links { return links{[]netip.Prefix{p, other}, true, true, nil} }, cni.CodeDiffers, "has 10.1.5.77, but"},
		"none":               {func(netip.Prefix) links { return links{nil, true, true, nil} }, cni.CodeDiffers, "has []"},
		"no interface":       {func(netip.Prefix) links { return links{nil, false, true, nil} }, cni.CodeDiffers, "no interface eth0"},
		"not seen from here": {func(netip.Prefix) links { return links{} }, 0, ""},
		"not readable":       {func(netip.Prefix) links { return links{nil, false, true, errors.New("denied")} }, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, plain)
			a.add("c1")
			l := a.leases.ByKey(ledger.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"})[0]
			a.Kernel = c.kernel(l.Prefix())
			req := request("CHECK", "c1")
			req.Netns = "/run/netns/x"
			_, err := a.serve(req)
			g.Expect(code(g, err)).To(Equal(c.code), "%v", err)
			if c.saying != "" {
				g.Expect(err).To(MatchError(And(ContainSubstring(c.saying), ContainSubstring("/run/netns/x"), ContainSubstring(l.Addr.String()))))
			}
		})
	}
}
