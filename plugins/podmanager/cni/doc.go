// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cni holds the CNI protocol that both ends of the agent's socket share. This is what a
// runtime passes to the executable (Invocation), the request to the agent (Request), and the
// agent's answer (Reply or Error). The package also holds the intents that replace a DEL while
// the agent is away. The plugin is the main plugin of a network, for which the agent makes the
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
