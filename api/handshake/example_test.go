// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package handshake_test

import (
	"fmt"

	"github.com/cadastre/cadastre/api/handshake"
)

// The operator marks an unused block, the agent agrees, and the operator releases it.
func Example() {
	tooMany := handshake.Want{Excess: true}
	state := handshake.Decide(handshake.None, tooMany)
	fmt.Println(state, handshake.Allocatable(state))
	state = handshake.Answer(state, handshake.Seen{InPool: true})
	fmt.Println(state)
	state = handshake.Decide(state, tooMany)
	fmt.Println(state, handshake.Call(state, tooMany))
	// Output:
	// marked-for-release false
	// ready-for-release
	// released true
}
