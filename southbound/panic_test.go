// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
)

// clumsy panics in calls, after it has done what they ask for.
type clumsy struct {
	part
	mu       sync.Mutex     // Watch and Sweep are concurrent
	panics   map[string]int // number of calls that will panic, by name
	stumbled []string       // the calls that have panicked
	worked   []string       // those that have not
}

func (c *clumsy) stumble(op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.panics[op]--; c.panics[op] >= 0 {
		c.stumbled = append(c.stumbled, op)
		panic("index out of range in " + op)
	}
	c.worked = append(c.worked, op)
}

func (c *clumsy) Validate(key string, m proto.Message) error {
	c.stumble("validate")
	return c.part.Validate(key, m)
}

func (c *clumsy) Create(ctx context.Context, key string, m proto.Message) error {
	err := c.part.Create(ctx, key, m)
	c.stumble("create")
	return err
}

func (c *clumsy) Update(ctx context.Context, key string, before, m proto.Message) error {
	err := c.part.Update(ctx, key, before, m)
	c.stumble("update")
	return err
}

func (c *clumsy) Delete(ctx context.Context, key string, m proto.Message) error {
	err := c.part.Delete(ctx, key, m)
	c.stumble("delete")
	return err
}

func (c *clumsy) Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error) {
	c.stumble("retrieve")
	return c.part.Retrieve(ctx, wanted)
}

func (c *clumsy) Prepare(context.Context, []string) error { c.stumble("prepare"); return nil }

func (c *clumsy) Sweep(context.Context) (bool, error) { c.stumble("sweep"); return false, nil }

func (c *clumsy) Watch(ctx context.Context, _ func(string)) error {
	c.stumble("watch")
	<-ctx.Done()
	return nil
}

func newClumsy() (*world, *clumsy) {
	w := newWorld()
	return w, &clumsy{part: part{w, "b/"}, panics: map[string]int{}}
}

// TestAPanicIsTheFailureOfItsValue has a descriptor that panics in each call: the other
// values go on, what reverts is undone, and what was half made is made or removed later.
func TestAPanicIsTheFailureOfItsValue(t *testing.T) {
	for _, op := range []string{"create", "update", "delete", "validate", "prepare", "retrieve"} {
		t.Run(op, func(t *testing.T) {
			g := NewWithT(t)
			w, c := newClumsy()
			s := New(Options{}, kinds(part{w, "a/"}, c, part{w, "c/"})...)
			g.Expect(s.Commit(t.Context(), update(is("b/1", "y"), is("b/2", "y")))).To(Succeed())
			before := w.clone()
			change := []controller.Value{is("a/1", "x"), is("b/1", "y1"), is("b/2", ""), is("b/3", "y"), is("c/1", "z needs a/1")}
			panics := MatchError(ContainSubstring("index out of range in " + op))
			if op != "retrieve" {
				c.panics[op] = 1
				g.Expect(s.Commit(t.Context(), reverting(change...))).To(panics)
				g.Expect(w.clone()).To(Equal(before), "all of it is undone")
			}
			c.panics[op] = 1
			g.Expect(s.Commit(t.Context(), resyncIf(op == "retrieve", change))).To(panics)
			g.Expect(w.values).To(HaveKey("c/1"), "the other values go on")
			g.Expect(s.Commit(t.Context(), update(change...))).To(Succeed())
			want := map[string]string{"a/1": "x", "b/1": "y1", "b/3": "y", "c/1": "z needs a/1"}
			g.Expect(w.clone()).To(Equal(want))
			g.Expect(s.Commit(t.Context(), resync())).To(Succeed())
			g.Expect(w.clone()).To(BeEmpty())
			g.Expect(s.Status()).To(Equal(Status{}))
		})
	}
}

func resyncIf(full bool, values []controller.Value) controller.Transaction {
	if full {
		return resync(values...)
	}
	return update(values...)
}

// TestRunOutlivesAPanic has a descriptor that panics once in each work of Run: the work is
// repeated.
func TestRunOutlivesAPanic(t *testing.T) {
	for _, op := range []string{"sweep", "watch", "create", "retrieve"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				w, c := newClumsy()
				s := New(Options{}, kind(c))
				txn := update(is("b/1", "y"))
				txn.Retry = controller.Retry{Enabled: true, MaxAttempts: 2, Delay: time.Second}
				if op == "create" {
					c.panics[op] = 2
					g.Expect(s.Commit(t.Context(), txn)).NotTo(Succeed())
				} else {
					g.Expect(s.Commit(t.Context(), txn)).To(Succeed())
					g.Expect(s.Commit(t.Context(), update(is("b/2", "y")))).To(Succeed())
					g.Expect(s.Commit(t.Context(), update(is("b/2", "")))).To(Succeed())
					c.panics[op] = 1
				}
				if op == "retrieve" {
					w.lose("b/1")
					s.changed(s.kinds[0], "b/1")
				}
				c.worked = nil
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ended := make(chan error, 1)
				go func() { ended <- s.Run(ctx) }()
				time.Sleep(time.Hour)
				synctest.Wait()
				g.Expect(c.stumbled).To(ContainElement(op))
				g.Expect(c.worked).To(ContainElement(op), "it is repeated")
				g.Expect(w.clone()).To(Equal(map[string]string{"b/1": "y"}))
				stop()
				g.Expect(<-ended).To(Succeed())
			})
		})
	}
}
