// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// counted counts the lists of a store.
type counted struct {
	kvdb.Store
	lists atomic.Int64
}

func (c *counted) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	c.lists.Add(1)
	return c.Store.List(ctx, prefixes...)
}

// A node that waits lists the store when something changes that it may wait for. It does
// not list it with each commit of its event loop or each claim of a large cluster.
func TestANodeThatWaitsListsOnlyForWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.now = time.Now()
		a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
		run(w.store, &every{}, w.check, w.asks(b, wide(), 1))
		store := &counted{Store: w.store}
		c, err := claims.NewClaimer(claims.ClaimerDeps{
			Log: slog.New(slog.DiscardHandler), Register: w.register(store), Disk: diskOf{}, Node: func() (claims.Node, bool) { return a, true },
			InUse: func(claims.Target) bool { return false }, Refresh: time.Hour, Changed: func() {}, Suspend: func(string) {}, Now: time.Now, Random: func() float64 { return 0 },
		})
		w.g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		c.Hold(wide())
		c.Want(kv.PodNetworkClaims, []claims.Target{wide()})
		synctest.Wait()
		w.g.Expect(c.Waiting()).To(HaveLen(1))
		lists := func(do func()) int64 {
			before := store.lists.Load()
			for range 100 {
				do()
				synctest.Wait()
			}
			return store.lists.Load() - before
		}
		w.g.Expect(lists(func() { c.Want(kv.PodNetworkClaims, []claims.Target{wide()}) })).To(BeZero(), "a commit, as of each ADD")
		other := block("10.1.78.0/24")
		w.g.Expect(lists(func() {
			c.Changed("a", &kv.PrefixClaim{Network: other.Network, Prefix: other.Prefix.String(), Node: "c", Held: true})
		})).To(BeZero(), "a claim that overlaps nothing here")
		w.g.Expect(lists(func() {
			c.Changed("a", &kv.PrefixClaim{Network: wide().Network, Prefix: wide().Prefix.String(), Node: "b"})
		})).To(BeNumerically(">=", 100))
		cancel()
		w.g.Expect(<-done).To(Succeed())
	})
}
