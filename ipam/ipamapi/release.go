// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// release serves ReleaseAddress.
func (d *Driver) release(ctx context.Context, key string, a netip.Addr) error {
	p, _ := d.known(key)
	if p == nil {
		return ErrBadPool
	}
	gateway, err := d.releaseFrom(ctx, p, a, false)
	if !gateway {
		return err
	}
	d.change.Lock()
	defer d.change.Unlock()
	_, err = d.releaseFrom(ctx, p, a, true)
	return err
}

// releaseFrom releases a. It releases a gateway, whose record may change, only
// if its caller holds change; otherwise it reports that a is one.
func (d *Driver) releaseFrom(ctx context.Context, p *pool, a netip.Addr, changing bool) (gateway bool, err error) {
	p.life.RLock()
	defer p.life.RUnlock()
	if p.ended {
		return false, ErrBadPool
	}
	m := d.memberWith(p, a)
	if m == nil {
		return false, fmt.Errorf("%w: %s is not in %s", ErrIPOutOfRange, a, p.id.prefix)
	}
	err = p.with(m, func() error {
		if done, err := d.releaseEndpoint(ctx, p, m, a); done {
			return err
		}
		l, ok := d.ledger.Lookup(m.ledger, a)
		if !ok || !p.allocated(l) {
			return d.flush(ctx) // released already, or never requested through this pool
		}
		if gateway = holder(l).gateway; gateway && !changing {
			return nil
		}
		if gateway && p.shared[a.String()] > 0 {
			return d.share(ctx, p, a, -1)
		}
		_, err := d.ledger.Free(ctx, ledger.Selector{
			Addr:       a,
			Pool:       l.Pool,
			Purpose:    l.Purpose,
			Generation: l.Generation,
		})
		if errors.Is(err, ledger.ErrNotOwner) {
			return nil // another call has released it in between
		}
		return err
	})
	if errors.Is(err, ErrNoAvailableIPs) { // m ended, and its leases with it
		err = nil
	}
	return gateway, err
}

// flush writes what a failed commit of the ledger has left to write: no answer may
// come from a memory that the journal contradicts.
func (d *Driver) flush(ctx context.Context) error { return d.ledger.Begin().Commit(ctx) }

// releaseEndpoint releases the address of an endpoint in a pool of its own, which
// is the usual case. In every other case it does nothing and is not done.
func (d *Driver) releaseEndpoint(ctx context.Context, p, m *pool, a netip.Addr) (done bool, err error) {
	if p != m || m.fromPods() || p.id.group != "" {
		return false, nil
	}
	_, err = d.ledger.Free(ctx, ledger.Selector{
		Addr:    a,
		Pool:    m.ledger,
		Purpose: ledger.ForDocker,
		Network: p.key,
	})
	return !errors.Is(err, ledger.ErrNotOwner), err
}
