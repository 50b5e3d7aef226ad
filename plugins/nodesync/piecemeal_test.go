// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// piecemeal is a store without transactions, as package apistore is one: each
// write is done by itself, others come in between, and any may be the last.
type piecemeal struct{ kvdb.Store }

func (p piecemeal) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (rev int64, err error) {
	at, written := map[string]kvdb.Cond{}, map[string]bool{}
	for _, op := range ops {
		written[op.Key] = true
	}
	var others []kvdb.Cond
	for _, c := range conds {
		if at[c.Key] = c; !written[c.Key] {
			others = append(others, c)
		}
	}
	if err := p.hold(ctx, others); err != nil {
		return 0, err
	}
	for i, op := range ops {
		if rev, err = p.write(ctx, op, at); err != nil {
			return 0, err
		}
		if counts(op.Key) && i < len(ops)-1 {
			others = append(others, kvdb.AtRevision(op.Key, rev))
		}
	}
	return rev, p.hold(ctx, others)
}

// counts reports whether each write of a key is a change, whatever is written.
func counts(key string) bool {
	return strings.HasPrefix(key, kv.NodeNameKey("")) || key == kv.PoolsKey
}

func (p piecemeal) hold(ctx context.Context, conds []kvdb.Cond) error {
	for _, c := range conds {
		x, _, err := p.Get(ctx, c.Key)
		if err != nil {
			return err
		}
		if x.ModRevision != c.ModRevision {
			return kvdb.ErrConditions
		}
	}
	return nil
}

func (p piecemeal) write(ctx context.Context, op kvdb.Op, at map[string]kvdb.Cond) (int64, error) {
	var conds []kvdb.Cond
	c, conditional := at[op.Key]
	if conditional {
		conds = append(conds, c)
	}
	if !counts(op.Key) && !op.Delete {
		x, found, err := p.Get(ctx, op.Key)
		if err != nil {
			return 0, err
		}
		if found && bytes.Equal(x.Value, op.Value) && (!conditional || c.ModRevision == x.ModRevision) {
			return x.ModRevision, nil
		}
	}
	return p.Store.Txn(ctx, conds, []kvdb.Op{op})
}

// stores are the kinds of store that claims are made in.
func stores() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"with transactions":    func(s kvdb.Store) kvdb.Store { return s },
		"without transactions": func(s kvdb.Store) kvdb.Store { return piecemeal{s} },
	}
}

// The test's store without transactions is one.
func TestPiecemeal(t *testing.T) {
	g := NewWithT(t)
	inner := faulty.New(mem.New())
	defer inner.Close()
	p := piecemeal{inner}
	a, b := kvdb.Put("a", []byte("1")), kvdb.Put(kv.PoolsKey, nil)
	inner.Reset(faulty.On(faulty.Txn, 2, faulty.Fail()))
	_, err := p.Txn(t.Context(), []kvdb.Cond{kvdb.Absent("a"), kvdb.Absent("c")}, []kvdb.Op{a, b})
	g.Expect(err).To(MatchError(faulty.ErrInjected))
	x, found, err := p.Get(t.Context(), "a")
	g.Expect([]any{found, err}).To(Equal([]any{true, nil}), "half of it is done")
	rev, err := p.Txn(t.Context(), []kvdb.Cond{kvdb.AtRevision("a", x.ModRevision)}, []kvdb.Op{a})
	g.Expect([]any{rev, err}).To(Equal([]any{x.ModRevision, nil}), "nothing changed")
	for i := range 3 {
		rev, err := p.Txn(t.Context(), nil, []kvdb.Op{b})
		g.Expect([]any{rev, err}).To(Equal([]any{x.ModRevision + 1 + int64(i), nil}), "each counts")
	}
	for _, c := range []kvdb.Cond{kvdb.Absent("a"), kvdb.AtRevision("c", 1)} {
		_, err = p.Txn(t.Context(), []kvdb.Cond{c}, []kvdb.Op{kvdb.Put("d", nil)})
		g.Expect(err).To(MatchError(kvdb.ErrConditions))
	}
	for key, want := range map[string]error{"c": kvdb.ErrConditions, kv.PoolsKey: kvdb.ErrConditions, "e": nil} {
		inner.Reset(during(inner, faulty.Txn, 2, key))
		_, err = p.Txn(t.Context(), []kvdb.Cond{kvdb.Absent("c")}, []kvdb.Op{b, kvdb.Put("d", []byte(key))})
		g.Expect(errors.Is(err, kvdb.ErrConditions)).To(Equal(want != nil), "%s: %v", key, err)
		_, err = inner.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete("c")})
		g.Expect(err).NotTo(HaveOccurred())
	}
}

