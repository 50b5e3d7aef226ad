// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

func TestOrderOfCalls(t *testing.T) {
	for _, x := range []struct {
		what   string
		before []controller.Value
		txn    controller.Transaction
		want   []string
	}{
		{"dependencies first", nil, update(is("a/1", "x needs c/1"), is("b/1", "y"), is("c/1", "z needs b/1")),
			[]string{"create b/1", "create c/1", "create a/1"}},
		{"users are removed first", []controller.Value{is("a/1", "x"), is("b/1", "y needs a/1"), is("c/1", "z needs b/1")},
			update(is("a/1", ""), is("b/1", ""), is("c/1", "")), []string{"delete c/1", "delete b/1", "delete a/1"}},
		{"users become pending", []controller.Value{is("a/1", "x"), is("b/1", "y needs a/1"), is("c/1", "z needs b/1")},
			update(is("a/1", "")), []string{"delete c/1", "delete b/1", "delete a/1"}},
		{"removals before additions", []controller.Value{is("c/1", "z")}, update(is("a/1", "x"), is("c/1", "")), []string{"delete c/1", "create a/1"}},
		{"a value that stops using another is changed, not removed", []controller.Value{is("a/1", "x"), is("c/1", "z needs a/1")},
			update(is("a/1", ""), is("b/1", "y"), is("c/1", "z needs b/1")), []string{"create b/1", "update c/1", "delete a/1"}},
		{"a value that is made anew takes its users with it", []controller.Value{is("a/1", "w"), is("b/1", "y needs a/1"), is("c/1", "z needs b/1")},
			update(is("b/1", "x needs a/1")), []string{"delete c/1", "delete b/1", "create b/1", "create c/1"}},
		{"nothing is made of what is about to go", []controller.Value{is("a/1", "x"), is("b/1", "y needs a/1")},
			resync(is("a/2", "x needs a/1"), is("b/1", "y needs a/2")), []string{"retrieve a/", "retrieve b/", "retrieve c/", "delete b/1", "delete a/1"}},
		{"nor changed to use it", []controller.Value{is("a/1", "x"), is("a/2", "x"), is("b/1", "y needs a/1")},
			resync(is("b/1", "y needs a/2")), []string{"retrieve a/", "retrieve b/", "retrieve c/", "delete b/1", "delete a/1", "delete a/2"}},
		{"a change without that", []controller.Value{is("a/1", "w"), is("b/1", "y needs a/1"), is("c/1", "z needs b/1")},
			update(is("b/1", "y1 needs a/1")), []string{"update b/1"}},
		{"the last value of a key counts", nil, update(is("a/1", "x"), is("a/1", "y"), is("a/2", "x"), is("a/2", "")), []string{"create a/1"}},
		{"a resync asks for the actual state once", []controller.Value{is("a/1", "x"), is("c/1", "z needs a/1")}, resync(is("a/1", "y")),
			[]string{"retrieve a/", "retrieve b/", "retrieve c/", "delete c/1", "update a/1"}},
	} {
		g, w := NewWithT(t), newWorld()
		s := New(Options{}, w.parts()...)
		g.Expect(s.Commit(t.Context(), update(x.before...))).To(Succeed())
		_ = w.lines()
		g.Expect(s.Commit(t.Context(), x.txn)).To(Succeed(), x.what)
		g.Expect(w.lines()).To(Equal(x.want), x.what)
		g.Expect(w.wrong).To(BeEmpty(), x.what)
	}
}

