// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"net/netip"
)

// KeyOfWitness returns the key of the quarantine of an address that a witness has found in
// use.
func KeyOfWitness(name string, a netip.Addr) Key {
	return Key{Network: WitnessNetwork, ContainerID: name, IfName: a.String()}
}

// Accept ends a doubt about the journal, and quarantines the addresses in use that the
// journal does not know in the same commit. It returns those that had no lease. The caller
// ends the suspension of the ledger.
func (l *Ledger) Accept(ctx context.Context, used []Unleased) (fresh []netip.Addr, err error) {
	err = l.autocommit(ctx, func(st *Stage) error {
		for _, u := range used {
			begun, err := st.quarantineFree(u.Pool, u.Addr, u.Key, u.Reason)
			if err != nil {
				return err
			}
			if begun {
				fresh = append(fresh, u.Addr)
			}
		}
		st.changes = append(st.changes, change{kind: accepted})
		return nil
	})
	if err != nil {
		return nil, explain(err, "accept the journal with %d addresses in use", len(used))
	}
	return fresh, nil
}
