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

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
)

// short returns the number of addresses, or prefixes, of a family to ask the cloud for.
func (p *Interfaces) short(f ledger.Family) int {
	prefixes := p.deps.Config.Prefixes
	return p.targets.Short(p.store.GetIPStats(f), prefixes, p.view.machine.Limits.Addresses[f])
}

// mostUnwanted bounds the refused blocks that one growth accepts from the cloud: a refused
// block is kept until the growth ends, so that the cloud gives other ones.
const mostUnwanted = 16

// grow asks the cloud for addresses of a family until the targets are met: on the
// interfaces that are there, then on a new one. It returns the refused ones to the cloud.
func (p *Interfaces) grow(ctx context.Context, f ledger.Family) error {
	err := p.ask(ctx, f)
	if back := p.returnUnwanted(ctx); err == nil {
		err = back
	}
	return err
}

func (p *Interfaces) ask(ctx context.Context, f ledger.Family) error {
	if p.short(f) == 0 {
		p.setShortage(f, "")
		return nil
	}
	if p.store.BackingOff() {
		return nil
	}
	full := map[string]bool{} // interfaces and subnets
	var why error
	for n := p.short(f); n > 0; n = p.short(f) {
		total := p.store.GetIPStats(f).Total
		got, err := p.assign(ctx, f, n, full)
		useless := got > 0 && err == nil && p.store.GetIPStats(f).Total == total
		refusal := p.refusal(f)
		if err == nil && got == 0 && refusal == "" {
			got, err = p.create(ctx, f, n, full)
		}
		switch {
		case errors.Is(err, cloud.ErrFull):
			why = err // another interface or subnet may have room
		case err != nil:
			return err
		case refusal != "" && (got == 0 || p.countUnwanted() >= mostUnwanted):
			p.store.Exhausted()
			p.setShortage(f, refusal)
			return nil
		case got == 0 && why != nil:
			p.store.Exhausted()
			p.setShortage(f, why.Error())
			return nil
		case got == 0:
			p.setShortage(f, p.isFull(f))
			return nil
		case useless && refusal == "":
			p.store.Exhausted()
			p.setShortage(f, "the cloud has given addresses of another kind than cadastre.interfaces.prefixes asks for")
			return nil
		}
	}
	p.setShortage(f, "")
	return nil
}

// refusal describes a refused block of a family that the cloud has just given, "" for none.
func (p *Interfaces) refusal(f ledger.Family) string {
	for _, id := range slices.Sorted(maps.Keys(p.unwanted)) {
		for _, b := range p.refused {
			if slices.Contains(p.unwanted[id], b.Prefix) && ledger.FamilyOf(b.Prefix.Addr()) == f {
				return "the cloud gives addresses that pods cannot have: " + b.String()
			}
		}
	}
	return ""
}

func (p *Interfaces) countUnwanted() (n int) {
	for _, blocks := range p.unwanted {
		n += len(blocks)
	}
	return n
}

// returnUnwanted returns the refused blocks that the cloud has given. The ledger has never
// had them. If the cloud does not take them back, they stay, and the node reports them.
func (p *Interfaces) returnUnwanted(ctx context.Context) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.unwanted)) {
		if i := p.view.find(id); i != nil {
			err := p.unassign(ctx, i, p.unwanted[id])
			switch {
			case errors.Is(err, cloud.ErrThrottled):
				errs = append(errs, err)
			case err != nil:
				p.log.Warn("addresses that pods cannot have stay on their interface", "error", err)
			default:
				errs = append(errs, p.forget(id, p.unwanted[id]))
			}
		}
	}
	clear(p.unwanted)
	return errors.Join(errs...)
}

// forget removes blocks that the cloud no longer has from the store.
func (p *Interfaces) forget(id string, blocks []netip.Prefix) error {
	for _, b := range blocks {
		if err := p.store.Remove(id, b, true); err != nil {
			return fmt.Errorf("forget addresses that pods cannot have: %w", err)
		}
	}
	return nil
}

// isFull describes a machine that can have no more addresses.
func (p *Interfaces) isFull(f ledger.Family) string {
	limits, has := p.view.machine.Limits, len(p.view.machine.Interfaces)
	if has < p.mostInterfaces() {
		return fmt.Sprintf(
			"no subnet that the configuration selects in zone %q has a free %s address for a new interface",
			p.view.machine.Zone,
			f,
		)
	}
	return fmt.Sprintf(
		"the machine is full: it has %d of %d interfaces, each of them with at most %d for pods of family %s",
		has,
		p.mostInterfaces(),
		limits.Addresses[f],
		f,
	)
}

// mostInterfaces returns the number of interfaces that the machine may have.
func (p *Interfaces) mostInterfaces() int {
	most := p.view.machine.Limits.Interfaces
	if limit := p.deps.Config.MaxInterfaces; limit > 0 {
		most = min(most, limit)
	}
	return most
}

func (p *Interfaces) want(f ledger.Family, n int) cloud.Want {
	return cloud.Want{Count: n, IPv6: f == ledger.IPv6, Prefixes: p.deps.Config.Prefixes}
}

