// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
)

// short returns the number of addresses, or prefixes, of a family to ask the cloud for.
func (p *Interfaces) short(f ledger.Family) int {
	return p.targets.short(p.total(f), p.view.machine.Limits.Addresses[f])
}

// grow asks the cloud for addresses of a family until the targets are met: on the
// interfaces that are there, then on a new one. It returns the refused ones to the cloud.
func (p *Interfaces) grow(ctx context.Context, f ledger.Family) error {
	if err := p.takeBack(ctx, f); err != nil {
		return err
	}
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
	if p.deps.Uptime() < p.exhausted[f] {
		return nil
	}
	full := map[string]bool{} // interfaces and subnets
	var why error
	for n := p.short(f); n > 0; n = p.short(f) {
		if p.isUnschedulable(ctx) && p.total(f).Total > 0 {
			p.setShortage(f, "the node is unschedulable: the cloud is asked again after kubectl uncordon")
			return nil
		}
		total := p.total(f).Total
		got, err := p.assign(ctx, f, n, full)
		useless := got > 0 && err == nil && p.total(f).Total == total
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
			p.exhaust(f, refusal)
			return nil
		case got == 0 && why != nil:
			p.exhaust(f, why.Error())
			return nil
		case got == 0:
			p.setShortage(f, p.isFull(f))
			return nil
		case useless && refusal == "":
			p.exhaust(f, "the cloud has given addresses of another kind than cadastre.interfaces.prefixes asks for")
			return nil
		}
	}
	p.setShortage(f, "")
	return nil
}

// isUnschedulable reports whether the node takes no further pods, from an answer of the last
// seconds. Without an answer it takes them.
func (p *Interfaces) isUnschedulable(ctx context.Context) bool {
	now := p.deps.Uptime()
	if p.deps.Unschedulable == nil || now < p.next.node {
		return p.unschedulable
	}
	p.next.node = now + nodeEvery
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	unschedulable, err := p.deps.Unschedulable(ctx)
	p.unschedulable = unschedulable && err == nil
	return p.unschedulable
}

// exhaust notes that the cloud has no more addresses of a family. It is not asked for some
// time, unless the next reading shows another number of them: a call whose answer was lost
// may have filled the interface.
func (p *Interfaces) exhaust(f ledger.Family, why string) {
	now := p.deps.Uptime()
	p.exhausted[f] = now + exhaustedFor
	p.next.reading = min(p.next.reading, now+surprise)
	p.setShortage(f, why)
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
		return len(got), p.adopt(ctx, i.ID, got)
	}
	return 0, nil
}

// adopt adds blocks that the cloud has just given to the machine.
func (p *Interfaces) adopt(ctx context.Context, id string, got []cloud.Block) error {
	var blocks []netip.Prefix
	for _, b := range got {
		if !b.Primary {
			blocks = append(blocks, b.Prefix)
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	if err := p.add(ctx, id, blocks); err != nil {
		return fmt.Errorf("use the addresses that the cloud has given: %w", err)
	}
	for _, b := range p.refused {
		if slices.Contains(blocks, b.Prefix) {
			p.unwanted[id] = append(p.unwanted[id], b.Prefix)
		}
	}
	return nil
}

// add adds blocks to an interface of the machine, all of them or none.
func (p *Interfaces) add(ctx context.Context, id string, blocks []netip.Prefix) error {
	next := p.machine.clone()
	a := next[id]
	if a == nil {
		return fmt.Errorf("add %v to interface %q: it is not known", blocks, id)
	}
	p.describe(a)
	for _, b := range blocks {
		if err := next.give(a, b); err != nil {
			return err
		}
	}
	if _, err := p.change(ctx, next, nil); err != nil {
		return fmt.Errorf("add %v to interface %q: %w", blocks, id, err)
	}
	for _, b := range blocks {
		delete(p.removed, b)
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
	p.machine[made.ID] = &attached{record: record{Interface: described(made)}, since: p.deps.Uptime()}
	if err := p.adopt(ctx, made.ID, made.Blocks); err != nil {
		return 0, err
	}
	return max(1, len(made.Blocks)-1), nil
}
