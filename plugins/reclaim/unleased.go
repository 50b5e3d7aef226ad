// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// quarantines remembers quarantines that observations have shown to be wanted, or unused. Its
// keys have no reason: that differs from one observation to the next.
type quarantines = findings.Twice[ledger.Unleased]

// actOnUnleased quarantines addresses that are in use without a lease, and ends the
// quarantine of those that are in use no more: all of a round in one commit. An end gives an
// address away, so that it needs an observation without a doubt, as the end of a lease does.
func (p *Plugin) actOnUnleased(ctx context.Context, o Observation) error {
	var wanted, unused []ledger.Unleased
	if p.Starting() == "" {
		wanted, unused = findings.Quarantines(p.book(o), o.World)
		unused = slices.DeleteFunc(unused, func(u ledger.Unleased) bool { // others end by hand
			return p.judge.doubt != "" || u.Key != witness.QuarantineKey(u.Addr)
		})
	}
	begin := p.twice(p.wanted, o, wanted)
	end := p.twice(p.unused, o, unused)
	if len(begin)+len(end) == 0 {
		return nil
	}
	var over []ledger.Selector
	why := map[netip.Addr]string{}
	for _, u := range end {
		over = append(over, ledger.Selector{Key: u.Key, Reason: u.Reason})
		why[u.Addr] = u.Reason
	}
	begun, ended, err := p.Ledger.ChangeQuarantines(ctx, begin, over)
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

// book returns the leases and blocks as they are after the witnesses were read. An address
// whose lease was claimed meanwhile has one.
func (p *Plugin) book(o Observation) findings.Book {
	b := findings.Book{Now: o.Wall, Blocks: p.Ledger.Stats(), Exclusions: p.Ledger.Exclusions()}
	for l := range p.Ledger.AllInSteps(leasesAtOnce) {
		b.Leases = append(b.Leases, *l)
	}
	return b
}

// twice returns what this observation and an earlier one show, with both reasons.
func (p *Plugin) twice(memory quarantines, o Observation, now []ledger.Unleased) (sure []ledger.Unleased) {
	shown := map[ledger.Unleased]findings.Seen{}
	for _, u := range now {
		seen := o.seen(u.Reason)
		u.Reason = ""
		shown[u] = seen
	}
	for u, first := range memory.Observe(shown, p.Config.Interval) {
		u.Reason = first.And(shown[u])
		sure = append(sure, u)
	}
	return sure
}
