// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// On a dead disk each commit fails. A claim of a key that has a lease is answered all the
// same, unless a failed commit was about that very lease.
func TestRepeatedClaimsOnADeadDisk(t *testing.T) {
	ctx := context.Background()
	for name, again := range map[string]func(b *bench, n int) error{
		"by itself": func(b *bench, n int) error { _, err := b.claim(n); return err },
		"in a stage": func(b *bench, n int) error {
			st := b.Begin()
			defer st.Undo()
			if _, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(n), Pod: pod(n)}); err != nil {
				return err
			}
			return st.Commit(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			fault := journal.None
			b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return fault }})
			b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/28")
			for n := range 3 {
				g.Expect(b.claim(n)).NotTo(BeEmpty())
			}
			fault = journal.Tear // the last commit before the disk died may be on it
			_, err := b.Release(ctx, ledger.Selector{Key: key(1)})
			g.Expect(err).To(MatchError(journal.ErrInjected))
			_, err = b.claim(3)
			g.Expect(err).To(MatchError(journal.ErrInjected))
			fault = journal.Fail

			g.Expect(again(b, 0)).To(Succeed())
			g.Expect(again(b, 1)).To(MatchError(journal.ErrInjected), "the journal may have its release")
			g.Expect(again(b, 2)).To(Succeed())
			_, err = b.Release(ctx, ledger.Selector{Key: key(3)})
			g.Expect(err).To(MatchError(journal.ErrInjected), "the journal may have the claim that memory has not")

			fault = journal.None
			g.Expect(again(b, 1)).To(Succeed())
			b.reopen()
			g.Expect(b.list()).To(Equal("10.1.5.0:held:c0 10.1.5.1:held:c1 10.1.5.2:held:c2"))
		})
	}
}

// A claim that fails leaves nothing of itself in its stage, and keeps the rest of the stage.
func TestAFailedClaimLeavesNothingInItsStage(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/28", "fd00::/128")
	st := b.Begin()
	_, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(1), Pod: pod(1)})
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = st.Claim(ledger.Request{Pool: "default", Key: key(2), Pod: pod(2)})
	g.Expect(err).To(HaveOccurred(), "no IPv6 address is free")
	g.Expect(st.Claimed(key(2))).To(BeEmpty())
	g.Expect(st.Commit(ctx)).To(Succeed())
	g.Expect(b.list()).To(Equal("10.1.5.0:held:c1 fd00:::held:c1"))
	b.consistent()
	b.reopen()
	g.Expect(b.Leases()).To(HaveLen(2))
}

// StatefulSets of two namespaces have pods of equal names. An address that cools after one
// of them is quarantined if the other one uses it.
func TestAPodOfAnotherNamespaceUsesACoolingAddress(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute}, "10.1.5.0/28")
	_, _, err := b.Claim(ctx, ledger.Request{Pool: "default", Key: key(1), Pod: ledger.Pod{Namespace: "a", Name: "web-0"}})
	g.Expect(err).NotTo(HaveOccurred())
	b.release(1)
	st := b.Begin()
	fresh, err := st.Quarantine("default", ip("10.1.5.0"), ledger.Pod{Namespace: "a", Name: "web-0"}, "reported")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh).To(BeFalse(), "it is the pod that has just gone")
	fresh, err = st.Quarantine("default", ip("10.1.5.0"), ledger.Pod{Namespace: "b", Name: "web-0"}, "reported")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh).To(BeTrue())
	g.Expect(st.Commit(ctx)).To(Succeed())
	g.Expect(b.Leases()).To(HaveLen(1))
	g.Expect(b.Leases()[0].State).To(Equal(ledger.Quarantined))
	b.consistent()
}

// What a stage has answered, with its savepoint, is what its commit must find in the journal.
// A claim that fails takes back nothing but itself, and what is undone is asked of no disk.
func TestAnswersOfAStageOnADeadDisk(t *testing.T) {
	claim := func(n int) func(*ledger.Stage) {
		return func(st *ledger.Stage) {
			_, _, _ = st.Claim(ledger.Request{Pool: "default", Key: key(n), Pod: pod(n)})
		}
	}
	fails := func(st *ledger.Stage) {
		_, _, _ = st.Claim(ledger.Request{Pool: "unknown", Key: key(9), Pod: pod(9)})
	}
	release := func(st *ledger.Stage) { _, _ = st.Release(ledger.Selector{Key: key(8)}) }
	mark, undo := (*ledger.Stage).Mark, (*ledger.Stage).UndoToMark
	for name, tt := range map[string]struct {
		steps []func(*ledger.Stage)
		ok    bool
	}{
		"what the journal has":                {[]func(*ledger.Stage){claim(0)}, true},
		"and what it may not have":            {[]func(*ledger.Stage){claim(1), claim(0)}, false},
		"with a failed claim between":         {[]func(*ledger.Stage){claim(1), fails, claim(0)}, false},
		"a doubt before the savepoint":        {[]func(*ledger.Stage){claim(1), mark, claim(0), undo, claim(0)}, false},
		"a doubt that is undone":              {[]func(*ledger.Stage){claim(0), mark, claim(1), undo}, true},
		"a release of nothing":                {[]func(*ledger.Stage){claim(0), release}, false},
		"a release that is undone":            {[]func(*ledger.Stage){claim(0), mark, release, undo}, true},
		"a release before the savepoint":      {[]func(*ledger.Stage){release, mark, claim(0), undo, claim(0)}, false},
		"a release before a claim that fails": {[]func(*ledger.Stage){release, fails, claim(0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, ctx := NewWithT(t), context.Background()
			fault := journal.None
			b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return fault }})
			b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/28")
			for n := range 2 {
				g.Expect(b.claim(n)).NotTo(BeEmpty())
			}
			fault = journal.Tear
			_, err := b.Release(ctx, ledger.Selector{Key: key(1)})
			g.Expect(err).To(MatchError(journal.ErrInjected))
			fault = journal.Fail
			st := b.Begin()
			for _, step := range tt.steps {
				step(st)
			}
			g.Expect(st.Empty()).To(BeTrue())
			if err := st.Commit(ctx); tt.ok {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(journal.ErrInjected))
			}
		})
	}
}