// A value that was made before this process, and that nothing has wanted since, stays while
// the wanted ones are not known completely. One that was wanted here is removed.
func TestValuesThatAreSparedStay(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	w.values["a/old"], w.values["c/old"] = "x", "x"
	spare := true
	s := New(Options{Spare: func(key string, _ proto.Message) bool { return spare && key[0] == 'a' }}, w.parts()...)
	g.Expect(s.Commit(t.Context(), resync(is("a/1", "x"), is("a/2", "x")))).To(Succeed())
	g.Expect(w.values).To(Equal(map[string]string{"a/old": "x", "a/1": "x", "a/2": "x"}))
	for _, d := range s.kinds {
		s.changed(d, "")
	}
	s.work.repair.due = time.Time{}.Add(1)
	s.repair(t.Context())
	g.Expect(s.Commit(t.Context(), resync(is("a/1", "x")))).To(Succeed())
	g.Expect(w.values).To(Equal(map[string]string{"a/old": "x", "a/1": "x"}))
	g.Expect(s.Dump(t.Context())).To(HaveKey("a/old"))
	spare = false
	for _, d := range s.kinds {
		s.changed(d, "")
	}
	s.work.repair.due = time.Time{}.Add(1)
	s.repair(t.Context())
	g.Expect(w.values).To(Equal(map[string]string{"a/1": "x"}))
}

// A spared value ends with an update that deletes its key, as the DEL of a pod does whose
// lease was lost. Others stay.
func TestASparedValueEndsWhenItIsDeleted(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	w.values["a/old"], w.values["a/older"] = "x", "x"
	s := New(Options{Spare: func(key string, actual proto.Message) bool { return actual != nil }}, w.parts()...)
	g.Expect(s.Commit(t.Context(), resync(is("a/1", "x")))).To(Succeed())
	g.Expect(s.Commit(t.Context(), update(is("a/old", ""), is("a/unknown", "")))).To(Succeed())
	g.Expect(w.values).To(Equal(map[string]string{"a/older": "x", "a/1": "x"}))
	g.Expect(s.Commit(t.Context(), resync(is("a/1", "x")))).To(Succeed())
	g.Expect(w.values).To(Equal(map[string]string{"a/older": "x", "a/1": "x"}))
	g.Expect(w.wrong).To(BeEmpty())
}

// TestAnUpdateCostsItsKeys makes a thousand values and changes one.
func TestAnUpdateCostsItsKeys(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	values := []controller.Value{is("b/1", "y")}
	for i := range 1000 {
		values = append(values, is(fmt.Sprint("a/", i), "x"))
	}
	g.Expect(s.Commit(t.Context(), resync(values...))).To(Succeed())
	_ = w.lines()
	g.Expect(s.Commit(t.Context(), update(is("a/7", "x1")))).To(Succeed())
	g.Expect(w.lines()).To(Equal([]string{"update a/7"}))
	allocations := testing.AllocsPerRun(20, func() {
		g.Expect(s.Commit(context.Background(), reverting(is("c/1", "z")))).To(Succeed())
		g.Expect(s.Commit(context.Background(), update(is("c/1", "")))).To(Succeed())
	})
	g.Expect(allocations).To(BeNumerically("<", 200), "not one for each value")
	w.log = nil
}

func TestStatus(t *testing.T) {
	g, w, now := NewWithT(t), newWorld(), time.Unix(1000, 0)
	s := New(Options{Now: func() time.Time { return now }}, append(w.parts(), kind(noted{}))...)
	w.fault = func(op, key string) error {
		switch key {
		case "a/2":
			return fmt.Errorf("link of docker: %w", ErrForeign)
		case "a/3":
			if op == "create" {
				return errInjected
			}
		}
		return nil
	}
	txn := update(is("a/1", "x"), is("a/2", "x"), is("b/1", "y needs a/1 a/2 a/9"), is("c/1", "bad"),
		controller.Value{Key: kv.SinkNode, Message: &kv.NodeNetwork{Id: 5}}, controller.Value{Key: "unknown", Message: &kv.NodeNetwork{}})
	err := s.Commit(t.Context(), txn)
	g.Expect(err).To(MatchError(ErrForeign))
	txn = update(is("a/3", "x"))
	txn.Retry = controller.Retry{Enabled: true, Delay: time.Minute, MaxAttempts: 1}
	g.Expect(s.Commit(t.Context(), txn)).To(MatchError(errInjected))
	g.Expect(s.Status()).To(Equal(Status{
		Made:    2,
		Pending: []Pending{{"b/1", []string{"a/2", "a/9"}}},
		Failed: []Failed{
			{Key: "a/2", Error: "link of docker: an object of another program is in the way", Foreign: true},
			{Key: "a/3", Error: "input/output error", Retry: now.Add(time.Minute)},
			{Key: "c/1", Error: `invalid value "value:\"bad\"": it is bad`},
			{Key: "unknown", Error: `invalid value "": the southbound has no such key`},
		},
		Notes: []string{"FORWARD drops"},
	}))
	all, err := s.Dump(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveLen(2))
	g.Expect(text(all["a/1"])).To(Equal("x"))
	g.Expect(proto.Equal(all[kv.SinkNode], &kv.NodeNetwork{Id: 5})).To(BeTrue())
	g.Expect(s.Commit(t.Context(), update(is("a/2", ""), is("a/3", ""), is("b/1", ""), is("c/1", ""), controller.Value{Key: "unknown"}))).To(Succeed())
	g.Expect(s.Status()).To(Equal(Status{Made: 2, Notes: []string{"FORWARD drops"}}))
}

