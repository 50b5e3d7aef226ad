// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/test/chaos"
)

// A client was told an address, the agent was killed, and the next agent has no lease
// of it.
func ExampleOracle() {
	key := chaos.Key{"net", "container", "eth0"}
	oracle := chaos.NewOracle()
	oracle.Begin(key, chaos.Add)
	if err := oracle.End(key, chaos.Add, chaos.Told(netip.MustParseAddr("10.1.5.2"))); err != nil {
		fmt.Println(err)
	}
	fmt.Println(oracle.Check(chaos.Book{}, nil))
	// Output: net/container/eth0 holds nothing, it was told [10.1.5.2]
}
