// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// The server does the first creation and answers with an error.
func ExampleTear() {
	server := apistoretest.New()
	defer server.Close()
	store, err := apistore.Open(apistore.Config{
		REST: server.Config(),
		Node: "node-a",
		Log:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	server.Plan(apistoretest.On("create", 1, apistoretest.Tear()))
	_, err = store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(kv.PoolsKey, nil)})
	_, found, _ := store.Get(context.Background(), kv.PoolsKey)
	fmt.Println("failed:", err != nil, "done:", found)
	// Output:
	// failed: true done: true
}
