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
	o, end, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return o.World, nil
}

// begin begins a round: it waits for the one in progress and reads all witnesses. The caller
// ends the round.
func (p *Plugin) begin(ctx context.Context) (o Observation, end func(), err error) {
	select {
	case <-p.round:
		end = func() { p.round <- struct{}{} }
	case <-ctx.Done():
		return o, nil, fmt.Errorf("wait for the round of the witnesses in progress: %w", context.Cause(ctx))
	}
	o = p.observe(ctx)
	if ctx.Err() != nil {
		end()
		return o, nil, fmt.Errorf("read the witnesses: %w", context.Cause(ctx))
	}
	return o, end, nil
}
