// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package handshake_test

import (
	"fmt"

	"github.com/cadastre/cadastre/api/handshake"
)

// An agent answers the operator's mark on a block, first with leases in it, then
// without.
func ExampleAnswer() {
	for _, leased := range []bool{true, false} {
		fmt.Println(handshake.Answer(handshake.Marked, handshake.Seen{InPool: true, Leased: leased}))
	}
	// Output:
	// do-not-release
	// ready-for-release
}
