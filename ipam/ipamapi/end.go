// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// ErrPoolInUse is returned by EndPool for a pool with leases, and by ReleasePool for a pool of
// the global space with endpoints.
var ErrPoolInUse = forbidden("addresses of the pool are in use")

// EndPool ends a pool whatever number of requests for it are not released yet,
// for an engine that has lost the network and never releases it. It returns the
// leases that end with it. A pool with leases is ended only with force, otherwise
// it fails with ErrPoolInUse. A network that still uses the pool gets no more
// addresses, and its addresses may be allocated to other networks. It is not known
// which addresses of a pool that had leases are in use. So such a pool stays on record
// as ended until it is requested again. A call that has begun does not end with ctx.
func (d *Driver) EndPool(ctx context.Context, poolID string, force bool) ([]ledger.Lease, error) {
	d.change.Lock()
	defer d.change.Unlock()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("end pool %q: %w", poolID, context.Cause(ctx))
	}
	ctx = context.WithoutCancel(ctx) // in the middle the pool would be there until the next start only
	p := d.pools[poolID]
	if p == nil {
		return nil, fmt.Errorf("end pool %q: %w", poolID, ErrPoolNotFound)
	}
	leases, err := d.end(ctx, p, ending{forever: true, allow: func(leases []ledger.Lease) error {
		if len(leases) > 0 && !force {
			return fmt.Errorf("%w: %s", ErrPoolInUse, inUse(leases))
		}
		return nil
	}})
	if err != nil {
		return nil, fmt.Errorf("end pool %q: %w", poolID, err)
	}
	return leases, nil
}

// inUse counts leases and names the first of them.
func inUse(leases []ledger.Lease) string {
	const most = 4
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(x, y ledger.Lease) int {
		return cmp.Or(x.Addr.Compare(y.Addr), strings.Compare(x.Pool, y.Pool))
	})
	var named []string
	for _, l := range leases[:min(len(leases), most)] {
		h, _ := HolderOf(l)
		named = append(named, fmt.Sprintf("%s is held by %s", l.Addr, h))
	}
	text := strings.Join(named, ", ")
	if n := len(leases) - most; n > 0 {
		text += fmt.Sprintf(" and %d more addresses are held", n)
	}
	return text
}
