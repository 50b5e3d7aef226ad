// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
)

// mostUnwanted bounds the refused blocks that one growth accepts from the cloud: a refused
// block is kept until the growth ends, so that the cloud gives other ones.
const mostUnwanted = 16

// refusal describes a refused block of a family that the cloud has just given, "" for none.
func (p *Interfaces) refusal(f ledger.Family) string {
	for _, id := range slices.Sorted(maps.Keys(p.unwanted)) {
		for _, b := range p.refused {
			if slices.Contains(p.unwanted[id], b.Prefix) && ledger.FamilyOf(b.Prefix.Addr()) == f {
				return "the cloud gives addresses that pods cannot have: " + b.String()
			}
		}
	}
	return ""
}

func (p *Interfaces) countUnwanted() (n int) {
	for _, blocks := range p.unwanted {
		n += len(blocks)
	}
	return n
}

// returnUnwanted returns the refused blocks that the cloud has given. The ledger has never
// had them. If the cloud does not take them back, they stay, and the node reports them.
func (p *Interfaces) returnUnwanted(ctx context.Context) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.unwanted)) {
		if i := p.view.find(id); i != nil {
			err := p.unassign(ctx, i, p.unwanted[id])
			switch {
			case errors.Is(err, cloud.ErrThrottled):
				errs = append(errs, err)
			case err != nil:
				p.log.Warn("addresses that pods cannot have stay on their interface", "error", err)
			default:
				errs = append(errs, p.forget(ctx, id, p.unwanted[id]))
			}
		}
	}
	clear(p.unwanted)
	return errors.Join(errs...)
}

// forget removes blocks that the cloud no longer has from the machine.
func (p *Interfaces) forget(ctx context.Context, id string, blocks []netip.Prefix) error {
	next := p.machine.clone()
	if a := next[id]; a != nil {
		for _, b := range blocks {
			a.lose(b)
			p.removed[b] = p.deps.Uptime()
		}
	}
	if _, err := p.change(ctx, next, nil); err != nil {
		return fmt.Errorf("forget addresses that pods cannot have: %w", err)
	}
	return nil
}
