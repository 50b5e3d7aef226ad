// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

func raceChecks() []Check {
	return []Check{
		{"let one of many claim a key", raceForKey},
		{"lose no update of compare-and-swap", raceCounters},
		{"show no half of a transaction", raceReaders},
		{"list several prefixes as of one revision", racePrefixes},
		{"continue a list with a watch, without gap or repetition", raceListAndWatch},
	}
}

func raceForKey(x *suite) {
	const callers, keys = 8, 5
	var mu sync.Mutex
	winners := map[string]string{}
	x.Expect(together(callers, func(i int) error {
		for k := range keys {
			key, name := fmt.Sprint("k", k), fmt.Sprint(i)
			err := x.try([]kvdb.Cond{kvdb.Absent(key)}, kvdb.Put(key, []byte(name)))
			if errors.Is(err, kvdb.ErrConditions) {
				continue
			}
			mu.Lock()
			if winner, taken := winners[key]; taken && err == nil {
				err = fmt.Errorf("both %s and %s claimed %s", winner, name, key)
			}
			winners[key] = name
			mu.Unlock()
			if err != nil {
				return err
			}
		}
		return nil
	})).To(Succeed())
	kvs, _ := x.list("")
	x.Expect(kvs).To(HaveLen(keys))
	for _, kv := range kvs {
		x.Expect(string(kv.Value)).To(Equal(winners[kv.Key]), kv.Key)
	}
}

func raceCounters(x *suite) {
	const callers, rounds = 4, 15
	x.Expect(together(callers, func(i int) error {
		for range rounds {
			if err := increment(x.ctx, x.store, "n", fmt.Sprint("of/", i)); err != nil {
				return err
			}
		}
		return nil
	})).To(Succeed())
	x.expectStored("n", "n="+strconv.Itoa(callers*rounds))
	for i := range callers {
		x.expectStored(fmt.Sprint("of/", i), fmt.Sprintf("of/%d=%d", i, rounds))
	}
}

// increment adds one to each of keys, in one transaction.
func increment(ctx context.Context, store kvdb.Store, keys ...string) error {
	for {
		var conds []kvdb.Cond
		var ops []kvdb.Op
		for _, key := range keys {
			kv, found, err := store.Get(ctx, key)
			if err != nil {
				return err
			}
			n := 0
			if found {
				if n, err = strconv.Atoi(string(kv.Value)); err != nil {
					return err
				}
			}
			conds = append(conds, kvdb.AtRevision(key, kv.ModRevision))
			ops = append(ops, kvdb.Put(key, []byte(strconv.Itoa(n+1))))
		}
		runtime.Gosched() // another may come first
		if _, err := store.Txn(ctx, conds, ops); !errors.Is(err, kvdb.ErrConditions) {
			return err
		}
	}
}

func raceReaders(x *suite) { readTriples(x, "") }

func racePrefixes(x *suite) { readTriples(x, "c", "a", "b") }

// readTriples lists, during writes, keys that are always written together.
func readTriples(x *suite, prefixes ...string) {
	const readers, rounds = 2, 30
	reading := make(chan struct{}, readers) // one for each that is done
	x.Expect(together(1+readers, func(i int) error {
		if i == 0 {
			return writeTriples(x.ctx, x.store, func() bool { return len(reading) == readers })
		}
		defer func() { reading <- struct{}{} }()
		for range rounds {
			kvs, rev, err := x.store.List(x.ctx, slices.Clone(prefixes)...)
			if err != nil {
				return err
			}
			for _, kv := range kvs {
				if len(kvs) != 3 || string(kv.Value) != string(kvs[0].Value) || kv.ModRevision != kvs[0].ModRevision {
					return fmt.Errorf("half of a transaction is seen at revision %d: %v", rev, kvs)
				}
			}
		}
		return nil
	})).To(Succeed())
}

// writeTriples writes three equal values at a time until it is enough.
func writeTriples(ctx context.Context, store kvdb.Store, enough func() bool) error {
	for n := 0; !enough(); n++ {
		value := strconv.Itoa(n)
		if _, err := store.Txn(ctx, nil, puts("a="+value, "b="+value, "c="+value)); err != nil {
			return err
		}
	}
	return nil
}

// written is a transaction that a store applied.
type written struct {
	rev int64
	ops []kvdb.Op
}

// picture is a list and the watch that continues it.
type picture struct {
	rev     int64
	kvs     []string
	watcher kvdb.Watcher
}

func raceListAndWatch(x *suite) {
	const callers, rounds = 4, 30
	ctx, cancel := context.WithCancel(x.ctx)
	progress := make(chan written)
	result := make(chan error, 1)
	go func() {
		defer close(progress)
		result <- together(callers, func(i int) error { return scribble(ctx, x.store, i, rounds, progress) })
	}()
	defer func() { // also when the check fails in between
		cancel()
		for range progress {
		}
	}()
	var all []written
	var pictures []picture
	for w := range progress {
		if all = append(all, w); len(all)%12 == 0 {
			pictures = append(pictures, x.take())
		}
	}
	x.Expect(<-result).To(Succeed())
	end := x.put("end", "")
	all = append(all, written{end, puts("end=")})
	slices.SortFunc(all, func(a, b written) int { return cmp.Compare(a.rev, b.rev) })
	for _, p := range pictures {
		x.develop(p, all)
	}
}

// scribble writes and deletes keys, some of them those of other callers too.
func scribble(ctx context.Context, store kvdb.Store, caller, rounds int, progress chan<- written) error {
	for n := range rounds {
		ops := puts(fmt.Sprintf("own/%d=%d", caller, n), fmt.Sprintf("shared/%d=%d", n%5, caller))
		if n%7 == 6 {
			ops[1].Delete = true
		}
		rev, err := store.Txn(ctx, nil, ops)
		if err != nil {
			return err
		}
		select {
		case progress <- written{rev, ops}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (x *suite) take() picture {
	kvs, rev := x.list("")
	p := picture{rev: rev, kvs: []string{}, watcher: x.watch("", rev+1)}
	for _, kv := range kvs {
		p.kvs = append(p.kvs, stored(kv.Key, string(kv.Value), kv.ModRevision))
	}
	return p
}

// develop compares a picture, and what its watch delivered, with what was
// written before and after it.
func (x *suite) develop(p picture, all []written) {
	m := newModel()
	for i, w := range all {
		if i > 0 {
			x.Expect(w.rev).NotTo(Equal(all[i-1].rev), "two transactions with one revision")
		}
		if w.rev <= p.rev {
			m.apply(w.rev, w.ops)
		}
	}
	x.Expect(p.kvs).To(Equal(m.list("")), "the list at revision %d", p.rev)
	for _, w := range all {
		if w.rev > p.rev {
			m.apply(w.rev, w.ops)
		}
	}
	for _, want := range m.since(p.rev+1, "") {
		x.expectNext(p.watcher, want...)
	}
}
