// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// place is an address of a pool.
type place struct {
	pool string
	addr netip.Addr
}

// unleased remembers the addresses that are in use without a lease, and the quarantined
// ones that are in use no more.
type unleased struct{ seen, left findings.Twice[place] }

// change is a quarantine that begins or ends.
type change struct {
	place
	reason string
}

// keyOf returns the key of the quarantine of an address.
func keyOf(a netip.Addr) ledger.Key { return ledger.KeyOfWitness(string(witness.Kernel), a) }

// confirm returns what this observation and an earlier one show.
func (p *Plugin) confirm(memory findings.Twice[place], o Observation, now map[place]string) (sure []change) {
	shown := map[place]findings.Seen{}
	for at, text := range now {
		shown[at] = o.seen(text)
	}
	for at, first := range memory.Observe(shown, p.Config.Interval) {
		sure = append(sure, change{at, first.And(shown[at])})
	}
	return sure
}

// actOnUnleased quarantines addresses that are in use without a lease, and ends the
// quarantine of those that are in use no more: all of a round in one commit.
func (p *Plugin) actOnUnleased(ctx context.Context, o Observation) error {
	if o.World.Kernel == nil || p.Starting() != "" {
		clear(p.unleased.seen)
		clear(p.unleased.left)
		return nil
	}
	unknown, unseen := p.compare(o.World)
	begin, end := p.confirm(p.unleased.seen, o, unknown), p.confirm(p.unleased.left, o, unseen)
	if len(begin)+len(end) == 0 {
		return nil
	}
	var unleased []ledger.Unleased
	for _, c := range begin {
		unleased = append(unleased, ledger.Unleased{Pool: c.pool, Addr: c.addr, Key: keyOf(c.addr), Reason: c.reason})
	}
	var over []ledger.Selector
	why := map[netip.Addr]string{}
	for _, c := range end {
		over = append(over, ledger.Selector{Key: keyOf(c.addr), Reason: c.reason})
		why[c.addr] = c.reason
	}
	begun, ended, err := p.Ledger.ChangeQuarantines(ctx, unleased, over)
	for _, u := range begun {
		p.countQuarantine()
		p.Log.Warn("an address is in use without a lease: it is quarantined",
			"address", u.Addr, "pool", u.Pool, "reason", u.Reason)
	}
	for _, l := range ended {
		p.Log.Info("a quarantined address is in use no more: its quarantine ends",
			"address", l.Addr, "pool", l.Pool, "reason", why[l.Addr])
	}
	return err
}

// compare returns the addresses of active blocks that answer and that the ledger has no lease
// for or lets cool. It also returns the ones that this plugin has quarantined and that answer
// nowhere.
func (p *Plugin) compare(w *witness.World) (unknown, unseen map[place]string) {
	unknown, unseen = map[place]string{}, map[place]string{}
	blocks := p.Ledger.Stats()
	used := map[netip.Addr]bool{}
	for _, s := range w.Sightings(func(a netip.Addr) bool { return p.hasNoOwner(blocks, a) }) {
		if !s.Answers {
			continue
		}
		used[s.Addr] = true
		for _, b := range blocks {
			if b.State != ledger.Active || !b.Block.Contains(s.Addr) {
				continue
			}
			if l, leased := p.Ledger.Lookup(b.Pool, s.Addr); !leased || l.State == ledger.Cooling {
				unknown[place{b.Pool, s.Addr}] = witness.Evidence{Witness: witness.Kernel, Text: s.String()}.String()
			}
		}
	}
	if !p.complete(w) {
		return unknown, unseen
	}
	for l := range p.Ledger.AllInSteps(leasesAtOnce) {
		if l.State == ledger.Quarantined && l.Key == keyOf(l.Addr) && !used[l.Addr] {
			text := fmt.Sprintf("%s answers in none of %d network namespaces", l.Addr, len(w.Kernel.Namespaces))
			unseen[place{l.Pool, l.Addr}] = witness.Evidence{Witness: witness.Kernel, Text: text}.String()
		}
	}
	return unknown, unseen
}

// hasNoOwner reports whether a block contains an address that no owner has leased.
func (p *Plugin) hasNoOwner(blocks []ledger.BlockStat, a netip.Addr) bool {
	return slices.ContainsFunc(blocks, func(b ledger.BlockStat) bool {
		if !b.Block.Contains(a) {
			return false
		}
		l, leased := p.Ledger.Lookup(b.Pool, a)
		return !leased || l.State == ledger.Cooling || l.State == ledger.Quarantined
	})
}

// complete reports whether the views show all evidence: a namespace may count, and an address
// answer, by what the runtime or the engine says alone.
func (p *Plugin) complete(w *witness.World) bool {
	missing := func(name witness.Name) bool {
		r := w.Report(name)
		return r.State == witness.Missing && !r.Absent
	}
	return w.Kernel.Hidden == "" && !missing(witness.Runtime) && !missing(witness.Engine)
}
