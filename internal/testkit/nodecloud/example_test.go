// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/internal/testkit/nodecloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// The first call is applied, and its answer is lost.
func Example() {
	c := memcloud.New()
	c.AddMachine("node-a", "mem://1")
	c.Fault = memcloud.At(1, memcloud.Tear)
	m := nodeipam.Machine{Node: "node-a", ProviderID: "mem://1"}
	fmt.Println(c.AddAlias(context.Background(), m, netip.MustParsePrefix("10.1.16.0/24")))
	fmt.Println(c.Aliases(context.Background(), m))
	// Output:
	// add alias 10.1.16.0/24 to node-a: memcloud: injected fault
	// [10.1.16.0/24] <nil>
}