// assign asks for up to n addresses on the first interface with room.
func (p *Interfaces) assign(ctx context.Context, f ledger.Family, n int, full map[string]bool) (int, error) {
	for _, i := range p.view.machine.Interfaces {
		room := p.view.room(i, f)
		if i.Trunk || i.Exclude || full[i.ID] || p.toDelete[i.ID] || room == 0 {
			continue
		}
		var got []cloud.Block
		err := p.call(ctx, "assign addresses", func(ctx context.Context) (err error) {
			got, err = p.cloud.Assign(ctx, p.instance, i.ID, p.want(f, min(n, room)))
			return err
		})
		if err != nil || len(got) == 0 {
			full[i.ID] = true
			if err == nil {
				err = fmt.Errorf("assign addresses to interface %s: the cloud has added none: %w", i.ID, cloud.ErrFull)
			}
			return 0, err
		}
		p.view.change(ownChange{at: p.deps.Uptime(), iface: i, blocks: got})
		return len(got), p.adopt(i.ID, got)
	}
	return 0, nil
}

// adopt adds blocks that the cloud has just given to the store.
func (p *Interfaces) adopt(id string, got []cloud.Block) error {
	var blocks []netip.Prefix
	for _, b := range got {
		if !b.Primary {
			blocks = append(blocks, b.Prefix)
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	if err := p.store.AddBlocks(id, blocks); err != nil {
		return fmt.Errorf("use the addresses that the cloud has given: %w", err)
	}
	for _, b := range p.refused {
		if slices.Contains(blocks, b.Prefix) {
			p.unwanted[id] = append(p.unwanted[id], b.Prefix)
		}
	}
	return nil
}

// create makes an interface with up to n addresses, if the machine may have one more.
func (p *Interfaces) create(ctx context.Context, f ledger.Family, n int, full map[string]bool) (int, error) {
	limits := p.view.machine.Limits
	subnet := p.view.subnetFor(f, full)
	if len(p.view.machine.Interfaces) >= p.mostInterfaces() || subnet == "" || limits.Addresses[f] == 0 {
		return 0, nil
	}
	var made *cloud.Interface
	err := p.call(ctx, "create an interface", func(ctx context.Context) (err error) {
		made, err = p.cloud.CreateInterface(ctx, p.instance, cloud.NewInterface{
			Subnet: subnet,
			Want:   p.want(f, min(n, limits.Addresses[f])),
			Device: p.view.device(),
		})
		return err
	})
	if err != nil {
		full[subnet] = true
		return 0, err
	}
	p.log.Info("an interface was created", "interface", made.ID, "subnet", subnet, "blocks", len(made.Blocks))
	p.view.change(ownChange{at: p.deps.Uptime(), iface: made})
	if err := p.store.AddInterface(described(made)); err != nil {
		return 0, fmt.Errorf("use the interface that the cloud has made: %w", err)
	}
	if err := p.adopt(made.ID, made.Blocks); err != nil {
		return 0, err
	}
	return max(1, len(made.Blocks)-1), nil
}

// shrink takes excess addresses and interfaces out of the ledger, and returns them.
func (p *Interfaces) shrink(ctx context.Context) error {
	if err := p.store.ReturnUnused(); err != nil {
		return err
	}
	prefixes, excess := p.deps.Config.Prefixes, true
	for _, f := range p.deps.Families {
		if _, err := p.store.Shrink(p.targets, f); err != nil {
			return fmt.Errorf("return addresses to the cloud: %w", err)
		}
		free := p.store.GetIPStats(f).Free()
		perENI := p.view.machine.Limits.Addresses[f]
		excess = excess && (p.targets.ByIP() || prefixes || free >= (p.targets.WarmENI+1)*perENI)
	}
	if excess {
		if id := p.store.RemoveUnusedENI(p.targets); id != "" {
			p.toDelete[id] = true
		}
	}
	return p.giveBack(ctx)
}

// giveBack returns blocks and interfaces to the cloud that the ledger no longer has. An error
// of one does not keep the next ones from it.
func (p *Interfaces) giveBack(ctx context.Context) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.toDelete)) {
		errs = append(errs, p.deleteInterface(ctx, id))
	}
	returning := p.store.Returning()
	for _, id := range slices.Sorted(maps.Keys(returning)) {
		if i := p.view.find(id); id != "" && i != nil { // otherwise the next reading tells
			errs = append(errs, p.unassign(ctx, i, returning[id]))
		}
	}
	return errors.Join(errs...)
}

// unassign returns blocks of an interface.
func (p *Interfaces) unassign(ctx context.Context, i *cloud.Interface, blocks []netip.Prefix) error {
	blocks = slices.DeleteFunc(blocks, func(b netip.Prefix) bool {
		return slices.ContainsFunc(i.Blocks, func(x cloud.Block) bool { return x.Primary && x.Prefix == b })
	})
	err := p.call(ctx, "unassign addresses", func(ctx context.Context) error {
		return p.cloud.Unassign(ctx, p.instance, i.ID, blocks)
	})
	if err != nil {
		return err
	}
	var gone []cloud.Block
	for _, b := range blocks {
		gone = append(gone, cloud.Block{Prefix: b})
	}
	p.view.change(ownChange{at: p.deps.Uptime(), iface: i, blocks: gone, gone: true})
	p.store.Returned(blocks)
	return nil
}

func (p *Interfaces) deleteInterface(ctx context.Context, id string) error {
	err := p.call(ctx, "delete an interface", func(ctx context.Context) error {
		return p.cloud.DeleteInterface(ctx, p.instance, id)
	})
	if err != nil {
		return err
	}
	p.log.Info("an unused interface was deleted", "interface", id)
	delete(p.toDelete, id)
	p.view.change(ownChange{at: p.deps.Uptime(), iface: &cloud.Interface{ID: id}, gone: true})
	p.store.Deleted(id)
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
