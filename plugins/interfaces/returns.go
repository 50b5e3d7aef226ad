// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// returning is a block on its way back to the cloud.
type returning struct {
	iface string         // "": the next reading tells
	done  *time.Duration // uptime at which the cloud has confirmed it; nil: it has not
}

// shrink takes excess addresses and interfaces out of the ledger, and returns them.
func (p *Interfaces) shrink(ctx context.Context) error {
	if err := p.returnUseless(ctx); err != nil {
		return err
	}
	prefixes, excess := p.deps.Config.Prefixes, true
	for _, f := range p.deps.Families {
		if err := p.returnExcess(ctx, f); err != nil {
			return fmt.Errorf("return addresses to the cloud: %w", err)
		}
		perInterface := p.view.machine.Limits.Addresses[f]
		excess = excess &&
			(p.targets.byIP() || prefixes || p.total(f).Free() >= (p.targets.warmInterfaces+1)*perInterface)
	}
	if excess {
		p.removeUnused(ctx)
	}
	return p.giveBack(ctx)
}

// returnUseless takes the unused blocks from which nothing may be allocated out of the
// ledger: of excluded interfaces and of the other kind. Blocks of a trunk interface stay, and
// those of an excluded interface that another program has made: they may be that program's.
func (p *Interfaces) returnUseless(ctx context.Context) error {
	unused := p.unused()
	for _, a := range p.machine.sorted() {
		i := a.Interface
		if a.lost || i.Trunk || i.Excluded && i.Foreign {
			continue
		}
		var useless []netip.Prefix
		for _, b := range a.Blocks {
			if unused(b) && !a.isGone(b) && !a.isUsable(b, p.deps.Config.Prefixes) {
				useless = append(useless, b)
			}
		}
		if len(useless) == 0 {
			continue
		}
		if _, err := p.takeOut(ctx, i.ID, useless); err != nil {
			return fmt.Errorf("return unused blocks of interface %q: %w", i.ID, err)
		}
	}
	return nil
}

// returnExcess takes the excess blocks of a family out of the ledger, those of the highest
// device number first.
func (p *Interfaces) returnExcess(ctx context.Context, f ledger.Family) error {
	over := p.targets.excess(p.total(f))
	unused := p.unused()
	for _, a := range slices.Backward(p.machine.sorted()) {
		var free []netip.Prefix
		for _, b := range a.Blocks {
			if unused(b) && ledger.FamilyOf(b.Addr()) == f && b.IsSingleIP() != p.deps.Config.Prefixes && !a.isGone(b) {
				free = append(free, b)
			}
		}
		free = free[max(0, len(free)-over):]
		if len(free) == 0 {
			continue
		}
		taken, err := p.takeOut(ctx, a.Interface.ID, free)
		if err != nil {
			return err
		}
		over -= len(taken)
	}
	return nil
}

// unused returns a function that reports whether a block has no address that is held,
// cooling or quarantined.
func (p *Interfaces) unused() func(netip.Prefix) bool {
	used := map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool == ipam.PodPool && b.Held+b.Cooling+b.Quarantined > 0 {
			used[b.Block] = true
		}
	}
	return func(b netip.Prefix) bool { return !used[b] }
}

// takeOut takes blocks out of the ledger for their return to the cloud. It returns those
// that were taken out; the other ones have addresses in use.
func (p *Interfaces) takeOut(ctx context.Context, id string, blocks []netip.Prefix) (taken []netip.Prefix, err error) {
	more := map[netip.Prefix]returning{}
	for _, b := range blocks {
		more[b] = returning{iface: id}
	}
	kept, err := p.change(ctx, p.machine.clone(), more)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(blocks), func(b netip.Prefix) bool { return slices.Contains(kept, b) }), nil
}

// youngest is the age below which an unused interface stays: a pod may be about to use it.
const youngest = time.Minute