// noted is a descriptor with a note and without values.
type noted struct{ part }

func (noted) Prefix() string  { return "noted" }
func (noted) Notes() []string { return []string{"FORWARD drops"} }
func (noted) Retrieve(context.Context, []controller.Value) ([]controller.Value, error) {
	return nil, nil
}

// What is found and is no value cannot be put back: it is named as remaining.
func TestADescriptionIsNotPutBack(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	w.values["a/1"] = "bad"
	s := New(Options{}, w.parts()...)
	w.fault = func(op, key string) error {
		if op == "create" && key == "c/1" {
			return errInjected
		}
		return nil
	}
	txn := resync(is("a/1", "x"), is("c/1", "z"))
	txn.RevertOnFailure = true
	err := s.Commit(t.Context(), txn)
	remains, is := errors.AsType[*controller.RemainError](err)
	g.Expect(is).To(BeTrue())
	g.Expect(remains.Key).To(Equal("a/1"))
	g.Expect(err).To(MatchError(And(ContainSubstring("not a value"), Not(ContainSubstring("panic")))))
	w.fault = nil
	g.Expect(s.Commit(t.Context(), resync())).To(Succeed())
	g.Expect(w.values).To(BeEmpty())
}

// A value whose owner has ended is neither made nor failed: it waits for its release.
func TestAValueWithoutOwnerWaitsForItsRelease(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	w.fault = func(op, _ string) error {
		if op == "create" {
			return fmt.Errorf("%w: no such namespace", ErrGone)
		}
		return nil
	}
	g.Expect(s.Commit(t.Context(), update(is("a/1", "x")))).To(Succeed())
	g.Expect(s.Status()).To(Equal(Status{Pending: []Pending{{"a/1", []string{"its release: its owner has ended: no such namespace"}}}}))
	g.Expect(s.Commit(t.Context(), reverting(is("a/2", "x")))).To(MatchError(ErrGone), "an ADD is told")
	g.Expect(s.Commit(t.Context(), update(is("a/1", "")))).To(Succeed())
	g.Expect(s.Status()).To(Equal(Status{}))
}

