// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package mem_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
	"github.com/cadastre/cadastre/kvdb/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	kvdbtest.Run(t, func(*testing.T) kvdb.Store { return mem.New() })
}

func put(g *WithT, s kvdb.Store, key, value string) int64 {
	rev, err := s.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, []byte(value))})
	g.Expect(err).NotTo(HaveOccurred())
	return rev
}

func TestRevisionsStartAtOne(t *testing.T) {
	g := NewWithT(t)
	s := mem.New()
	defer s.Close()
	_, rev, err := s.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rev).To(BeZero())
	g.Expect(put(g, s, "a", "1")).To(Equal(int64(1)))
}

func TestHistoryIsBounded(t *testing.T) {
	g := NewWithT(t)
	s := mem.New(mem.History(3))
	defer s.Close()
	for range 5 {
		put(g, s, "a", "1")
	}
	for _, rev := range []int64{-1, 1, 2} {
		_, err := s.Watch(t.Context(), "", rev)
		g.Expect(err).To(MatchError(kvdb.ErrCompacted), "revision %d", rev)
	}
	w, err := s.Watch(t.Context(), "", 3)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect((<-w.Events())[0].ModRevision).To(Equal(int64(3)))
	w.Close()
}

func TestSlowWatchIsCompacted(t *testing.T) {
	g := NewWithT(t)
	s := mem.New(mem.History(10))
	defer s.Close()
	w, err := s.Watch(t.Context(), "", 0)
	g.Expect(err).NotTo(HaveOccurred())
	for range 100 {
		put(g, s, "a", "1") // there is no reader, and nothing blocks
	}
	last := int64(0)
	for batch := range w.Events() {
		g.Expect(batch[0].ModRevision).To(Equal(last + 1))
		last++
	}
	g.Expect(last).To(BeNumerically("<", 100))
	g.Expect(w.Err()).To(MatchError(kvdb.ErrCompacted))
}

func TestEndedContextLeavesAllAsItWas(t *testing.T) {
	g := NewWithT(t)
	s := mem.New()
	defer s.Close()
	reason := errors.New("a reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	_, err := s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("a", nil)})
	g.Expect(err).To(MatchError(reason))
	_, found, err := s.Get(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeFalse())
}
