// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/witness"
)

// driverName stands for the names that the engine may know this plugin by.
const driverName = "cadastre"

// observeEvery is the interval between two readings of the engine.
const observeEvery = 20 * time.Second

// observer compares the pools of the own ledger with the engine's networks. The plugin
// does not see the network namespaces of containers: a pool in which an endpoint has an
// address is never given up.
type observer struct {
	log    *slog.Logger
	engine ipamapi.EngineReader
	ledger *ledger.Ledger
	docker *dockeripam.DockerIPAM
	host   ipamapi.AddressView
	uptime func() time.Duration
	ticks  <-chan time.Time
}

// run observes until ctx ends.
func (o *observer) run(ctx context.Context) error {
	missing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.ticks:
		}
		shown := ipamapi.Observation{Uptime: o.uptime()}
		view, err := o.engine.Read(ctx)
		if err == nil {
			shown = o.observation(view)
		}
		err = errors.Join(err, o.docker.Observe(ctx, shown))
		if err != nil && ctx.Err() == nil && !missing {
			o.log.Warn("Docker's pools are not compared with the engine's networks", "error", err)
		}
		missing = err != nil
	}
}

func (o *observer) observation(view *witness.EngineView) ipamapi.Observation {
	own := o.host.Addresses()
	holders := map[netip.Addr]string{}
	for _, l := range o.ledger.Leases() {
		if h, ok := ipamapi.HolderOf(l); ok && !h.Gateway {
			holders[l.Addr] = fmt.Sprintf("%s has it", h)
		}
	}
	return ipamapi.Observation{
		Engine: view,
		Uptime: o.uptime(),
		Now:    view.Taken,
		InUse: func(a netip.Addr) string {
			if slices.Contains(own, a) {
				return "a link of this machine has it"
			}
			return holders[a]
		},
	}
}
