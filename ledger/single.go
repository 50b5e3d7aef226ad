// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
)

// ClaimOne is Claim of one address, for those who claim often: its answer
// needs no memory of its own.
func (l *Ledger) ClaimOne(ctx context.Context, req Request) (Lease, error) {
	if len(req.Wanted)+len(req.Families) != 1 {
		return Lease{}, fmt.Errorf("claim one address in pool %q for %s: %d families and %d addresses are named, one of both would be right",
			req.Pool, req.Key, len(req.Families), len(req.Wanted))
	}
	var room [1]Lease
	st := l.brief()
	leases, _, err := st.claimInto(room[:0], req)
	switch {
	case err != nil:
		return Lease{}, err
	case len(leases) != 1:
		return Lease{}, fmt.Errorf("claim one address in pool %q for %s: %w of %d addresses", req.Pool, req.Key, ErrKeyHeld, len(leases))
	}
	if err := st.Commit(ctx); err != nil {
		return Lease{}, fmt.Errorf("claim an address for %s: %w", req.Key, err)
	}
	l.briefs.Put(st)
	return leases[0], nil
}

// Free is Release for those who only want to know how many leases it has freed.
func (l *Ledger) Free(ctx context.Context, sel Selector) (n int, err error) {
	st := l.brief()
	if err := st.releaseEach(sel, func(*lease) { n++ }); err != nil {
		return 0, err
	}
	if err := st.Commit(ctx); err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	l.briefs.Put(st)
	return n, nil
}
