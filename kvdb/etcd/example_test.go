// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/cadastre/cadastre/kvdb/etcd"
)

// A reader lists the keys of two prefixes and follows the changes of one of them.
func Example() {
	follow := func(ctx context.Context, client *tls.Config) error {
		store, err := etcd.Open(etcd.Config{
			Endpoints: []string{"https://10.0.0.1:2379", "https://10.0.0.2:2379"},
			Prefix:    "/cadastre/",
			TLS:       client,
		})
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		kvs, rev, err := store.List(ctx, "nodes/", "pools/")
		if err != nil {
			return err
		}
		w, err := store.Watch(ctx, "nodes/", rev+1)
		if err != nil {
			return err
		}
		defer w.Close()
		for batch := range w.Events() {
			fmt.Println(len(kvs), "keys,", len(batch), "events")
		}
		return w.Err() // not nil: list again
	}
	_ = follow
}