func TestInspect(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	inspect := func(key string) error { return s.Inspect(t.Context(), key) }
	g.Expect(s.Commit(t.Context(), update(is("a/1", "x"), is("b/1", "y needs a/2"), controller.Value{Key: kv.SinkNode, Message: &kv.NodeNetwork{}}))).To(Succeed())
	g.Expect(inspect("a/1")).To(Succeed())
	g.Expect(inspect(kv.SinkNode)).To(Succeed())
	g.Expect(inspect("a/7")).To(MatchError("inspect a/7: nothing is wanted there"))
	g.Expect(inspect("b/1")).To(MatchError(`inspect b/1: it waits for ["a/2"]`))
	w.values["a/1"] = "z"
	g.Expect(inspect("a/1")).To(MatchError(ContainSubstring(`it is value:"z", not value:"x"`)))
	delete(w.values, "a/1")
	g.Expect(inspect("a/1")).To(MatchError("inspect a/1: it is missing"))
	w.calls, w.failing = 0, 1
	g.Expect(inspect("a/1")).To(MatchError(errInjected))
	g.Expect(s.Commit(t.Context(), update(is("c/1", "z")))).To(Succeed())
	w.calls, w.failing = 0, 1
	g.Expect(s.Commit(t.Context(), update(is("c/1", "z1")))).To(MatchError(errInjected))
	g.Expect(inspect("c/1")).To(MatchError(errInjected), "the last attempt failed")
}

// TestAPendingValueFailsAnAdd has a caller that takes success as a wire.
func TestAPendingValueFailsAnAdd(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	err := s.Commit(t.Context(), reverting(is("a/1", "x"), is("b/1", "y needs a/9")))
	g.Expect(err).To(MatchError(ErrPending))
	g.Expect(err).To(MatchError(`b/1: a value that it depends on is not made: it waits for ["a/9"]`))
	g.Expect(w.values).To(BeEmpty())
	g.Expect(s.Status()).To(Equal(Status{}))
}

// TestCyclesArePending has values that wait for one another, which no kind has.
func TestCyclesArePending(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	g.Expect(s.Commit(t.Context(), resync(is("a/1", "x needs b/1"), is("b/1", "y needs a/1"), is("c/1", "z needs c/1")))).To(Succeed())
	g.Expect(s.Status().Pending).To(HaveLen(3))
	w.values = map[string]string{"a/1": "x needs b/1", "b/1": "y needs a/1"} // nor any kernel
	g.Expect(s.Commit(t.Context(), resync())).To(MatchError(ContainSubstring("a value that uses it, or that it needs, has failed")))
}

// TestALostListKeepsWhatIsThere fails the list of a kind that another one depends on.
func TestALostListKeepsWhatIsThere(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	values := []controller.Value{is("a/1", "x"), is("b/1", "y needs a/1")}
	g.Expect(s.Commit(t.Context(), resync(values...))).To(Succeed())
	before := w.clone()
	w.calls, w.failing = 0, 1
	err := s.Commit(t.Context(), resync(values...))
	g.Expect(err).To(MatchError(errInjected))
	g.Expect(errors.As(err, new(controller.ValueErrors))).To(BeTrue())
	g.Expect(w.values).To(Equal(before))
	g.Expect(s.Commit(t.Context(), resync(values...))).To(Succeed())
	g.Expect(s.Status()).To(Equal(Status{Made: 2}))
}

// TestPreparation prepares the values that may change, and none if nothing does or all has
// just been read.
func TestPreparation(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	var prepared []string
	s := New(Options{}, kinds(preparing{part{w, "a/"}, &prepared}, part{w, "b/"})...)
	values := []controller.Value{is("a/1", "x"), is("a/2", "y needs b/1"), is("b/1", "z"), is("a/3", "z")}
	g.Expect(s.Commit(t.Context(), resync(values...))).To(Succeed())
	g.Expect(s.Commit(t.Context(), update(values...))).To(Succeed())
	g.Expect(prepared).To(BeEmpty())
	g.Expect(s.Commit(t.Context(), update(is("a/1", "x1"), is("b/1", "z1"), is("a/3", "z")))).To(Succeed())
	g.Expect(prepared).To(Equal([]string{"a/1 a/2"}))
}

// TestUndoingDoesNotEndWithTheContext cancels a transaction in its middle.
func TestUndoingDoesNotEndWithTheContext(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	g.Expect(s.Commit(t.Context(), update(is("a/1", "x"), is("a/2", "x")))).To(Succeed())
	before := w.clone()
	ctx, cancel := context.WithCancelCause(t.Context())
	w.fault = func(_, key string) error {
		if key == "a/3" {
			cancel(errInjected)
		}
		return nil
	}
	g.Expect(s.Commit(ctx, reverting(is("a/1", ""), is("a/2", "y"), is("a/3", "x"), is("a/4", "x")))).To(MatchError(errInjected))
	g.Expect(w.values).To(Equal(before))
	g.Expect(s.Status()).To(Equal(Status{Made: 2}))
}

