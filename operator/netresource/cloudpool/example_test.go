// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
)

// A node takes three addresses of its machine's first interface. In the operator the manager
// makes these calls.
func Example() {
	ctx := context.Background()
	machines := memcloud.New(memcloud.Config{
		Subnets: map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/24")},
	})
	machines.AddInstance("i-1", "subnet-a")
	p := cloudpool.New(cloudpool.Config{Cloud: machines, Log: slog.New(slog.DiscardHandler)})
	if _, err := p.Read(ctx); err != nil {
		panic(err)
	}

	set := &v1alpha1.NetResourceSet{}
	set.Name, set.Spec.InstanceID = "node-a", "i-1"
	if _, err := p.State(ctx, set); err != nil {
		panic(err)
	}
	got, err := p.Allocate(ctx, set, 3)
	if err != nil {
		panic(err)
	}
	now, err := p.State(ctx, set)
	if err != nil {
		panic(err)
	}
	fmt.Println(got.Interface, slices.Sorted(maps.Keys(now.Available)))
	// Output: eni-1 [10.0.0.1 10.0.0.2 10.0.0.3]
}
