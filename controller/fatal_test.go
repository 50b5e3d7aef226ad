// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cadastre/cadastre/controller"
)

// southbound fails as the test says.
type southbound struct {
	controller.MemorySink
	fail error
}

func (s *southbound) Commit(ctx context.Context, txn controller.Transaction) error {
	return errors.Join(s.fail, s.MemorySink.Commit(ctx, txn))
}

// store is a Committer that fails as the test says.
type store struct{ fail error }

func (s *store) Commit(context.Context) error { return s.fail }
func (s *store) Undo()                        {}

func TestAFatalErrorEndsTheLoopWhereverItComesFrom(t *testing.T) {
	fatal := controller.NewFatalError(errors.New("broken"))
	puts := func(_ controller.Event, txn controller.UpdateOperations) error {
		txn.Put("k", wrapperspb.Bool(true))
		return nil
	}
	for name, test := range map[string]struct {
		txn  controller.UpdateTransactionType
		fail func(first, second *recorder, s *store, south *southbound)
	}{
		"a revert": {controller.RevertOnFailure, func(first, second *recorder, _ *store, _ *southbound) {
			first.revert = func() error { return fatal }
			second.update = func(controller.Event, controller.UpdateOperations) error { return errors.New("no") }
		}},
		"a revert of an aborted event": {controller.RevertOnFailure, func(first, second *recorder, _ *store, _ *southbound) {
			first.revert = func() error { return fatal }
			second.update = func(controller.Event, controller.UpdateOperations) error {
				return controller.NewAbortEventError(errors.New("no"))
			}
		}},
		"the southbound": {controller.BestEffort, func(first, _ *recorder, _ *store, south *southbound) { first.update, south.fail = puts, fatal }},
		"the southbound of an event that reverts": {controller.RevertOnFailure, func(first, _ *recorder, _ *store, south *southbound) { first.update, south.fail = puts, fatal }},
		"one value of the southbound": {controller.BestEffort, func(first, _ *recorder, _ *store, south *southbound) {
			first.update, south.fail = puts, controller.ValueErrors{"k": fatal}
		}},
		"a commit": {controller.BestEffort, func(_, _ *recorder, s *store, _ *southbound) { s.fail = fatal }},
	} {
		t.Run(name, func(t *testing.T) {
			first, second, s, south := &recorder{name: "first"}, &recorder{name: "second"}, &store{}, &southbound{}
			deps := controller.Deps{Handlers: []controller.EventHandler{first, second}, Committers: []controller.Committer{s}, Sink: south}
			inLoop(t, 10, deps, func(g Gomega, c *controller.Controller, result <-chan error) {
				test.fail(first, second, s, south)
				ev := newChange("x")
				ev.txn = test.txn
				g.Expect(c.PushEvent(ev)).To(Succeed())
				synctest.Wait()
				g.Expect(result).To(Receive(And(MatchError(controller.ErrFatal), MatchError(ContainSubstring("broken")))))
				g.Expect(ev.done).To(Receive(MatchError(controller.ErrFatal)))
				g.Expect(c.Status().Fatal).To(ContainSubstring("broken"))
				g.Expect(c.PushEvent(newChange("y"))).To(MatchError(controller.ErrClosedController))
			})
		})
	}
}

func TestAFatalErrorOfAPeriodicHealingEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		south := &southbound{}
		cfg := controller.DefaultConfig()
		cfg.EnablePeriodicHealing = true
		c := controller.New(cfg, controller.Deps{Sink: south})
		result := make(chan error, 1)
		go func() { result <- c.Run(t.Context()) }()
		g.Expect(c.PushEvent(&controller.DBResync{})).To(Succeed())
		synctest.Wait()
		south.fail = controller.NewFatalError(errors.New("broken"))
		c.Status() // its lock orders the line before and the loop's next event, which a timer starts
		g.Expect(<-result).To(MatchError(controller.ErrFatal))
	})
}

func TestAnAbortRevertsOnlyAnEventThatReverts(t *testing.T) {
	for txn, want := range map[controller.UpdateTransactionType][]string{
		controller.BestEffort:             {"resync", "x", "resync"},
		controller.BestEffortIgnoreErrors: {"resync", "x", "resync"},
		controller.RevertOnFailure:        {"resync", "x", "revert x", "resync"},
	} {
		t.Run(txn.String(), func(t *testing.T) {
			first, second := &recorder{name: "first"}, &recorder{name: "second"}
			second.update = func(controller.Event, controller.UpdateOperations) error {
				return controller.NewAbortEventError(errors.New("stop"))
			}
			inLoop(t, 10, controller.Deps{Handlers: []controller.EventHandler{first, second}}, func(g Gomega, c *controller.Controller, _ <-chan error) {
				ev := newChange("x")
				ev.txn = txn
				g.Expect(c.PushEvent(ev)).To(Succeed())
				synctest.Wait()
				g.Expect(ev.done).To(Receive(MatchError(controller.ErrAbort)))
				g.Expect(first.list()).To(Equal(want))
			})
		})
	}
}