// TestAFailureAmongManyUsers has removals that wait for one another, and a user that fails:
// all that is not as wanted is failed, and is repeated.
func TestAFailureAmongManyUsers(t *testing.T) {
	g, w, now := NewWithT(t), newWorld(), time.Unix(0, 0)
	s := New(Options{Now: func() time.Time { return now }}, w.parts()...)
	before := []controller.Value{
		is("a/0", "x1"), is("a/1", "y needs a/0"), is("a/2", "y1 needs a/0"), is("a/3", "y1 needs a/1 a/2"), is("b/0", "x needs a/1 a/3"),
		is("b/1", "x needs a/1"), is("b/2", "x1 needs b/0 a/3"), is("c/0", "y1 needs a/3"), is("c/1", "x1 needs b/0"), is("c/2", "y needs b/0 b/1"),
	}
	g.Expect(s.Commit(t.Context(), update(before...))).To(Succeed())
	txn := update(is("a/0", ""), is("b/0", "y needs a/2"), is("b/1", "y1 needs a/3 a/2"), is("b/2", "x needs a/2"))
	txn.Retry = controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 9}
	w.calls, w.failing = 0, 1
	g.Expect(s.Commit(t.Context(), txn)).To(MatchError(errInjected))
	for _, it := range s.items {
		g.Expect(it.err != nil || it.equal(it.wanted) || it.made == nil && len(s.missing(it)) > 0).To(BeTrue(), it.key)
	}
	now = now.Add(time.Second)
	g.Expect(s.retryDue(t.Context())).To(BeEmpty())
	g.Expect(w.values).To(BeEmpty(), "all of them needed a/0")
	g.Expect(s.Status().Failed).To(BeEmpty())
	g.Expect(w.wrong).To(BeEmpty())
}

// TestAValueStandsInForAPendingOne and is replaced, never removed, until its value goes.
func TestAValueStandsInForAPendingOne(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.partsWithSubstitutes()...)
	commit := func(txn controller.Transaction, lines ...string) {
		t.Helper()
		g.Expect(s.Commit(t.Context(), txn)).To(Succeed())
		g.Expect(w.lines()).To(Equal(lines))
		g.Expect(w.wrong).To(BeEmpty())
	}
	retrieved := []string{"retrieve a/", "retrieve b/", "retrieve c/"}
	commit(update(is("c/1", "z needs a/1"), is("c/2", "z needs c/1")), "create c/1", "create c/2")
	g.Expect(w.values).To(Equal(map[string]string{"c/1": standIn, "c/2": standIn}))
	g.Expect(s.Status()).To(Equal(Status{Pending: []Pending{{"c/1", []string{"a/1"}}, {"c/2", []string{"c/1"}}}}))
	g.Expect(s.Inspect(t.Context(), "c/1")).To(MatchError(ContainSubstring(`it waits for ["a/1"]`)))
	commit(update(is("c/1", "z needs a/1")))
	commit(resync(is("c/1", "z needs a/1"), is("c/2", "z needs c/1")), retrieved...)
	g.Expect(s.Problem("c/1")).To(MatchError(`c/1 is not made: it waits for ["a/1"]`))
	commit(update(is("a/1", "x")), "create a/1", "update c/1", "update c/2")
	g.Expect(s.Problem("c/1")).To(Succeed())
	g.Expect(s.Problem("c/9")).To(Succeed(), "it is not wanted")
	g.Expect(s.Status()).To(Equal(Status{Made: 3}))
	commit(update(is("a/1", "")), "update c/2", "update c/1", "delete a/1")
	commit(update(is("c/2", "")), "delete c/2")
	g.Expect(s.Commit(t.Context(), reverting(is("c/3", "z needs a/1")))).To(MatchError(ErrPending))
	g.Expect(w.values).To(Equal(map[string]string{"c/1": standIn}), "the transaction was undone")

	g.Expect(s.Commit(t.Context(), update(is("a/1", "x")))).To(Succeed())
	w.fault = func(op, key string) error {
		if op == "update" {
			return errInjected
		}
		return nil
	}
	g.Expect(s.Commit(t.Context(), update(is("a/1", "")))).To(MatchError(ContainSubstring(`while it waits for ["a/1"]`)))
	g.Expect(w.values).To(BeEmpty(), "a value that nothing can stand in for does not keep its dependency")
	g.Expect(s.Status().Failed).To(HaveLen(1))
	g.Expect(s.Problem("c/1")).To(MatchError(errInjected))
	g.Expect(w.wrong).To(BeEmpty())
}

