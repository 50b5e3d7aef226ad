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
	select {
	case <-p.round:
		defer func() { p.round <- struct{}{} }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the round of the witnesses in progress: %w", context.Cause(ctx))
	}
	o := p.observe(ctx)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("read the witnesses: %w", context.Cause(ctx))
	}
	return o.World, nil
}
