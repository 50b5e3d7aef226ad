// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/runner"
)

// A question that ends its goroutine has not been answered: the gate must not let its callers pass.
func TestAQuestionThatEndsItsGoroutineIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		gate := runner.NewGate(func(context.Context) error { time.Sleep(time.Second); runtime.Goexit(); return nil }, time.Minute)
		go func() { _ = gate.Check(t.Context()) }()
		synctest.Wait()
		waits := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		go func() { _ = gate.Check(t.Context()) }() // asks the second question
		synctest.Wait()
		go func() { waits <- gate.Check(t.Context()) }() // waits for its answer
		g.Expect(gate.Check(ctx)).To(MatchError(context.DeadlineExceeded))
		g.Expect(<-waits).To(MatchError(ContainSubstring("without an answer")))
	})
}

// A run that ends its goroutine ends as any other: its key may run again.
func TestARunThatEndsItsGoroutineEndsForItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, q, runs := NewWithT(t), runner.NewQueue(0, nil, time.Now), atomic.Int32{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.Run(ctx, 1, func(context.Context, string) { runs.Add(1); runtime.Goexit() })
		}()
		for range 3 {
			q.Add("a", "", 0)
			time.Sleep(time.Second)
		}
		g.Expect(runs.Load()).To(Equal(int32(3)))
		cancel()
		<-done
	})
}

// A controller that ends its goroutine ends the leadership, as one that fails.
func TestAControllerThatEndsItsGoroutineEndsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runner.New(runner.Config{Log: slog.New(slog.DiscardHandler), Controllers: func(*runner.Term) ([]runner.Controller, error) {
			return []runner.Controller{
				{Name: "lasts", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }},
				{Name: "ends", Run: func(context.Context) error { runtime.Goexit(); return nil }},
			}, nil
		}})
		NewWithT(t).Expect(r.Run(t.Context())).To(MatchError("controller ends: it has ended its goroutine"))
	})
}
