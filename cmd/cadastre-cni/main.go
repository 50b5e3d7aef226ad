// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-cni is the CNI IPAM plugin that a main plugin delegates to:
// it hands what it is asked to the node's agent and prints the answer. It keeps
// no state of its own and needs no credentials. While the agent is away, a DEL is
// written down for it, and everything else is to be tried again.
package main

import (
	"fmt"
	"os"

	"github.com/cadastre/cadastre/internal/version"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" { // a runtime gives no arguments
		fmt.Println(version.Line("cadastre-cni"))
		return
	}
	os.Exit(withRoom(false, func() int { return run(os.Getenv, os.Stdin, os.Stdout) }))
}

// withRoom calls f on a stack that need not grow again. A Go stack begins with a few
// kilobytes and doubles by being copied, each time into memory that no page was mapped for yet.
// With the frame of this function it grows once. never must be false; the compiler does not
// know that, as the function is not inlined.
//
//go:noinline
func withRoom(never bool, f func() int) int {
	if never {
		var room [48 << 10]byte
		return fill(&room)
	}
	return f()
}

//go:noinline
func fill(room *[48 << 10]byte) (sum int) {
	for i := range room {
		room[i] = byte(sum)
		sum += i
	}
	return sum
}
