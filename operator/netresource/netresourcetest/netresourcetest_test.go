// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest"
)

func cloud(bits int) netresource.AllocationImplementation {
	c := memcloud.New(memcloud.Config{
		Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.1.0.0/21")},
		Interfaces: 4, PerInterface: 8, PrefixLen: bits,
	})
	for _, node := range []string{"a", "b"} {
		c.AddInstance(node, "")
	}
	return cloudpool.New(cloudpool.Config{Cloud: c, Prefixes: bits > 0, Log: slog.New(slog.DiscardHandler)})
}

func TestProvidersKeepTheContract(t *testing.T) {
	for name, p := range map[string]netresourcetest.Provider{
		"cloudpool, addresses":    {New: func() netresource.AllocationImplementation { return cloud(0) }, Unit: 1},
		"cloudpool, prefixes":     {New: func() netresource.AllocationImplementation { return cloud(28) }, Unit: 16},
		"cloudpool, as published": {New: func() netresource.AllocationImplementation { return published{cloud(0)} }, Unit: 1},
		"clusterpool": {Unit: 16, New: func() netresource.AllocationImplementation {
			p := clusterpool.New(clusterpool.Config{})
			pool := &v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{{CIDR: "10.0.0.0/20", BlockPrefixLen: 28}}}}
			pool.Name = "default"
			NewWithT(t).Expect(p.SetPool(pool)).To(Succeed())
			return p
		}},
	} {
		t.Run(name, func(t *testing.T) { netresourcetest.Run(t, p) })
	}
}

// published is a provider that uses what it was given for a node, as published ones do.
type published struct {
	netresource.AllocationImplementation
}

type publishedNode struct {
	netresource.NetResourceOperations
	node *netresource.NetResource
}

func (p published) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	return publishedNode{p.AllocationImplementation.CreateNetResource(o, n), n}
}

func (n publishedNode) UpdatedNode(*v1alpha1.NetResourceSet) {
	n.NetResourceOperations.UpdatedNode(n.node.ResourceCopy())
}

func (n publishedNode) PrepareIPRelease(excess int, log *slog.Logger) *netresource.ReleaseAction {
	n.UpdatedNode(nil)
	return n.NetResourceOperations.PrepareIPRelease(excess, log)
}

// bad is a provider with one defect.
type bad struct {
	netresource.AllocationImplementation
	defect string
	end    chan struct{}
	first  netresource.NetResourceOperations
}

type badNode struct {
	netresource.NetResourceOperations
	b    *bad
	gone map[string]bool
}

func (b *bad) Resync(ctx context.Context) time.Time {
	at := b.AllocationImplementation.Resync(ctx)
	if b.defect == "says when it has ended" {
		at = at.Add(time.Hour)
	}
	return at
}

func (b *bad) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	if b.first == nil || b.defect != "one node's addresses for another" {
		b.first = b.AllocationImplementation.CreateNetResource(o, n)
	}
	return &badNode{b.first, b, map[string]bool{}}
}

func (n *badNode) UpdatedNode(o *v1alpha1.NetResourceSet) {
	if n.b.defect != "one node's addresses for another" { // else all nodes are the first one
		n.NetResourceOperations.UpdatedNode(o)
	}
}

func (n *badNode) PrepareIPAllocation(log *slog.Logger) (*netresource.AllocationAction, error) {
	if n.b.defect == "panics" {
		panic("a defect")
	}
	return n.NetResourceOperations.PrepareIPAllocation(log)
}

func (n *badNode) ResyncInterfacesAndIPs(ctx context.Context, log *slog.Logger) (v1alpha1.AllocationMap, error) {
	all, err := n.NetResourceOperations.ResyncInterfacesAndIPs(ctx, log)
	if len(all) == 0 && n.b.defect == "returns nil" {
		return nil, nil
	}
	return all, err
}

func (n *badNode) CreateInterface(ctx context.Context, a *netresource.AllocationAction, log *slog.Logger) (int, string, error) {
	switch {
	case n.b.defect == "takes too many":
		a.MaxIPsToAllocate++
	case n.b.defect == "ignores its context" && ctx.Err() != nil:
		<-n.b.end
	}
	return n.NetResourceOperations.CreateInterface(ctx, a, log)
}

func (n *badNode) ReleaseIPs(ctx context.Context, a *netresource.ReleaseAction) error {
	for _, key := range a.IPsToRelease {
		if n.gone[key] && n.b.defect == "releases only once" {
			return errors.New("it is not there")
		}
		n.gone[key] = true
	}
	return n.NetResourceOperations.ReleaseIPs(ctx, a)
}

func (n *badNode) PrepareIPRelease(excess int, log *slog.Logger) *netresource.ReleaseAction {
	a := n.NetResourceOperations.PrepareIPRelease(excess, log)
	if all, _ := n.ResyncInterfacesAndIPs(context.Background(), log); n.b.defect == "chooses what is used" && len(a.IPsToRelease) == 0 {
		for key := range all {
			a.IPsToRelease = append(a.IPsToRelease, key)
		}
	}
	return a
}

func TestDefectsAreFound(t *testing.T) {
	for defect, want := range map[string]string{
		"":                                 "",
		"says when it has ended":           "Resync returns when it has begun",
		"returns nil":                      "a node that has nothing has an empty map",
		"takes too many":                   "no more addresses are taken than are asked for",
		"one node's addresses for another": "nodes have different addresses",
		"releases only once":               "addresses are released once, and again",
		"chooses what is used":             "used addresses are not chosen for release",
		"ignores its context":              "calls return when their context has ended",
		"panics":                           "nodes have different addresses",
	} {
		t.Run(defect, func(t *testing.T) {
			g, end := NewWithT(t), make(chan struct{})
			defer close(end)
			p := netresourcetest.Provider{Unit: 1, New: func() netresource.AllocationImplementation {
				return &bad{AllocationImplementation: cloud(0), defect: defect, end: end}
			}}
			if defect == "ignores its context" {
				p.Patience = 10 * time.Millisecond // the call does not return before the end of the test
			}
			found := map[string]error{}
			for _, c := range netresourcetest.Checks() {
				if err := c.Run(p); err != nil && p.Patience == 0 || c.Name == want {
					found[c.Name] = err
				}
			}
			if defect == "" {
				g.Expect(found).To(BeEmpty())
				return
			}
			g.Expect(found[want]).To(HaveOccurred(), "%v", found)
		})
	}
}
