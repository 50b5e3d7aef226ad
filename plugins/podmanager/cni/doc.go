// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cni is the CNI protocol of a delegated IPAM plugin, as far as it is
// the same at both ends of the agent's socket: what a runtime hands to the
// executable (Invocation), what the executable asks the agent (Request), what
// the agent answers (Reply or Error), what the runtime gets (Result), and the
// intents that stand in for a DEL while the agent is away.
//
// It is pure but for the intents, imports the standard library only (it
// decides how fast the executable starts) and never panics on bad input: every
// refusal is an *Error with CNI's own code.
//
// Example, a network configuration that delegates to this plugin:
//
//	{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true,
//	 "ipam": {"type": "cadastre-cni"}}
package cni
