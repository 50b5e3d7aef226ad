// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package fence_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/fence"
)

var errDeposed = errors.New("another one leads")

// lease takes a second, and answers what was true when it was asked.
type lease struct {
	lost  atomic.Bool
	asked atomic.Int32
}

func (l *lease) check(ctx context.Context) error {
	l.asked.Add(1)
	lost := l.lost.Load()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	if lost {
		return errDeposed
	}
	return nil
}

func TestTheGateAsksOnceForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, l := NewWithT(t), &lease{}
		gate := fence.NewGate(l.check, time.Minute)
		errs := make(chan error, 100)
		go func() { errs <- gate.Check(t.Context()) }()
		synctest.Wait() // it is being asked
		l.lost.Store(true)
		for range 50 {
			go func() { errs <- gate.Check(t.Context()) }()
		}
		g.Expect(<-errs).To(Succeed(), "asked before")
		for range 50 {
			g.Expect(<-errs).To(MatchError(errDeposed), "asked after")
		}
		g.Expect(l.asked.Load()).To(Equal(int32(2)))
	})
}

func TestWhoGivesUpIsNoAnswerForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, l := NewWithT(t), &lease{}
		gate := fence.NewGate(l.check, time.Minute)
		errs, gone := make(chan error, 1), make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { gone <- gate.Check(t.Context()) }() // is asking
		synctest.Wait()
		go func() { gone <- gate.Check(ctx) }() // will ask next, for the other one too
		synctest.Wait()
		go func() { errs <- gate.Check(t.Context()) }()
		synctest.Wait()
		cancel()
		g.Expect(<-errs).To(Succeed())
		g.Expect(<-gone).To(Succeed())
		<-gone
	})
}

func TestAQuestionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		gate := fence.NewGate((&lease{}).check, time.Millisecond)
		g.Expect(gate.Check(t.Context())).To(MatchError(context.DeadlineExceeded))
		g.Expect(fence.NewGate(nil, time.Second).Check(t.Context())).To(Succeed(), "nobody is asked")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(fence.NewGate(nil, time.Second).Check(ctx)).NotTo(Succeed())
	})
}
