// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// sweep deletes what lost replies have left at the cloud: orphans, and interfaces that have
// been empty for long.
func (p *Provider) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	var gone []string
	err := p.checkFence(ctx)
	if err == nil {
		gone, err = p.config.Cloud.DeleteOrphans(ctx, "", p.config.OrphanAge)
	}
	if err != nil {
		p.config.Log.Warn("delete interfaces that no machine has, trying again",
			"cloud", p.config.Cloud.Name(), "in", p.sweepEvery(), "error", err)
	}
	if len(gone) > 0 {
		p.config.Log.Info("interfaces that no machine has are deleted",
			"cloud", p.config.Cloud.Name(), "interfaces", gone)
	}
	for _, on := range p.longEmpty() {
		if p.checkFence(ctx) != nil {
			return
		}
		p.deleteEmpty(ctx, on.instance, on.iface)
	}
}

func (p *Provider) checkFence(ctx context.Context) error {
	if p.config.Fence == nil {
		return ctx.Err()
	}
	return p.config.Fence(ctx)
}

// longEmpty returns the interfaces of the nodes' machines that have been empty for OrphanAge.
func (p *Provider) longEmpty() []item {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, still := p.config.Now(), map[item]time.Time{}
	for _, n := range p.nodes {
		m, err := n.machine()
		if err != nil {
			continue
		}
		for _, i := range m.Interfaces {
			if p.deletable(i) {
				on := item{instance: m.ID, iface: i.ID}
				still[on] = cmp.Or(p.empty[on], now)
			}
		}
	}
	p.empty = still
	var long []item
	for on, since := range still {
		if now.Sub(since) > p.config.OrphanAge {
			long = append(long, on)
		}
	}
	return slices.SortedFunc(slices.Values(long), func(a, b item) int {
		return cmp.Or(cmp.Compare(a.instance, b.instance), cmp.Compare(a.iface, b.iface))
	})
}
