// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// act decides on what a round has found, and does it.
func (p *Plugin) act(ctx context.Context, o Observation) error {
	assessed := p.judge.Observe(o)
	var errs []error
	for i := range assessed {
		a := &assessed[i]
		if a.Action == Keep {
			continue
		}
		if err := p.do(ctx, a); err != nil && !errors.Is(err, ledger.ErrBusy) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, p.actOnUnleased(ctx, o))
	p.keep(assessed)
	return errors.Join(errs...)
}

// do does what was decided on an attachment.
func (p *Plugin) do(ctx context.Context, a *Assessment) error {
	l := a.Leases[0]
	sel := ledger.Selector{Key: l.Key, Generation: l.Generation, Reason: a.Reason}
	door := p.Doors[l.Purpose]
	switch {
	case door == nil:
		a.Action, a.Waits = Keep, fmt.Sprintf("leases for a %s are not reclaimed by this agent", l.Purpose)
		return nil
	case a.Action == Begin:
		err := p.Ledger.StartExpiry(ctx, sel, ledger.Expiry{Token: ledger.ReclaimToken, After: p.Config.Undo})
		if err != nil {
			return fmt.Errorf("begin the reclaim of %v: %w", addrs(a.Leases), err)
		}
		p.Log.Warn("the owner of a lease is gone: it is released unless this is undone",
			attributes(a, "undoFor", p.Config.Undo)...)
	case a.Action == Undo:
		if err := p.Ledger.StopExpiry(ctx, sel, ledger.ReclaimToken); err != nil {
			return fmt.Errorf("undo the reclaim of %v: %w", addrs(a.Leases), err)
		}
		p.end(a, OutcomeUndone, a.Reason)
		p.Log.Info("a reclaim is undone", attributes(a)...)
	case a.Action == Release:
		freed, err := door.Reclaim(ctx, l, a.Reason)
		if err != nil {
			return fmt.Errorf("reclaim %v: %w", addrs(a.Leases), err)
		}
		if freed {
			p.end(a, OutcomeReclaimed, a.Reason)
			p.Log.Warn("a lease is reclaimed", attributes(a)...)
		}
	}
	return nil
}

func addrs(leases []ledger.Lease) (all []netip.Addr) {
	for _, l := range leases {
		all = append(all, l.Addr)
	}
	return all
}

// attributes returns the attributes of a log line about an attachment.
func attributes(a *Assessment, more ...any) []any {
	return append(ledger.DecisionOn(a.Leases, a.Reason).Attributes(), more...)
}

// keep remembers the assessments of a round of all attachments that are not in use.
func (p *Plugin) keep(assessed []Assessment) {
	pending := 0
	assessed = slices.DeleteFunc(assessed, func(a Assessment) bool {
		return a.Action == Keep && a.Verdict.Conclusion == witness.Alive
	})
	for _, a := range assessed {
		if a.Action == Begin || a.Leases[0].Reclaiming() && a.Action == Keep {
			pending++
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.assessed, p.counts.Pending = assessed, pending
}

// Unlisted takes the leases of a network that its CNI GC did not list, reads a round, and
// returns for each lease what its reclaim waits for.
func (p *Plugin) Unlisted(ctx context.Context, network string, leases []ledger.Lease) (waits []string, err error) {
	p.mu.Lock()
	maps.DeleteFunc(p.unlisted, func(k ledger.Key, _ uint64) bool { return k.Network == network })
	for _, l := range leases {
		p.unlisted[l.Key] = l.Generation
	}
	p.mu.Unlock()
	if len(leases) == 0 {
		return nil, nil
	}
	if !p.Config.Enabled {
		return texts(leases, "cadastre.reclaim.enabled is false"), nil
	}
	if _, err := p.Round(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	why := map[subject]string{}
	for _, a := range p.assessed {
		why[subjectOf(a.Leases[0])] = p.waiting(a)
	}
	for _, l := range leases {
		if text, ok := why[subjectOf(l)]; ok {
			waits = append(waits, l.Addr.String()+": "+text)
		} else {
			waits = append(waits, l.Addr.String()+": it is in use")
		}
	}
	return waits, nil
}

// waiting says what the reclaim of an attachment waits for.
func (p *Plugin) waiting(a Assessment) string {
	switch a.Action {
	case Begin:
		return fmt.Sprintf("it is released in %s, unless that is undone", p.Config.Undo)
	case Release:
		return "it is released"
	case Undo:
		return a.Reason
	}
	return "it waits: " + a.Waits
}

func texts(leases []ledger.Lease, why string) (all []string) {
	for _, l := range leases {
		all = append(all, l.Addr.String()+": "+why)
	}
	return all
}

// unlistedOf returns the keys of the leases that the last GC of their network did not
// list, and forgets those whose leases are gone.
func (p *Plugin) unlistedOf(leases []ledger.Lease) map[ledger.Key]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unlisted) == 0 {
		return nil
	}
	all := map[ledger.Key]bool{}
	for _, l := range leases {
		if g, ok := p.unlisted[l.Key]; ok && g == l.Generation {
			all[l.Key] = true
		}
	}
	maps.DeleteFunc(p.unlisted, func(k ledger.Key, _ uint64) bool { return !all[k] })
	return all
}

// Claimed notes that a runtime has added an attachment again: what an earlier GC has not
// listed is in use. Any goroutine may call it.
func (p *Plugin) Claimed(k ledger.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unlisted, k)
}

// ErrNotReclaiming is returned by Undo for an address whose reclaim is not pending.
var ErrNotReclaiming = errors.New("no reclaim of it is pending")

// Undo undoes the pending reclaim of an address, in one pool or in all. The lease is
// held again, and is not reclaimed again until a witness has shown it in use.
func (p *Plugin) Undo(ctx context.Context, a netip.Addr, pool string) ([]ledger.Lease, error) {
	unlock, err := p.locked(ctx)
	if err != nil {
		return nil, fmt.Errorf("undo the reclaim of %s: %w", a, err)
	}
	defer unlock()
	var undone []ledger.Lease
	for _, l := range p.leases() {
		if l.Addr != a || pool != "" && l.Pool != pool || !l.Reclaiming() {
			continue
		}
		sel := ledger.Selector{Key: l.Key, Generation: l.Generation, Reason: undoneByHand}
		if err := p.Ledger.StopExpiry(ctx, sel, ledger.ReclaimToken); err != nil {
			return undone, fmt.Errorf("undo the reclaim of %s: %w", a, err)
		}
		p.judge.KeepUndone(l, p.Now())
		of := Assessment{Leases: p.Ledger.ByKey(l.Key)}
		if len(of.Leases) == 0 {
			of.Leases = []ledger.Lease{l}
		}
		p.end(&of, OutcomeUndone, undoneByHand+"; "+l.Reason)
		p.Log.Info("a reclaim is undone by hand", attributes(&of)...)
		undone = append(undone, of.Leases...)
	}
	if len(undone) == 0 {
		return nil, fmt.Errorf("undo the reclaim of %s: %w", a, ErrNotReclaiming)
	}
	return undone, nil
}

// Preview returns what a round would do now, and what each reclaim waits for. It reads the
// witnesses and changes nothing.
func (p *Plugin) Preview(ctx context.Context) ([]Assessment, *witness.World, error) {
	o, unlock, err := p.observe(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	return p.judge.Clone().Observe(o), o.World, nil
}

// until returns the time at which a pending lease is released, as the clock stands now.
func (p *Plugin) until(l ledger.Lease) time.Time {
	left := l.Expires - p.Uptime()
	return p.Now().Add(left).UTC()
}
