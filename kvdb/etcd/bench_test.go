// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

// openBench opens a store of a server that does not wait for the disk: what is
// measured is the way to etcd and back, and etcd itself.
func openBench(b *testing.B) *etcd.Store {
	b.Helper()
	s, err := etcd.Open(etcd.Config{Endpoints: []string{etcdtest.Start(b).Endpoint()}, Prefix: "/cadastre/", RequestTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

func write(b *testing.B, s kvdb.Store, ops ...kvdb.Op) {
	b.Helper()
	if _, err := s.Txn(b.Context(), nil, ops); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkGet(b *testing.B) {
	s := openBench(b)
	write(b, s, kvdb.Put("a", make([]byte, 200)))
	for b.Loop() {
		if _, _, err := s.Get(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTxn(b *testing.B) {
	s := openBench(b)
	ops := []kvdb.Op{kvdb.Put("a", make([]byte, 200)), kvdb.Put("b", make([]byte, 200))}
	for b.Loop() {
		write(b, s, ops...)
	}
}

func BenchmarkTxnParallel(b *testing.B) {
	s := openBench(b)
	value := make([]byte, 200)
	b.SetParallelism(16)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := s.Txn(b.Context(), nil, []kvdb.Op{kvdb.Put("a", value)}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkList10000(b *testing.B) {
	s := openBench(b)
	for i := range 100 {
		var ops []kvdb.Op
		for j := range 100 {
			ops = append(ops, kvdb.Put(fmt.Sprintf("nodes/%05d", 100*i+j), make([]byte, 200)))
		}
		write(b, s, ops...)
	}
	for b.Loop() {
		kvs, _, err := s.List(b.Context(), "nodes/")
		if err != nil || len(kvs) != 10_000 {
			b.Fatal(len(kvs), err)
		}
	}
}

// BenchmarkWatch is from a transaction to its arrival at all watches.
func BenchmarkWatch(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := openBench(b)
			watches := make([]kvdb.Watcher, n)
			for i := range watches {
				w, err := s.Watch(b.Context(), "", 0)
				if err != nil {
					b.Fatal(err)
				}
				defer w.Close()
				watches[i] = w
			}
			op := kvdb.Put("a", make([]byte, 200))
			for b.Loop() {
				write(b, s, op)
				for _, w := range watches {
					if _, ok := <-w.Events(); !ok {
						b.Fatal(w.Err())
					}
				}
			}
		})
	}
}
