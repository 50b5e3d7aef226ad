// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Apply claims the leases of a plan in one commit of an empty ledger, and quarantines its
// addresses without a lease. After an error the ledger holds a part of the plan.
func Apply(ctx context.Context, l *ledger.Ledger, pools []Pool, p *Plan) error {
	st := l.Begin()
	if err := stage(st, pools, p); err != nil {
		st.Undo()
		return err
	}
	if err := st.Commit(ctx); err != nil {
		return err
	}
	var unleased []ledger.Unleased
	for _, u := range p.Quarantined {
		unleased = append(unleased, ledger.Unleased{
			Pool: u.Pool, Addr: u.Addr, Key: witness.QuarantineKey(u.Addr), Reason: "rebuild: " + u.Reason,
		})
	}
	_, _, err := l.ChangeQuarantines(ctx, unleased, nil)
	return err
}

func stage(st *ledger.Stage, pools []Pool, p *Plan) error {
	for _, pool := range pools {
		if err := st.SetPool(ledger.Pool{Name: pool.Name}); err != nil {
			return err
		}
		if err := st.SetBlocks(pool.Name, pool.Blocks); err != nil {
			return err
		}
	}
	seen := map[ledger.Key]bool{}
	for _, r := range p.Records {
		leases, _, err := st.Claim(ledger.Request{
			Pool:    r.Pool,
			Key:     r.Key,
			Pod:     r.Pod,
			NetNS:   r.NetNS,
			NetNSID: r.NetNSID,
			Wired:   r.Wired,
			MAC:     r.MAC,
			Wanted:  r.Addrs,
			More:    seen[r.Key], // one attachment may have addresses of two pools
		})
		if err != nil {
			return err
		}
		if len(leases) != len(r.Addrs) {
			return fmt.Errorf("claim %v for %s: %d leases were made", r.Addrs, r.Key, len(leases))
		}
		seen[r.Key] = true
	}
	return nil
}