// removeUnused takes the unused interface with the highest device number out of the ledger,
// without which the targets are met. warmInterfaces is checked by the caller.
func (p *Interfaces) removeUnused(ctx context.Context) {
	for _, a := range slices.Backward(p.machine.sorted()) {
		id := a.Interface.ID
		if why := p.keeps(a); why != "" {
			p.log.Debug("an interface stays", "interface", id, "because", why)
			continue
		}
		blocks := slices.Clone(a.Blocks)
		taken, err := p.takeOut(ctx, id, blocks)
		if err != nil {
			p.log.Error("an unused interface cannot be removed", "interface", id, "error", err)
			return
		}
		if len(taken) == len(blocks) { // otherwise an address was assigned meanwhile
			delete(p.machine, id)
			p.deleted[id] = p.deps.Uptime()
			p.toDelete[id] = true
			return
		}
	}
}

// keeps returns the reason for which an interface stays; "": it can be removed. The targets
// count for each family of which it has addresses: free ones of the other family do not
// replace them.
func (p *Interfaces) keeps(a *attached) string {
	i := a.Interface
	switch {
	case i.Primary:
		return "it is the primary one"
	case i.Trunk:
		return "it is the trunk"
	case i.EFA:
		return "it is an EFA device"
	case i.Foreign:
		return "another program has made it"
	case p.deps.Uptime()-a.since < youngest:
		return "it is younger than a minute"
	}
	var all Counts
	has := false
	for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
		each, total := p.counts(f)
		all = all.plus(total)
		if mine := each[a]; mine.Total > 0 {
			has = true
			if why := p.targets.need(mine, total); why != "" {
				return why
			}
		}
	}
	if !has {
		return p.targets.need(Counts{}, all)
	}
	return ""
}

// giveBack returns blocks and interfaces to the cloud that the ledger no longer has. An error
// of one does not keep the next ones from it.
func (p *Interfaces) giveBack(ctx context.Context) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.toDelete)) {
		switch {
		case p.hasBlocks(id): // the cloud has shown new ones since, which pods may have
			delete(p.toDelete, id)
		case !p.isWanted(id, p.deps.Families):
			errs = append(errs, p.deleteInterface(ctx, id))
		}
	}
	all := p.toReturn()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		blocks := slices.DeleteFunc(all[id], func(b netip.Prefix) bool {
			return p.isWanted(id, []ledger.Family{ledger.FamilyOf(b.Addr())})
		})
		if i := p.view.find(id); id != "" && i != nil && len(blocks) > 0 { // otherwise the next reading tells
			errs = append(errs, p.unassign(ctx, i, blocks))
		}
	}
	return errors.Join(errs...)
}