// meanwhile does something before the k-th operation.
func meanwhile(k int, do func()) faulty.Plan {
	return func(_ string, n int) faulty.Fault {
		if n != k {
			return faulty.Fault{}
		}
		release := make(chan struct{})
		go func() {
			defer close(release)
			do()
		}()
		return faulty.Hold(release)
	}
}

// A node that comes back at any moment of its release has its ID, or knows that
// it has not; and the ID does not become clean.
func TestAReleaseWhileTheNodeComesBack(t *testing.T) {
	for kind, through := range stores() {
		for k := 1; ; k++ {
			reached := false
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				inner := mem.New()
				store := faulty.New(inner)
				defer store.Close()
				n := newNode(t, through(inner), who("a"), newDisk()).confirm(t)
				time.Sleep(fresh)
				store.Reset(meanwhile(k, func() {
					reached = true
					n.confirm(t)
				}))
				_, err := nodesync.Release(t.Context(), through(store), nodesync.Gone{Name: "a", Fresh: fresh}, time.Now())
				m := records(g, inner)[1]
				g.Expect(m.Clean && reached && n.Confirmed().Equal(time.Now()) && m.Generation == n.Held().Generation).To(BeFalse(), "%s, before operation %d: %v, %v", kind, k, m, err)
				n.confirm(t)
				g.Expect(n.Problem()).To(BeEmpty())
				g.Expect(records(g, inner)[1].Released).To(BeZero())
			})
			if !reached {
				NewWithT(t).Expect(k).To(BeNumerically(">", 3))
				break
			}
		}
	}
}

// A node that is refused the ID that it is to move to keeps the one before.
func TestARefusedMove(t *testing.T) {
	for kind, through := range stores() {
		for k := 1; ; k++ {
			g := NewWithT(t)
			inner := mem.New()
			store := faulty.New(inner)
			g.Expect(claim(t, inner, who("a")).ID).To(BeNumerically("==", 1))
			reached := false
			store.Reset(meanwhile(k, func() {
				reached = true
				_, _ = nodesync.Claim(context.Background(), inner, pinned("b", 5), nodesync.Held{}, began())
			}))
			_, err := nodesync.Claim(t.Context(), through(store), pinned("a", 5), nodesync.Held{}, began())
			all := records(g, inner)
			if err != nil {
				g.Expect(err).To(MatchError(nodesync.ErrIDTaken))
				g.Expect(all[1].Released).To(BeZero(), "%s, before operation %d", kind, k)
			} else {
				g.Expect(all[1].Released).NotTo(BeZero(), "%s, before operation %d", kind, k)
				g.Expect(all[5].Name).To(Equal("a"))
			}
			g.Expect(store.Close()).To(Succeed())
			if !reached {
				break
			}
		}
	}
}

// What a claim has left halfway goes with the next start.
func TestWhatWasLeftHalfway(t *testing.T) {
	g := NewWithT(t)
	store := piecemeal{mem.New()}
	defer store.Close()
	claim(t, store, who("a"))
	late := &kv.NodeRecord{Id: 7, Name: "a", Instance: "uuid-of-a", Generation: 1}
	put(g, store, kv.NodeRecordKey(7), late) // of a claim that was given up
	g.Expect(claim(t, store, again(who("a")))).To(Equal(nodesync.Held{ID: 7, Generation: 1}), "this node remembers nothing")
	remembered := nodesync.Held{ID: 1, Generation: 1}
	g.Expect(nodesync.Claim(t.Context(), store, again(who("a")), remembered, began().Add(fresh))).To(Equal(remembered))
	g.Expect(records(g, store)[7].Released).NotTo(BeZero())
	g.Expect(records(g, store)[1].Released).To(BeZero())
}

// during has key written by another process while the k-th operation is waited for.
func during(s *faulty.Store, op string, k int, key string) faulty.Plan {
	seen := 0
	return func(asked string, _ int) faulty.Fault {
		if asked != op {
			return faulty.Fault{}
		}
		if seen++; seen != k {
			return faulty.Fault{}
		}
		release := make(chan struct{})
		go func() {
			defer close(release)
			_, _ = s.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, []byte(fmt.Sprint(k)))})
		}()
		return faulty.Hold(release)
	}
}
