// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// The first call is applied, and its answer is lost.
func ExampleCloud_AddAlias() {
	c := memcloud.New(memcloud.Config{Fault: memcloud.At(1, memcloud.Tear)})
	c.AddMachine("node-a", "mem://1")
	m := nodeipam.Machine{Node: "node-a", ProviderID: "mem://1"}
	fmt.Println(c.AddAlias(context.Background(), m, netip.MustParsePrefix("10.1.16.0/24")))
	fmt.Println(c.Aliases(context.Background(), m))
	// Output:
	// add alias 10.1.16.0/24 to node-a: add alias: memcloud: injected fault
	// [10.1.16.0/24] <nil>
}