// toReturn returns the blocks that the cloud has not taken back yet, by interface. Those whose
// interface is not known are under "".
func (p *Interfaces) toReturn() map[string][]netip.Prefix {
	all := map[string][]netip.Prefix{}
	for b, r := range p.returning {
		if r.done == nil {
			all[r.iface] = append(all[r.iface], b)
		}
	}
	for _, list := range all {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return all
}

// returned notes that the cloud has taken blocks back.
func (p *Interfaces) returned(blocks []netip.Prefix) {
	for _, b := range blocks {
		if r, ok := p.returning[b]; ok && r.done == nil {
			now := p.deps.Uptime()
			r.done = &now
			p.returning[b] = r
		}
	}
}

// reviewReturning compares the blocks on their way back with the view. A block that the
// cloud shows for longer than a reading can be stale has to be returned again; one that it
// no longer shows is forgotten after that time.
func (p *Interfaces) reviewReturning() {
	on := map[netip.Prefix]string{}
	for _, i := range p.view.machine.Interfaces {
		for _, b := range p.podBlocks(i) {
			on[b] = i.ID
		}
	}
	for b, r := range p.returning {
		id, shown := on[b]
		over := r.done != nil && p.deps.Uptime()-*r.done >= lateness
		switch {
		case shown && over:
			p.returning[b] = returning{iface: id}
		case shown && r.iface != id:
			p.returning[b] = returning{iface: id, done: r.done}
		case !shown && r.done == nil && (r.iface == "" || p.view.find(r.iface) == nil):
			p.returned([]netip.Prefix{b})
		case !shown && over:
			delete(p.returning, b)
		}
	}
}

// hasBlocks reports whether the machine has a block of an interface.
func (p *Interfaces) hasBlocks(id string) bool {
	a := p.machine[id]
	return a != nil && len(a.Blocks) > 0
}

// isWanted reports whether an interface, from which a return has failed, stays as it is. It
// does if pods need addresses again of one of the families: takeBack then takes what the
// interface has.
func (p *Interfaces) isWanted(id string, families []ledger.Family) bool {
	_, failed := p.failedReturns[id]
	return failed && slices.ContainsFunc(families, func(f ledger.Family) bool { return p.short(f) > 0 })
}

// takeBack uses addresses of a family again that the cloud refuses to take. These are
// addresses that a reading shows which is so much younger than the last try that the try
// has no effect any more. Until then nothing goes back from that interface.
func (p *Interfaces) takeBack(ctx context.Context, f ledger.Family) error {
	for _, id := range slices.Sorted(maps.Keys(p.failedReturns)) {
		n, i := p.short(f), p.view.find(id)
		if n == 0 || i == nil || p.view.began-p.failedReturns[id] < lateness {
			continue
		}
		if p.toDelete[id] {
			delete(p.toDelete, id)
			p.next.reading = 0 // which adds the interface to the machine
			continue
		}
		var back []netip.Prefix
		for _, b := range p.toReturn()[id] {
			if len(back) < n && ledger.FamilyOf(b.Addr()) == f && hasBlock(i, b) {
				back = append(back, b)
			}
		}
		if len(back) == 0 {
			continue
		}
		if err := p.add(ctx, id, back); err != nil {
			return fmt.Errorf("use addresses again that the cloud does not take: %w", err)
		}
		p.log.Info("addresses are used again that the cloud does not take", "interface", id, "blocks", len(back))
	}
	return nil
}

// hasBlock reports whether an interface has a block for pods.
func hasBlock(i *cloud.Interface, p netip.Prefix) bool {
	return slices.ContainsFunc(i.Blocks, func(b cloud.Block) bool { return b.Prefix == p && !b.Primary })
}

// unassign returns blocks of an interface. An own address of the interface counts as returned:
// it never goes back.
func (p *Interfaces) unassign(ctx context.Context, i *cloud.Interface, blocks []netip.Prefix) error {
	var own, rest []netip.Prefix
	for _, b := range blocks {
		if slices.ContainsFunc(i.Blocks, func(x cloud.Block) bool { return x.Primary && x.Prefix == b }) {
			own = append(own, b)
		} else {
			rest = append(rest, b)
		}
	}
	p.returned(own)
	if len(rest) == 0 {
		return nil
	}
	err := p.call(ctx, "unassign addresses", func(ctx context.Context) error {
		return p.cloud.Unassign(ctx, p.instance, i.ID, rest)
	})
	if err != nil {
		p.failedReturns[i.ID] = p.deps.Uptime()
		return err
	}
	delete(p.failedReturns, i.ID)
	var gone []cloud.Block
	for _, b := range rest {
		gone = append(gone, cloud.Block{Prefix: b})
	}
	p.view.change(ownChange{at: p.deps.Uptime(), iface: i, blocks: gone, gone: true})
	p.returned(rest)
	return nil
}

func (p *Interfaces) deleteInterface(ctx context.Context, id string) error {
	err := p.call(ctx, "delete an interface", func(ctx context.Context) error {
		return p.cloud.DeleteInterface(ctx, p.instance, id)
	})
	if err != nil {
		p.failedReturns[id] = p.deps.Uptime()
		return err
	}
	p.log.Info("an unused interface was deleted", "interface", id)
	delete(p.toDelete, id)
	delete(p.failedReturns, id)
	p.view.change(ownChange{at: p.deps.Uptime(), iface: &cloud.Interface{ID: id}, gone: true})
	p.deleted[id] = p.deps.Uptime()
	for b, r := range p.returning {
		if r.iface == id {
			p.returned([]netip.Prefix{b})
		}
	}
	return nil
}

// deleteOrphans deletes what calls with a lost reply have left.
func (p *Interfaces) deleteOrphans(ctx context.Context) error {
	var gone []string
	err := p.call(ctx, "delete orphans", func(ctx context.Context) (err error) {
		gone, err = p.cloud.DeleteOrphans(ctx, p.instance, orphanAge)
		return err
	})
	if len(gone) > 0 {
		p.log.Info("interfaces without a machine were deleted", "interfaces", gone)
	}
	return err
}
