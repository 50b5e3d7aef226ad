// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
)

// statusInterval is the time between two writes of the status of AddressPools.
const statusInterval = 30 * time.Second

// source is the source of the nodes' addresses for one leadership.
type source struct {
	provider netresource.AllocationImplementation
	// qps limits the manager's calls; negative if the provider limits its requests.
	qps float64
	// consistency is the time after which a reading shows all earlier changes; negative
	// if each reading does.
	consistency time.Duration
	// follow reads what the provider needs, calls then, and returns when both have ended.
	follow func(ctx context.Context, then func(context.Context) error) error
	reads  string // what follow waits for
}

// addresses returns the source that --netresource-provider selects.
func (p *operator) addresses() (source, error) {
	if p.options.netresource.provider == providerClusterPool {
		return p.addressPools(), nil
	}
	return source{}, fmt.Errorf("addresses of cloud %s are not there yet", p.cloud.Name())
}

// addressPools returns the blocks of AddressPools. Their provider reads the
// NetResourceSets themselves.
func (p *operator) addressPools() source {
	o := p.options.netresource
	provider := clusterpool.New(clusterpool.Config{CoolDown: o.coolDown, Pre: o.preAllocate})
	return source{
		provider:    provider,
		qps:         o.qps,
		consistency: -1,
		reads:       "the AddressPools are being read",
		follow: func(ctx context.Context, then func(context.Context) error) error {
			return provider.Follow(ctx, p.clients.dynamic, statusInterval, p.log, then)
		},
	}
}
