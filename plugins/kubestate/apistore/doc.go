// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package apistore serves Kubernetes' API server as the cluster store, for clusters
// without an etcd of their own. It maps objects to the keys and messages of package kv.
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
//	check/cluster              ClusterCheck
//	node/NAME/netresourceset   NetResourceSet, if Config.NetResources is set
//
// The first four are read only, because other programs own these objects. The others
// are Cadastre's own objects (package v1alpha1), which the agents write. An agent
// writes only the status of an existing NetResourceSet. There is nothing below
// node/NAME/external.
//
// # Differences from a kvdb.Store
//
// A key's ModRevision is its object's resourceVersion, which all objects take from one
// counter. (An API server that keeps some kinds elsewhere, --etcd-servers-overrides,
// must not do so with these.) A List is of one moment and a Watch continues it, as
// kvdb requires. Three things differ from kvdb's contract. All users of this store in
// Cadastre allow for them.
//
// A Txn is not atomic, because the API server has no transactions. It does its writes
// one by one in their order, each only if its object meets its condition. It checks
// conditions on keys that it does not write before the first write and again after the
// last one. So of two transactions that each write what the other checks at most one
// succeeds. Nodes compete for NodeNames and PoolChange: these must after the last write
// still be as they were written. A Txn that fails, also with ErrConditions, may have
// done some of its writes. Callers order the writes so that each beginning of them is
// harmless, and repeat all of them. Txn returns the revision of its last write, 0 if
// that was a deletion. A Put of an equal value is not a change, except for the objects
// that nodes compete for. A Put removes what other programs have added to an object's
// metadata.
//
// A Watch delivers one change at a time, ordered by time only within each kind. If the
// API server's own store was restored and counts again from an earlier revision, the
// Watch ends with ErrOlder, at the latest some minutes later.
//
// The empty prefix, and that of all nodes, contain nothing of single nodes.
//
// An object that cannot be read has a value that cannot be read. It is not left out,
// so that the prefix or ID that it holds does not look free.
//
// A Store keeps no state except the highest revision that it has seen. Any goroutine
// may call every method. All of them end with Close. The goroutines that Watch starts
// have ended when its Watcher is closed.
package apistore
