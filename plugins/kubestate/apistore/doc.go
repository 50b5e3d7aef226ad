// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package apistore is the cluster store of clusters that want no etcd of their
// own: Kubernetes' API server, seen as the keys and messages of package kv.
//
//	cluster/node/NAME          the Node of that name; only this node's is read
//	node/NAME/pod/NS/POD       the Pods of a node
//	cluster/network/NAME       CustomNetwork
//	node/NAME/config           NodeConfig
//	cluster/node-id/ID         NodeID
//	beat/ID                    NodeBeat
//	name/NAME                  NodeName
//	cluster/pool/NAME          Pool
//	pools                      PoolChange
//
// The first four are read only; they are other people's objects. Whoever holds
// a node ID, and the pools, are objects of ours (package v1alpha1), which the
// agents write. There is nothing below node/NAME/external.
//
// # What is less than a kvdb.Store promises
//
// A key's ModRevision is its object's resourceVersion, which grows from write
// to write. Everything else differs from kvdb's contract in three ways, which
// all users of this store are written for, and nobody else should be:
//
// A Txn is not atomic, for the API server has no transactions. Its writes are
// done one by one in their order, each if its object is as its condition says.
// Conditions on keys that are not written are looked at before the first write
// and again after the last one; two who each write what the other looks at
// cannot both succeed. A Txn that fails, with ErrConditions too, may have done
// some of its writes. Callers order them so that each beginning of them is
// harmless, and do the whole again. Txn returns the revision of its last write.
//
// A List of several prefixes is not of one moment: each kind of object is read
// as of a moment of its own. The revision that it answers is a token: a Watch
// that continues from the one behind it misses nothing of any kind.
//
// A Watch begins where a List of this Store ended, which was not long ago; else
// it fails with kvdb.ErrCompacted. It delivers one change at a time, ordered by
// time within each kind only.
//
// The Store keeps no state but these tokens. Every method may be called from
// any goroutine. What Watch starts has ended when its Watcher is closed.
//
// Example:
//
//	store, err := apistore.Open(apistore.Config{Kubeconfig: "", Node: "node-a"}) // in a pod
//	kvs, rev, err := store.List(ctx, kv.ClusterPrefix, kv.NodePrefix("node-a"))
//	w, err := store.Watch(ctx, kv.ClusterPrefix, rev+1)
package apistore
