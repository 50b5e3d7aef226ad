// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest"
)

func TestProvidersKeepTheContract(t *testing.T) {
	for name, p := range map[string]netresourcetest.Provider{
		"cloudpool, addresses": memory(0, nil),
		"cloudpool, prefixes":  memory(28, nil),
		"cloudpool, as published": memory(0, func(x *parts) {
			x.provider = func(p netresource.AllocationImplementation) netresource.AllocationImplementation {
				return published{p}
			}
		}),
		"clusterpool": {Unit: 16, New: clusters},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range netresourcetest.Checks() {
				t.Run(c.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { c.Test(t, p) })
				})
			}
		})
	}
}

// clusters makes a world of clusterpool, which has no cloud.
func clusters(_ context.Context, s netresourcetest.Shape) (*netresourcetest.World, error) {
	if s.DualStack {
		return nil, fmt.Errorf("pools of two families are not set up here: %w", errors.ErrUnsupported)
	}
	pool := &v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{{CIDR: "10.0.0.0/20", BlockPrefixLen: 28}}}}
	if s.Units > 0 {
		pool.Spec.CIDRs[0].CIDR = "10.0.0.0/24"
	}
	pool.Name = "default"
	return &netresourcetest.World{Provider: func() (netresource.AllocationImplementation, error) {
		p := clusterpool.New(clusterpool.Config{})
		return p, p.SetPool(pool)
	}}, nil
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
