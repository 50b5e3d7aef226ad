// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
)

// The store is a part of the node's database file: it is closed before the file.
func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: node-a at revision 1
}

func example(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bolt")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	f, err := bolt.OpenFile(filepath.Join(dir, "cadastre.db"), bolt.FileOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	store, err := f.Store()
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if _, err := store.Txn(ctx, nil, []kvdb.Op{kvdb.Put("nodes/5", []byte("node-a"))}); err != nil {
		return err
	}
	kv, _, err := store.Get(ctx, "nodes/5")
	fmt.Printf("%s at revision %d\n", kv.Value, kv.ModRevision)
	return err
}