// asked keeps the wanted values that it was last asked about.
type asked struct {
	part
	wanted *[]controller.Value
}

func (a asked) Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error) {
	*a.wanted = wanted
	return a.part.Retrieve(ctx, wanted)
}

// A descriptor that cannot read all of a value from the system is told what is wanted.
func TestAResyncNamesTheWantedValues(t *testing.T) {
	g := NewWithT(t)
	var wanted []controller.Value
	s := New(Options{}, kinds(asked{part{newWorld(), "a/"}, &wanted}, part{newWorld(), "b/"})...)
	g.Expect(s.Commit(t.Context(), update(is("a/1", "x"), is("a/2", "y"), is("b/1", "z")))).To(Succeed())
	g.Expect(s.Commit(t.Context(), resync(is("a/1", "w"), is("a/3", "v"), is("b/1", "z")))).To(Succeed())
	var texts []string
	for _, v := range wanted {
		m, _ := v.Message.(*wrapperspb.StringValue)
		texts = append(texts, v.Key+" "+m.GetValue())
	}
	g.Expect(texts).To(Equal([]string{"a/1 w", "a/3 v"}))
}

// A call that fails may have made any part of a value. What was made before is restored at once.
// If that fails, too, the next attempt makes all of the value.
func TestAFailedCallIsUndone(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, value string
		undo          error
		calls         []string
		is, later     string
	}{
		{"a creation", "", "x", nil, []string{"create a/1", "delete a/1"}, "", "create a/1"},
		{"a change", "x", "y", nil, []string{"update a/1", "update a/1"}, "x", "update a/1"},
		{"a creation that remains", "", "x", errInjected, []string{"create a/1", "delete a/1"}, "x", "create a/1"},
		{"a change that remains", "x", "y", errInjected, []string{"update a/1", "update a/1"}, "y", "create a/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, w, now := NewWithT(t), newWorld(), time.Unix(0, 0)
			s := New(Options{Now: func() time.Time { return now }}, w.parts()...)
			g.Expect(s.Commit(t.Context(), update(is("a/1", c.before)))).To(Succeed())
			w.log, w.torn = nil, true
			w.fault = func(string, string) error {
				if len(w.log) == 1 {
					return errInjected
				}
				return c.undo
			}
			txn := update(is("a/1", c.value))
			txn.Retry = controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 2}
			g.Expect(s.Commit(t.Context(), txn)).To(MatchError(errInjected))
			g.Expect(w.lines()).To(Equal(c.calls))
			g.Expect(w.wrong).To(BeEmpty())
			if c.undo == nil {
				g.Expect(w.values["a/1"]).To(Equal(c.is))
			} else {
				made := 0
				if c.before != "" {
					made = 1 // values that use it stay
				}
				g.Expect(s.Status().Made).To(Equal(made))
				w.fault = func(string, string) error { return errInjected }
				now = now.Add(time.Second)
				g.Expect(s.retryDue(t.Context())).To(BeEmpty())
				g.Expect(w.lines()).To(Equal([]string{"create a/1"}), "what was made before is not known: there is nothing to go back to")
				g.Expect(s.Status().Made).To(Equal(made))
			}
			w.fault = nil
			now = now.Add(time.Second)
			g.Expect(s.retryDue(t.Context())).To(BeEmpty())
			g.Expect(w.lines()).To(Equal([]string{c.later}))
			g.Expect(w.values["a/1"]).To(Equal(c.value))
		})
	}
}

