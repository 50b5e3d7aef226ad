// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/kvdb"
)

var (
	errCrashed = errors.New("the process was killed")
	errLost    = errors.New("the reply was lost")
)

// fate selects the outcome of one request.
type fate int

const (
	served    fate = iota
	crashed        // killed before the request; all that follow fail
	lostReply      // done, and the caller is told an error
)

// stepper is one process whose requests wait for their turn.
type stepper struct {
	kvdb.Store
	ready chan struct{} // the process waits for its turn, or has ended
	turn  chan fate
	ended bool
	dead  bool
	err   error
}

func (s *stepper) wait() fate {
	if s.dead {
		return crashed
	}
	s.ready <- struct{}{}
	f := <-s.turn
	s.dead = f == crashed
	return f
}

func (s *stepper) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	if s.wait() == crashed {
		return kvdb.KeyValue{}, false, errCrashed
	}
	return s.Store.Get(ctx, key)
}

func (s *stepper) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	if s.wait() == crashed {
		return nil, 0, errCrashed
	}
	return s.Store.List(ctx, prefixes...)
}

// Txn does one write: the protocol must not need more at once.
func (s *stepper) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if len(ops) > 1 || len(conds) > 1 || len(conds) == 1 && conds[0].Key != ops[0].Key {
		return 0, fmt.Errorf("a store without transactions cannot do this at once: %v if %v", ops, conds)
	}
	f := s.wait()
	if f == crashed {
		return 0, errCrashed
	}
	rev, err := s.Store.Txn(ctx, conds, ops)
	if f == lostReply && err == nil {
		return 0, errLost
	}
	return rev, err
}

// schedule decides which process is next, and the fate of its request.
type schedule interface {
	next(n int) int // of n processes
	fate() fate
}

// run runs processes over one store, a request at a time; look is called between
// any two requests.
func run(store kvdb.Store, plan schedule, look func(), processes ...func(kvdb.Store) error) []error {
	var all []*stepper
	for _, f := range processes {
		s := &stepper{Store: store, ready: make(chan struct{}), turn: make(chan fate)}
		all = append(all, s)
		go func() {
			s.err = f(s)
			s.ended = true
			s.ready <- struct{}{}
		}()
		<-s.ready
	}
	for {
		var running []*stepper
		for _, s := range all {
			if !s.ended {
				running = append(running, s)
			}
		}
		look()
		if len(running) == 0 {
			break
		}
		s := running[plan.next(len(running))]
		s.turn <- plan.fate()
		<-s.ready
	}
	var errs []error
	for _, s := range all {
		errs = append(errs, s.err)
	}
	return errs
}

// every enumerates all schedules without faults.
type every struct {
	choices, sizes []int
	at             int
}

func (e *every) next(n int) int {
	if e.at == len(e.choices) {
		e.choices, e.sizes = append(e.choices, 0), append(e.sizes, n)
	}
	e.at++
	return e.choices[e.at-1]
}

func (e *every) fate() fate { return served }

// more moves on to the next schedule.
func (e *every) more() bool {
	e.at = 0
	for k := len(e.choices) - 1; k >= 0; k-- {
		if e.choices[k]+1 < e.sizes[k] {
			e.choices, e.sizes = e.choices[:k+1], e.sizes[:k+1]
			e.choices[k]++
			return true
		}
	}
	return false
}
