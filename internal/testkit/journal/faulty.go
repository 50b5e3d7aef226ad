// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
)

// Fault selects a fault of package faulty for a commit.
type Fault uint8

// Faults.
const (
	None  Fault = iota
	Fail        // faulty.Fail
	Tear        // faulty.Tear
	Delay       // faulty.Delay for the Lag of the journal
)

// ErrInjected is the error of Fail and Tear.
var ErrInjected = errors.New("injected fault")

// At returns a plan with one fault, for commit number k (from 1).
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

// Faulty is a Journal whose commits meet the faults of Plan.
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
	planned := map[Fault]faulty.Fault{
		Fail:  faulty.FailWith(ErrInjected),
		Tear:  faulty.TearWith(ErrInjected),
		Delay: faulty.Delay(j.Lag),
	}[fault]
	err := planned.Do(ctx, func() error { return j.Journal.Commit(ctx, ops) })
	if err != nil {
		return fmt.Errorf("commit %d: %w", n, err)
	}
	return nil
}

// Commits returns the number of commits that were asked for.
func (j *Faulty) Commits() int64 { return j.n.Load() }
