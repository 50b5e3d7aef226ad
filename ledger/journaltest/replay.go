// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journaltest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// place identifies an address.
type place struct {
	pool string
	addr netip.Addr
}

// model holds what entries say: the generation of the lease of each address, and the
// blocks.
type model struct {
	leases map[place]uint64
	blocks map[string]ledger.Action
}

// Agree returns the first difference between the history of l and its leases and blocks.
// A history whose oldest entries are gone need not have what was there before them.
func Agree(ctx context.Context, l *ledger.Ledger) error {
	entries, err := l.History(ctx, ledger.HistoryQuery{})
	if err != nil {
		return err
	}
	for i := 1; i < len(entries); i++ {
		if entries[i].Number != entries[i-1].Number-1 {
			return fmt.Errorf("entry %d of the history follows entry %d", entries[i-1].Number, entries[i].Number)
		}
	}
	complete := len(entries) > 0 && entries[len(entries)-1].Number == 1
	m := play(entries)
	for _, x := range l.Leases() {
		at := place{x.Pool, x.Addr}
		gen, held := m.leases[at]
		switch {
		case x.State == ledger.Cooling && held:
			return fmt.Errorf("%v cools, the history has lease %d there", at, gen)
		case x.State != ledger.Cooling && gen != x.Generation && (held || complete):
			return fmt.Errorf("%v has lease %d, the history has %d there", at, x.Generation, gen)
		}
		delete(m.leases, at)
	}
	for at, gen := range m.leases {
		return fmt.Errorf("the history has lease %d at %v, the ledger has none", gen, at)
	}
	for _, s := range l.Stats() {
		name := blockName(s.Pool, s.Block)
		last, known := m.blocks[name]
		if draining := last == ledger.BlockDraining; (known || complete) && draining != (s.State == ledger.Draining) ||
			!known && complete {
			return fmt.Errorf("block %s is %s, the history says %s", name, s.State, last)
		}
		delete(m.blocks, name)
	}
	for name := range m.blocks {
		return fmt.Errorf("the history has block %s, the ledger does not", name)
	}
	return nil
}

// play replays entries, the newest of which is the first one.
func play(entries []ledger.HistoryEntry) model {
	m := model{map[place]uint64{}, map[string]ledger.Action{}}
	for _, e := range slices.Backward(entries) {
		at := place{e.Pool, e.Addr}
		switch e.Action {
		case ledger.Moved:
			delete(m.leases, place{strings.TrimPrefix(e.Reason, "from pool "), e.Addr})
			m.leases[at] = e.Generation
		case ledger.Claimed, ledger.QuarantineBegan:
			m.leases[at] = e.Generation
		case ledger.Released, ledger.Expired:
			delete(m.leases, at)
		case ledger.BlockClosed:
			delete(m.blocks, blockName(e.Pool, e.Block))
		case ledger.BlockOpened, ledger.BlockDraining:
			m.blocks[blockName(e.Pool, e.Block)] = e.Action
		}
	}
	return m
}

func blockName(pool string, p netip.Prefix) string { return pool + " " + p.String() }
