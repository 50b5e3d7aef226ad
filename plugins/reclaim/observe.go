// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/witness"
)

// Observe reads all witnesses now, and neither decides nor acts on what they show. It waits
// for a round in progress.
func (p *Plugin) Observe(ctx context.Context) (*witness.World, error) {
	o, unlock, err := p.observe(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return o.World, nil
}

// locked waits for the round in progress. No other one begins until unlock is called.
func (p *Plugin) locked(ctx context.Context) (unlock func(), err error) {
	select {
	case <-p.round:
		return func() { p.round <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the round of the witnesses in progress: %w", context.Cause(ctx))
	}
}

// observe begins a round: it reads the clocks, the leases and all witnesses. The caller ends
// the round with unlock. The leases are read first. An address whose lease is claimed
// meanwhile is not quarantined: the ledger is asked again.
func (p *Plugin) observe(ctx context.Context) (o Observation, unlock func(), err error) {
	if unlock, err = p.locked(ctx); err != nil {
		return o, nil, err
	}
	o = Observation{Wall: p.Now(), Uptime: p.Uptime(), Busy: p.busy, Hold: p.Degraded()}
	if id, err := p.BootID(); err != nil {
		o.Hold = "the boot ID cannot be read: " + err.Error()
	} else {
		o.BootID = id
	}
	o.Leases = p.leases()
	o.World = p.read(ctx, o.Leases)
	o.World.BootID = o.BootID
	unlisted := p.unlistedOf(o.Leases)
	// On a node without a CRI socket a CNI GC is the only statement of the runtime.
	if r := o.World.Report(witness.Runtime); r.State == witness.NotApplicable || r.Absent {
		o.World.Unlisted = unlisted
	}
	if ctx.Err() != nil {
		unlock()
		return o, nil, fmt.Errorf("read the witnesses: %w", context.Cause(ctx))
	}
	return o, unlock, nil
}
