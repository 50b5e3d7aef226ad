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
//	node/NAME/netresourceset   NetResourceSet, where Config.NetResources is set
//
// The first four are read only; they are other people's objects. Whoever holds
// a node ID, and the pools, are objects of ours (package v1alpha1), which the
// agents write. Of a NetResourceSet that is there an agent writes the status only. There is nothing below node/NAME/external.
//
// # What is less than a kvdb.Store promises
//
// A key's ModRevision is its object's resourceVersion, which all objects take
// from one counter. (An API server that is told to keep some kinds elsewhere,
// --etcd-servers-overrides, must not do so with these.) A List is of one moment
// and a Watch continues it, as kvdb has it. The rest differs from kvdb's
// contract in three ways, which all users of this store are written for, and
// nobody else should be:
//
// A Txn is not atomic, for the API server has no transactions. Its writes are
// done one by one in their order, each if its object is as its condition says.
// Conditions on keys that are not written are looked at before the first write
// and again after the last one; two who each write what the other looks at
// cannot both succeed. NodeNames and PoolChange, which are there to be fought
// for, must after the last write still be as they were written. A Txn that
// fails, with ErrConditions too, may have done some of its writes. Callers order
// them so that each beginning of them is harmless, and do the whole again. Txn
// returns the revision of its last write, 0 where that was a deletion. A Put of
// what is there already is no change, except of what is to be fought for. What
// others have added to an object's metadata goes with a Put.
//
// A Watch delivers one change at a time, ordered by time within each kind only.
// Where the API server's own store was restored as it was before, and counts
// from there again, it ends with ErrOlder, at the latest some minutes after.
//
// The empty prefix, and that of all nodes, have nothing of single nodes.
//
// An object that cannot be read is a value that cannot be: it is not left out,
// so that what it hides is not taken for free.
//
// The Store keeps no state but how far it has seen the counter. Every method may
// be called from any goroutine, and ends with Close. What Watch starts has ended
// when its Watcher is closed.
//
// Example:
//
//	store, err := apistore.Open(apistore.Config{Kubeconfig: "", Node: "node-a"}) // in a pod
//	kvs, rev, err := store.List(ctx, kv.ClusterPrefix, kv.NodePrefix("node-a"))
//	w, err := store.Watch(ctx, kv.ClusterPrefix, rev+1)
package apistore
