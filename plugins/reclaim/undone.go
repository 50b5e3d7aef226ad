// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"

	"github.com/cadastre/cadastre/ledger"
)

// undoneByHand is the reason of a change of the ledger by which a person has undone a
// reclaim.
const undoneByHand = "undone by hand"

// undoneEntries bounds the history that loadUndone reads.
const undoneEntries = 10_000

// loadUndone makes the Judge know the reclaims that persons have undone before the agent was
// restarted. They are in the newest entries of the ledger's history.
func (p *Plugin) loadUndone(ctx context.Context, leases []ledger.Lease) {
	if p.loaded || !p.Config.Enabled {
		return
	}
	p.loaded = true
	entries, err := p.Ledger.History(ctx, ledger.HistoryQuery{Limit: undoneEntries})
	if err != nil {
		if !errors.Is(err, ledger.ErrNoHistory) {
			p.Log.Warn("the history cannot be read: a reclaim that was undone by hand may begin again", "error", err)
		}
		return
	}
	held := make(map[subject]ledger.Lease, len(leases))
	for _, l := range leases {
		held[subjectOf(l)] = l
	}
	for _, e := range entries { // the newest first: it decides
		x := subject{e.Key, e.Generation}
		l, ok := held[x]
		if !ok || e.Action != ledger.Confirmed && e.Action != ledger.MadePending {
			continue
		}
		delete(held, x)
		if e.Action == ledger.Confirmed && e.Reason == undoneByHand {
			p.judge.KeepUndone(l, e.Time)
		}
	}
}
