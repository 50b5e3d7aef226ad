// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// newAPIStore is the store of a cluster that has no other than its API server.
func newAPIStore(t *testing.T) (*apistoretest.Server, *apistore.Store) {
	g := NewWithT(t)
	server := apistoretest.New()
	t.Cleanup(server.Close)
	store, err := apistore.Open(apistore.Config{REST: server.Config(), Log: slog.New(slog.DiscardHandler)})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(store.Close()).To(Succeed()) })
	return server, store
}

// A node's life: it claims an ID, says what it has, goes, and another comes.
func TestWithAnAPIServer(t *testing.T) {
	g := NewWithT(t)
	_, store := newAPIStore(t)
	n := newNode(t, store, who("a"), newDisk()).confirm(t)
	g.Expect(n.Held()).To(Equal(nodesync.Held{ID: 1, Generation: 1}))
	n.confirm(t).confirm(t)
	g.Expect(beatOf(g, store, 1).Session).To(Equal("run-1-of-a"))
	_, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, time.Now())
	g.Expect(err).To(MatchError(nodesync.ErrNameInUse))
	_, err = nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, time.Now())
	g.Expect(err).To(MatchError(nodesync.ErrFresh))
	later := time.Now().Add(fresh)
	g.Expect(nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, later)).To(BeNumerically("==", 1))
	g.Expect(records(g, store)[1].Clean).To(BeTrue())
	held, err := nodesync.Claim(t.Context(), store, who("b"), nodesync.Held{}, later)
	g.Expect([]any{held, err}).To(Equal([]any{nodesync.Held{ID: 1, Generation: 2}, nil}))
	g.Expect(n.confirm(t).Held()).To(Equal(nodesync.Held{ID: 2, Generation: 1}), "nothing of it is in use")
}

// Many claim at once over a server whose answers are lost at times: no ID is
// given to two, and who tries again has one in the end.
func TestManyClaimsOfAnAPIServer(t *testing.T) {
	g := NewWithT(t)
	server, store := newAPIStore(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	server.Plan(func(verb, _ string, _ int) apistoretest.Fault {
		if verb == "get" || verb == "list" || rnd.IntN(20) != 0 {
			return apistoretest.Fault{}
		}
		return []apistoretest.Fault{apistoretest.Fail(), apistoretest.Tear(), apistoretest.Drop()}[rnd.IntN(3)]
	})
	const nodes = 8
	all := make([]nodesync.Held, nodes)
	var work sync.WaitGroup
	for i := range all {
		work.Go(func() {
			w := with(who(fmt.Sprint("n", i)), func(w *nodesync.Identity) { w.Random = rand.New(rand.NewPCG(uint64(i), 2)).Float64 })
			for range 50 {
				held, err := nodesync.Claim(context.Background(), store, w, nodesync.Held{}, time.Now())
				if err == nil {
					all[i] = held
					return
				}
				if errors.Is(err, nodesync.ErrNoID) || errors.Is(err, nodesync.ErrNameInUse) {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	server.Plan()
	byID := map[uint32]bool{}
	for i, held := range all {
		g.Expect(held.ID).NotTo(BeZero(), "node %d", i)
		g.Expect(byID[held.ID]).To(BeFalse(), "node ID %d", held.ID)
		byID[held.ID] = true
		g.Expect(records(g, store)[held.ID].Name).To(Equal(fmt.Sprint("n", i)))
	}
}
