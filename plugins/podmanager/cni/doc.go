// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cni holds the CNI protocol that both ends of the agent's socket share. The executable
// passes on what a runtime gives to it (Call, Invocation). The agent makes a Request of it, serves
// that, and prints a Reply or an Error for the executable. The package also holds the intents that
// replace a DEL while the agent is away. The plugin is the main plugin of a network, for which the agent makes the
// pods' interfaces, with
//
//	{"cniVersion": "1.1.0", "name": "pods", "type": "cadastre-cni"}
//
// Another main plugin delegates the addresses to it with
//
//	{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true,
//	 "ipam": {"type": "cadastre-cni"}}
//
// The package is pure except for the intents. It imports only the standard library, because
// its imports decide how fast the executable starts. It never panics on bad input: each
// refusal is an *Error with a code of CNI.
package cni
