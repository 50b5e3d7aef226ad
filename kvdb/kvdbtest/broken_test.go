// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"context"

	"github.com/cadastre/cadastre/kvdb"
)

// broken is a store with what it does wrong in place of the good methods.
type broken struct {
	kvdb.Store
	get   func(ctx context.Context, key string) (kvdb.KeyValue, bool, error)
	list  func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error)
	txn   func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error)
	watch func(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error)
	close func() error
}

func (b *broken) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	if b.get != nil {
		return b.get(ctx, key)
	}
	return b.Store.Get(ctx, key)
}

func (b *broken) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	if b.list != nil {
		return b.list(ctx, prefixes...)
	}
	return b.Store.List(ctx, prefixes...)
}

func (b *broken) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if b.txn != nil {
		return b.txn(ctx, conds, ops)
	}
	return b.Store.Txn(ctx, conds, ops)
}

func (b *broken) Watch(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
	if b.watch != nil {
		return b.watch(ctx, prefix, from)
	}
	return b.Store.Watch(ctx, prefix, from)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Store.Close()
}
