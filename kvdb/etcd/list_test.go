// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

// fill writes n keys below each prefix, all with value.
func fill(t *testing.T, s kvdb.Store, n int, value string, prefixes ...string) {
	t.Helper()
	var ops []kvdb.Op
	for _, prefix := range prefixes {
		for i := range n {
			ops = append(ops, kvdb.Put(fmt.Sprintf("%s%05d", prefix, i), []byte(value)))
		}
	}
	for some := range slices.Chunk(ops, kvdb.MaxOps) {
		_, err := s.Txn(t.Context(), nil, some)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
}

// requests counts what a store asks etcd for.
type requests struct {
	mu     sync.Mutex
	byOp   map[string]int
	failed map[string]error
}

func (r *requests) observe(op string, _ time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byOp == nil {
		r.byOp, r.failed = map[string]int{}, map[string]error{}
	}
	r.byOp[op]++
	if err != nil {
		r.failed[op] = err
	}
}

func (r *requests) count(op string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byOp[op]
}

func (r *requests) err(op string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[op]
}

func TestListReadsPageByPage(t *testing.T) {
	server := etcdtest.Start(t)
	fill(t, open(t, at(server.Endpoint())), 30, "x", "a/", "b/")
	for name, c := range map[string]struct {
		size, requests, keys int
		prefixes             []string
	}{
		"one page":                 {100, 1, 60, []string{""}},
		"exactly one page":         {60, 1, 60, []string{""}},
		"one key more than a page": {59, 2, 60, []string{""}},
		"several pages":            {25, 3, 60, []string{""}},
		"several of each prefix":   {20, 3, 60, []string{"a/", "b/"}}, // ten of each at first, then what is left
		"of one prefix":            {20, 2, 30, []string{"none", "b/"}},
		"fewer keys than prefixes": {1, 59, 60, []string{"a/", "b/"}},
		"no prefix":                {10, 1, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var seen requests
			cfg := at(server.Endpoint())
			cfg.PageSize, cfg.Observe = c.size, seen.observe
			kvs, _, err := open(t, cfg).List(t.Context(), c.prefixes...)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kvs).To(HaveLen(c.keys))
			g.Expect(slices.IsSortedFunc(kvs, func(a, b kvdb.KeyValue) int { return cmpKeys(a, b) })).To(BeTrue())
			g.Expect(seen.count(etcd.OpList)).To(Equal(c.requests))
		})
	}
}

func cmpKeys(a, b kvdb.KeyValue) int {
	if a.Key < b.Key {
		return -1
	}
	return 1
}

// A writer keeps one value in all keys, of two prefixes; a list of many pages
// must see one value, and as many keys as were ever written at once.
func TestListIsOfOneRevision(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	cfg := at(server.Endpoint())
	writer := open(t, cfg)
	cfg.PageSize = 3
	reader := open(t, cfg)
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	fill(t, writer, 20, "start", "a/", "b/")
	writers.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			var ops []kvdb.Op
			for i := range 20 {
				for _, prefix := range []string{"a/", "b/"} {
					ops = append(ops, kvdb.Put(fmt.Sprintf("%s%05d", prefix, i), []byte(strconv.Itoa(n))))
				}
			}
			_, _ = writer.Txn(ctx, nil, ops)
		}
	})
	revs := map[int64]bool{}
	for range 30 {
		kvs, rev, err := reader.List(t.Context(), "b/", "a/")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kvs).To(HaveLen(40))
		for _, kv := range kvs {
			g.Expect(kv.ModRevision).To(Equal(kvs[0].ModRevision))
			g.Expect(kv.ModRevision).To(BeNumerically("<=", rev))
			g.Expect(kv.Value).To(Equal(kvs[0].Value))
		}
		revs[rev] = true
	}
	g.Expect(len(revs)).To(BeNumerically(">", 1), "there was no write meanwhile")
}

// Each page of a list is compacted away before it is read, some times: the
// list begins anew, but not for ever.
func TestListOfACompactedRevision(t *testing.T) {
	for name, c := range map[string]struct {
		times int
		fails bool
	}{
		"once": {1, false}, "some times": {4, false}, "always": {100, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := etcdtest.Start(t)
			writer := open(t, at(server.Endpoint()))
			fill(t, writer, 10, "x", "a/")
			left := c.times
			cfg := at(server.Endpoint())
			cfg.PageSize = 6
			cfg.Observe = func(op string, _ time.Duration, err error) {
				if op != etcd.OpList || err != nil || left == 0 {
					return
				}
				left--
				rev := put(t, writer, "a/00000", "y")
				g.Expect(server.Compact(t.Context(), rev)).To(Succeed())
			}
			kvs, rev, err := open(t, cfg).List(t.Context(), "a/")
			if c.fails {
				g.Expect(err).To(MatchError(kvdb.ErrCompacted))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kvs).To(HaveLen(10))
			g.Expect(kvs[0].ModRevision).To(Equal(rev))
		})
	}
}

// A list of more than gRPC takes in one message by default.
func TestListOfManyBytes(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	cfg := at(server.Endpoint())
	cfg.RequestTimeout = long // a megabyte to a busy disk
	s := open(t, cfg)
	for i := range 12 {
		put(t, s, strconv.Itoa(i), string(make([]byte, 1000_000)))
	}
	kvs, _, err := s.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(HaveLen(12))
	_, err = s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put("a", make([]byte, 1_800_000))})
	g.Expect(err).To(MatchError(ContainSubstring("too large")))
}