// A change that fails, and that cannot be undone, takes nothing away from those that use the value.
func TestUsersOfAFailedChangeStay(t *testing.T) {
	for name, before := range map[string]string{"made here": "x", "found by Retrieve": "bad as nobody makes it"} {
		t.Run(name, func(t *testing.T) {
			g, w := NewWithT(t), newWorld()
			s := New(Options{}, w.parts()...)
			w.values["a/1"], w.values["c/1"] = before, "z needs a/1"
			w.torn = true
			w.fault = func(op, _ string) error {
				if op == "update" {
					return errInjected
				}
				return nil
			}
			g.Expect(s.Commit(t.Context(), resync(is("a/1", "y"), is("c/1", "z needs a/1")))).NotTo(Succeed())
			g.Expect(w.values["c/1"]).To(Equal("z needs a/1"))
			g.Expect(w.log).NotTo(ContainElement(ContainSubstring("c/1")))
			w.fault = nil
			g.Expect(s.Commit(t.Context(), update(is("a/1", "y")))).To(Succeed())
			g.Expect(w.values).To(Equal(map[string]string{"a/1": "y", "c/1": "z needs a/1"}))
		})
	}
}

// What Retrieve describes cannot always be made: it is not what a failed change goes back to.
func TestAFailedChangeOfAnIncompleteValue(t *testing.T) {
	g, w := NewWithT(t), newWorld()
	s := New(Options{}, w.parts()...)
	w.values["a/1"] = "bad as nobody makes it"
	w.fault = func(op, _ string) error {
		if op == "update" {
			return errInjected
		}
		return nil
	}
	err := s.Commit(t.Context(), resync(is("a/1", "x")))
	g.Expect(err).To(MatchError("a/1: input/output error"))
	g.Expect(w.lines()).To(Equal([]string{"retrieve a/", "retrieve b/", "retrieve c/", "update a/1"}))
}

// A call that fails may have made any part of a value: a transaction that reverts removes it,
// and names what it cannot remove. What was in the way is not its to remove.
func TestAFailedCallOfATransactionThatReverts(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error // of the creation
		cleanup error
		calls   []string
		remains string
	}{
		{"it is removed", errInjected, nil, []string{"create a/1", "delete a/1"}, ""},
		{"it cannot be removed", errInjected, errInjected, []string{"create a/1", "delete a/1"}, "a/1"},
		{"an object of another program is in the way", ErrForeign, errInjected, []string{"create a/1"}, ""},
		{"its owner has ended", ErrGone, errInjected, []string{"create a/1"}, ""},
		{"nothing was changed", Unchanged(errors.New("not yet")), errInjected, []string{"create a/1"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, w := NewWithT(t), newWorld()
			s := New(Options{}, w.parts()...)
			w.torn = true
			w.fault = func(op, _ string) error {
				if op == "create" {
					return c.err
				}
				return c.cleanup
			}
			err := s.Commit(t.Context(), reverting(is("a/1", "x")))
			g.Expect(err).To(MatchError(c.err))
			g.Expect(w.lines()).To(Equal(c.calls))
			remain, some := errors.AsType[*controller.RemainError](err)
			g.Expect(some).To(Equal(c.remains != ""))
			if some {
				g.Expect(remain.Key).To(Equal(c.remains))
			}
			w.fault, w.torn = nil, false
			g.Expect(s.Commit(t.Context(), resync())).To(Succeed())
			g.Expect(w.values).To(BeEmpty(), "a resync removes the rest")
		})
	}
}
