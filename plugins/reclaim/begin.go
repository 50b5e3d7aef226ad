// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Begin begins the reclaim of a lease by hand, and returns the time at which the lease is
// released. It needs neither a second observation nor the grace period; all other rules
// hold: a round that does not show that the owner is gone undoes the reclaim.
func (p *Plugin) Begin(ctx context.Context, l ledger.Lease, reason string) (until time.Time, err error) {
	unlock, err := p.locked(ctx)
	if err != nil {
		return until, fmt.Errorf("begin the reclaim of %s: %w", l.Addr, err)
	}
	defer unlock()
	if !p.Config.Enabled { // no round would decide on it
		return until, fmt.Errorf(
			"begin the reclaim of %s: cadastre.reclaim.enabled is false: release it by hand",
			l.Addr,
		)
	}
	if p.busy(l) {
		return until, fmt.Errorf("begin the reclaim of %s: a request for %s is in progress", l.Addr, l.Key)
	}
	a := &Assessment{Leases: []ledger.Lease{l}, Action: Begin, Reason: reason}
	if err := p.do(ctx, a); err != nil {
		return until, err
	}
	if a.Action != Begin {
		return until, fmt.Errorf("begin the reclaim of %s: %w", l.Addr, errors.New(a.Waits))
	}
	delete(p.judge.kept, subjectOf(l))
	return p.Now().Add(p.Config.Undo).UTC(), nil
}
