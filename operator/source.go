// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"time"

	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/runner"
)

// statusInterval is the time between two writes of the status of AddressPools.
const statusInterval = 30 * time.Second

// source is the source of the nodes' addresses for one leadership.
type source struct {
	provider netresource.Provider
	// consistency is the time after which a reading shows all earlier changes; negative
	// if each reading does.
	consistency time.Duration
	// follow reads what the provider needs, calls then, and returns when both have ended.
	follow func(ctx context.Context, then func(context.Context) error) error
	reads  string // what follow waits for
}

// addresses returns the source that --netresource-provider selects.
func (p *operator) addresses(term *runner.Term) source {
	if p.cloud != nil {
		return p.cloudPool(term)
	}
	return p.addressPools()
}

// cloudPool returns addresses of the interfaces of machines.
func (p *operator) cloudPool(term *runner.Term) source {
	o := p.options.netresource
	consistency, orphanAge := cmp.Or(o.cloud.consistency, -1), cmp.Or(o.cloud.orphanAge, -1) // 0 stands for defaults
	return source{
		provider: cloudpool.New(cloudpool.Config{
			Cloud:       p.cloud,
			IPv4:        o.cloud.ipv4,
			IPv6:        o.cloud.ipv6,
			Prefixes:    o.cloud.prefixes,
			Pre:         o.preAllocate,
			Consistency: consistency,
			OrphanAge:   orphanAge,
			Fence:       term.Check,
			Log:         p.log,
		}),
		consistency: consistency,
		reads:       "the machines of the cloud are being read",
		follow:      func(ctx context.Context, then func(context.Context) error) error { return then(ctx) },
	}
}

// addressPools returns the blocks of AddressPools. Their provider reads the
// NetResourceSets themselves.
func (p *operator) addressPools() source {
	o := p.options.netresource
	provider := clusterpool.New(clusterpool.Config{CoolDown: o.coolDown, Pre: o.preAllocate})
	return source{
		provider:    provider,
		consistency: -1,
		reads:       "the AddressPools are being read",
		follow: func(ctx context.Context, then func(context.Context) error) error {
			return provider.Follow(ctx, p.clients.dynamic, statusInterval, p.log, then)
		},
	}
}
