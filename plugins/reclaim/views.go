// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Outcome is the end of a reclaim.
type Outcome string

// Outcomes of reclaims.
const (
	OutcomeReclaimed Outcome = "reclaimed"
	OutcomeUndone    Outcome = "undone"
)

// Pending holds a reclaim that can be undone.
type Pending struct {
	Lease ledger.Lease // its Reason holds the evidence
	Until time.Time    // it is released then
}

// Ended holds a reclaim that has ended since the agent started.
type Ended struct {
	Leases  []ledger.Lease
	Outcome Outcome
	Reason  string
	At      time.Time
}

// Counts are the figures of the plugin since the agent started.
type Counts struct {
	Rounds      uint64
	Pending     int    // attachments, now
	Reclaimed   uint64 // attachments
	Undone      uint64
	Quarantined uint64
}

// maxEnded bounds the reclaims that Ended returns.
const maxEnded = 200

// Pending returns the reclaims that can be undone, by address.
func (p *Plugin) Pending() (all []Pending) {
	for _, l := range p.leases() {
		if l.Reclaiming() {
			all = append(all, Pending{Lease: l, Until: p.until(l)})
		}
	}
	return all
}

// Ended returns the last reclaims that have ended since the agent started, the newest
// first.
func (p *Plugin) Ended() []Ended {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.ended)
	slices.Reverse(all)
	return all
}

// Enabled reports whether the plugin reclaims and quarantines.
func (p *Plugin) Enabled() bool { return p.Config.Enabled }

// Counts returns the figures of the plugin.
func (p *Plugin) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

func (p *Plugin) end(a *Assessment, outcome Outcome, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, Ended{Leases: a.Leases, Outcome: outcome, Reason: reason, At: p.Now().UTC()})
	if len(p.ended) > maxEnded {
		p.ended = slices.Delete(p.ended, 0, len(p.ended)-maxEnded)
	}
	if outcome == OutcomeReclaimed {
		p.counts.Reclaimed++
	} else {
		p.counts.Undone++
	}
}

func (p *Plugin) countRound() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Rounds++
}

func (p *Plugin) countQuarantine() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Quarantined++
}
