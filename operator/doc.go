// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package operator is the program of the cluster daemon. It assigns podCIDRs to nodes, or
// keeps their pools of addresses at watermarks. It reflects Kubernetes' state into the
// cluster store, and releases the IDs and claims of nodes that are gone. wire.go
// assembles it from the controllers in the folders below.
//
// One of several operators is elected by a Lease and runs the controllers; the
// remaining ones wait. A controller runs if --controllers names it and it has the
// flags that it needs; the log gives the reason for each one that does not.
//
// # Providers
//
// A cloud is a Provider. cmd/cadastre-operator has none and allocates blocks of
// AddressPools; a program with a cloud is a main of its own that passes WithProvider to
// Run. So this package, and each program without clouds, links no SDK of a cloud.
//
// # Concurrency
//
// Run may be called once in a process: it sets the log of client-go. It returns when
// everything that it has started has ended.
//
// # Failure
//
// Run returns an exit code:
//
//	0  ended by the context, all controllers ended and the Lease released
//	1  failed, or another process leads now: start it again
//	2  the command line is wrong
package operator
