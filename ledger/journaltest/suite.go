// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package journaltest tests implementations of the ledger's Journal, by Run. Agree compares
// the history of a ledger with its leases and blocks: a test opens the ledger on what a crash
// has left, and calls it.
package journaltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

// Journal is the contract under test.
type Journal interface {
	Load(ctx context.Context, f func(kvdb.KeyValue) error) error
	Commit(ctx context.Context, ops []kvdb.Op) error
}

// Run tests a journal. open returns an empty one at each call.
func Run(t *testing.T, open func(t *testing.T) Journal) {
	ctx := context.Background()
	records := func(g Gomega, j Journal) string {
		var all []string
		g.Expect(j.Load(ctx, func(r kvdb.KeyValue) error {
			all = append(all, fmt.Sprintf("%s=%s", r.Key, r.Value))
			return nil
		})).To(Succeed())
		return strings.Join(all, " ")
	}
	t.Run("an empty journal has no records", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(records(g, open(t))).To(BeEmpty())
	})
	t.Run("what is committed is loaded, in order", func(t *testing.T) {
		g := NewWithT(t)
		j := open(t)
		value := []byte("1")
		g.Expect(
			j.Commit(ctx, []kvdb.Op{kvdb.Put("b", value), kvdb.Put("a\x00\xff", []byte("2")), kvdb.Put("c", nil)}),
		).To(
			Succeed(),
		)
		value[0] = 'x'
		g.Expect(records(g, j)).To(Equal("a\x00\xff=2 b=1 c="))
		g.Expect(
			j.Commit(ctx, []kvdb.Op{kvdb.Delete("c"), kvdb.Delete("never there"), kvdb.Put("b", []byte("3"))}),
		).To(
			Succeed(),
		)
		g.Expect(records(g, j)).To(Equal("a\x00\xff=2 b=3"))
	})
	t.Run("a commit may have many ops", func(t *testing.T) {
		g := NewWithT(t)
		j := open(t)
		var ops []kvdb.Op
		for i := range 5000 {
			ops = append(ops, kvdb.Put(fmt.Sprintf("%05d", i), []byte("v")))
		}
		g.Expect(j.Commit(ctx, ops)).To(Succeed())
		n := 0
		g.Expect(j.Load(ctx, func(kvdb.KeyValue) error { n++; return nil })).To(Succeed())
		g.Expect(n).To(Equal(5000))
	})
	t.Run("the error of f ends the load", func(t *testing.T) {
		g := NewWithT(t)
		j, stop, n := open(t), errors.New("stop"), 0
		g.Expect(j.Commit(ctx, []kvdb.Op{kvdb.Put("a", nil), kvdb.Put("b", nil)})).To(Succeed())
		g.Expect(j.Load(ctx, func(kvdb.KeyValue) error { n++; return stop })).To(MatchError(stop))
		g.Expect(n).To(Equal(1))
	})
	t.Run("a context that ended changes nothing", func(t *testing.T) {
		g := NewWithT(t)
		j := open(t)
		over, cancel := context.WithCancel(ctx)
		cancel()
		g.Expect(j.Commit(over, []kvdb.Op{kvdb.Put("a", nil)})).To(MatchError(context.Canceled))
		g.Expect(records(g, j)).To(BeEmpty())
	})
}
