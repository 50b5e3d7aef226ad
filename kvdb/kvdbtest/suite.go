// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

// suite holds one store under one check. Its methods fail the check if the store
// does not do as told; they may only be called by the check's own goroutine.
type suite struct {
	Gomega
	ctx      context.Context
	store    kvdb.Store
	watchers []kvdb.Watcher
}

func (x *suite) cleanUp() {
	for _, w := range x.watchers {
		w.Close()
	}
	// Whether Close works is a check of its own.
	_ = x.store.Close()
}

// write applies ops and answers the revision.
func (x *suite) write(ops ...kvdb.Op) int64 {
	rev, err := x.store.Txn(x.ctx, nil, ops)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return rev
}

func (x *suite) put(key, value string) int64 {
	rev, err := x.store.Txn(x.ctx, nil, []kvdb.Op{kvdb.Put(key, []byte(value))})
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return rev
}

// try applies ops under conds.
func (x *suite) try(conds []kvdb.Cond, ops ...kvdb.Op) error {
	_, err := x.store.Txn(x.ctx, conds, ops)
	return err
}

func (x *suite) list(prefix string) ([]kvdb.KeyValue, int64) {
	kvs, rev, err := x.store.List(x.ctx, prefix)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return kvs, rev
}

// expectStored expects exactly these keys and values, "key=value", below prefix.
func (x *suite) expectStored(prefix string, want ...string) {
	x.ExpectWithOffset(1, x.listed(prefix)).To(Equal(append([]string{}, want...)), "stored below %q", prefix)
}

// listed are the keys and values, "key=value", below any of prefixes.
func (x *suite) listed(prefixes ...string) []string {
	kvs, _, err := x.store.List(x.ctx, prefixes...)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	got := []string{}
	for _, kv := range kvs {
		got = append(got, kv.Key+"="+string(kv.Value))
	}
	return got
}

// watch opens a watch that ends with the check.
func (x *suite) watch(prefix string, from int64) kvdb.Watcher {
	return x.watchWith(x.ctx, prefix, from)
}

func (x *suite) watchWith(ctx context.Context, prefix string, from int64) kvdb.Watcher {
	w, err := x.store.Watch(ctx, prefix, from)
	x.ExpectWithOffset(2, err).NotTo(HaveOccurred())
	x.watchers = append(x.watchers, w)
	return w
}

// next answers the next batch.
func (x *suite) next(w kvdb.Watcher) []kvdb.Event {
	batch, ok, err := receive(x.ctx, w)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	x.ExpectWithOffset(1, ok).To(BeTrue(), "the watch ended: %v", w.Err())
	return batch
}

// expectNext expects the next batch to be these events, as describe puts them.
func (x *suite) expectNext(w kvdb.Watcher, want ...string) {
	batch, ok, err := receive(x.ctx, w)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	x.ExpectWithOffset(1, ok).To(BeTrue(), "the watch ended: %v", w.Err())
	x.ExpectWithOffset(1, describe(batch)).To(Equal(want))
}

// end answers why the watch ended, and what it delivered before.
func (x *suite) end(w kvdb.Watcher) ([][]kvdb.Event, error) {
	var rest [][]kvdb.Event
	for {
		batch, ok, err := receive(x.ctx, w)
		x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
		if !ok {
			return rest, w.Err()
		}
		rest = append(rest, batch)
	}
}

func receive(ctx context.Context, w kvdb.Watcher) ([]kvdb.Event, bool, error) {
	select {
	case batch, ok := <-w.Events():
		return batch, ok, nil
	case <-ctx.Done():
		return nil, false, fmt.Errorf("wait for the watch: %w", ctx.Err())
	}
}

// describe renders events as "put key=value @revision" and "delete key @revision".
func describe(events []kvdb.Event) []string {
	var out []string
	for _, e := range events {
		switch {
		case e.Deleted && e.Value != nil:
			out = append(out, fmt.Sprintf("delete with a value %s=%s @%d", e.Key, e.Value, e.ModRevision))
		case e.Deleted:
			out = append(out, deleted(e.Key, e.ModRevision))
		default:
			out = append(out, stored(e.Key, string(e.Value), e.ModRevision))
		}
	}
	return out
}

func stored(key, value string, rev int64) string {
	return fmt.Sprintf("put %q=%q @%d", key, value, rev)
}

func deleted(key string, rev int64) string { return fmt.Sprintf("delete %q @%d", key, rev) }

// together runs n workers at the same time and waits for all of them.
func together(n int, work func(i int) error) error {
	errs := make([]error, n)
	var workers sync.WaitGroup
	for i := range n {
		workers.Go(func() { errs[i] = work(i) })
	}
	workers.Wait()
	return errors.Join(errs...)
}

// puts are operations "key=value".
func puts(pairs ...string) []kvdb.Op {
	var ops []kvdb.Op
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		ops = append(ops, kvdb.Put(key, []byte(value)))
	}
	return ops
}
