// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-cni is the CNI IPAM plugin that a main plugin delegates to:
// it hands what it is asked to the node's agent and prints the answer. It keeps
// no state of its own and needs no credentials; while the agent is away, a DEL
// is written down for it, and everything else is to be tried again.
package main

import "os"

func main() { os.Exit(run(os.Getenv, os.Stdin, os.Stdout)) }
