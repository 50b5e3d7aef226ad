// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// Fault is what happens to a commit.
type Fault uint8

// Faults.
const (
	None  Fault = iota
	Fail        // nothing is applied, an error is returned
	Tear        // all is applied, but an error is returned: the outcome is unknown to the caller
	Delay       // all is applied, late
)

// ErrInjected is the error of Fail and Tear.
var ErrInjected = errors.New("injected fault")

// At is a plan in which only commit number k (from 1) meets a fault.
func At(k int64, f Fault) func(n int64) Fault {
	return func(n int64) Fault {
		if n == k {
			return f
		}
		return None
	}
}

// Journal is the ledger's contract, repeated so that nothing here imports the ledger.
type Journal interface {
	Load(ctx context.Context, f func(kvdb.KeyValue) error) error
	Commit(ctx context.Context, ops []kvdb.Op) error
}

// Faulty passes everything on to Journal, but for the commits that Plan says.
type Faulty struct {
	Journal
	Plan func(n int64) Fault // of commit number n, from 1; nil: none
	Lag  time.Duration       // of Delay
	n    atomic.Int64
}

// Commit commits, or fails as planned.
func (j *Faulty) Commit(ctx context.Context, ops []kvdb.Op) error {
	n, fault := j.n.Add(1), None
	if j.Plan != nil {
		fault = j.Plan(n)
	}
	switch fault {
	case Fail:
		return fmt.Errorf("commit %d: %w", n, ErrInjected)
	case Tear:
		if err := j.Journal.Commit(ctx, ops); err != nil {
			return err
		}
		return fmt.Errorf("commit %d: %w", n, ErrInjected)
	case Delay:
		select {
		case <-time.After(j.Lag):
		case <-ctx.Done():
			return fmt.Errorf("commit %d: %w", n, context.Cause(ctx))
		}
	}
	return j.Journal.Commit(ctx, ops)
}

// Commits is the number of commits that were asked for.
func (j *Faulty) Commits() int64 { return j.n.Load() }
