// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster reads the cluster witness: the pods of this node and the nodes, in
// the Kubernetes state that the agent follows. It sends no request of its own.
//
// It proves which pods the API server has assigned to this node, as of the revision of
// the view. It does not prove that their containers run, and a pod that is not in the
// view may still run: the kubelet ends the containers of a deleted pod later. With the
// API server as cluster store an agent reads its own Node only.
//
// # Ownership and concurrency
//
// A Reader is an event handler. The loop calls its methods Resync and Update, which
// replace one immutable snapshot; a change costs the same for any number of pods. Any
// goroutine may call Read.
//
// # Failure
//
// Read returns an error, and no view, before the first resync, while the loop has only
// the mirror of the state, and while the store does not answer. It also does so if
// a value of a pod or a Node cannot be read, and if the cluster has Nodes but not this
// one. Without a cluster store and without Kubernetes the error wraps
// witness.ErrNotApplicable.
package cluster
