// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package engine reads the networks and containers of a Docker engine through its API.
//
// # What it proves
//
// A view holds what the engine itself has stored: its networks with their subnets,
// gateways and auxiliary addresses, the endpoints in them, and all containers. An
// address that none of them has is one that the engine has forgotten. The addresses
// that users have fixed for containers that do not run are part of a view, because the
// engine asks for them again without another word.
//
// # What it cannot prove
//
// That an address is not in use: the engine may have lost a container that still runs,
// which only the kernel shows. An endpoint whose address the engine has just asked for
// is in no view before the engine has stored it: two readings have to agree. A node of
// a swarm sees the networks of other nodes' tasks only in part. Engines before API 1.52
// do not say which gateway they have chosen for a subnet that a user has named. It is
// then known only as the gateway of a running container (EnginePool.Gateway is the zero
// Addr otherwise). PID is always 0: a container that is starting is locked, and nothing
// that could wait for the caller's own answer is asked for.
//
// # Ownership and concurrency
//
// A Reader keeps no connection and has no state but what Source says. Any goroutine
// may call it. Each Read negotiates the version of the API again, from 1.40 on: the
// engine may have been replaced. Read and Watch start no goroutine of their own; the
// engine's client starts one for a watch, which ends with it.
//
// # Failure
//
// Read returns a complete view or an error, in limited time: an engine that starts
// accepts connections and does not answer. A view is complete if networks and endpoints
// were the same before and after the containers were listed.
package engine
