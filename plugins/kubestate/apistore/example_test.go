// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore_test

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// A pool is written as an object, read with all that belongs to a node, and watched. In
// a pod, Config{Node: "node-a"} finds the API server.
func ExampleOpen() {
	server := apistoretest.New()
	defer server.Close()
	store, err := apistore.Open(apistore.Config{REST: server.Config(), Node: "node-a"})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	ctx := context.Background()
	pool := func(generation uint64) kvdb.Op {
		value, err := proto.Marshal(&kv.Pool{Name: "default", Network: "default", Generation: generation})
		if err != nil {
			panic(err)
		}
		return kvdb.Put(kv.PoolKey("default"), value)
	}
	absent := []kvdb.Cond{kvdb.Absent(kv.PoolKey("default"))}
	if _, err := store.Txn(ctx, absent, []kvdb.Op{pool(1)}); err != nil {
		panic(err)
	}
	kvs, rev, err := store.List(ctx, kv.ClusterPrefix, kv.NodePrefix("node-a"))
	if err != nil {
		panic(err)
	}
	fmt.Println("listed", len(kvs), kvs[0].Key)
	w, err := store.Watch(ctx, kv.ClusterPrefix, rev+1)
	if err != nil {
		panic(err)
	}
	defer w.Close()
	if _, err := store.Txn(ctx, nil, []kvdb.Op{pool(2)}); err != nil {
		panic(err)
	}
	changes := <-w.Events()
	fmt.Println("changed", changes[0].Key)
	// Output:
	// listed 1 cluster/pool/default
	// changed cluster/pool/default
}
