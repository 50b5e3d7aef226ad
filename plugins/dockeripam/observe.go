// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// ObserveWorld compares the pools with what one round of the witnesses has shown; uptime
// is a clock that does not jump. Without the engine and all of the kernel's namespaces no
// requests are given up, and earlier observations do not count any more.
func (p *DockerIPAM) ObserveWorld(ctx context.Context, w *witness.World, uptime time.Duration) error {
	o := ipamapi.Observation{Engine: w.Engine, Uptime: uptime, Now: w.Taken}
	if w.Kernel != nil && w.Kernel.Hidden == "" {
		o.InUse = func(a netip.Addr) string {
			for _, p := range w.Kernel.Find(a) {
				if p.Namespace.Counts {
					return p.String() + " has it"
				}
			}
			return ""
		}
	}
	return p.Observe(ctx, o)
}

// Observe passes an observation to the driver, if it has started.
func (p *DockerIPAM) Observe(ctx context.Context, o ipamapi.Observation) error {
	select {
	case <-p.ready:
		return p.driver.Observe(ctx, o)
	default:
		return nil // the driver itself reads the engine when it starts
	}
}

// KeepPool undoes that requests for a pool are given up.
func (p *DockerIPAM) KeepPool(ctx context.Context, poolID string) error {
	d, err := p.started()
	if err != nil {
		return fmt.Errorf("keep Docker's pool %q: %w", poolID, err)
	}
	return d.KeepPool(ctx, poolID)
}

// Busy reports whether a request for the key of a lease is in progress: that cannot be
// excluded before the driver has started.
func (p *DockerIPAM) Busy(k ledger.Key) bool {
	d, err := p.started()
	return err != nil || d.Busy(k)
}

// Reclaim releases the lease of an endpoint that is gone, if its reclaim is pending.
func (p *DockerIPAM) Reclaim(ctx context.Context, l ledger.Lease, reason string) (freed bool, err error) {
	d, err := p.started()
	if err != nil {
		return false, fmt.Errorf("reclaim %s of Docker's pool %q: %w", l.Addr, l.Pool, err)
	}
	return d.Reclaim(ctx, l, reason)
}
