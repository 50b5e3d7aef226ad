// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest_test

import (
	"context"
	"errors"
	"fmt"
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
		"clusterpool":          {Unit: 16, New: clusters},
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
	return &netresourcetest.World{Provider: func() (netresource.Provider, error) {
		p := clusterpool.New(clusterpool.Config{})
		return p, p.SetPool(pool)
	}}, nil
}
