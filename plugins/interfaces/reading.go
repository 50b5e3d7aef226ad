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
)

// open opens the cloud, and learns the ID of this machine.
func (p *Interfaces) open(ctx context.Context) error {
	if p.cloud == nil {
		opened, err := p.deps.Open(ctx)
		if err != nil {
			return fmt.Errorf("open the cloud: %w", err)
		}
		p.cloud = opened
	}
	id, err := p.deps.Instance(ctx)
	if self, ok := p.cloud.(cloud.Self); err == nil && id == "" && ok {
		id, err = self.Self(ctx)
	}
	switch {
	case id != "" && err == nil && id == p.instance:
		return nil
	case id != "" && err == nil:
		p.replaced = p.replaced || p.instance != ""
		p.instance, p.view = id, newView()
		clear(p.toDelete)
		clear(p.failedReturns)
		clear(p.exhausted)
		if p.replaced { // saved when the store has the interfaces of this machine
			return nil
		}
		return p.saveInstance(ctx)
	case p.instance != "": // of an earlier process
		return nil
	case err != nil:
		return fmt.Errorf("find the ID of this machine: %w", err)
	}
	return errors.New("the ID of this machine is not known: set cadastre.instanceID, or Node.spec.providerID")
}

// read reads the machine from the cloud, and adopts what it has.
func (p *Interfaces) read(ctx context.Context) error {
	if err := p.open(ctx); err != nil {
		return err
	}
	began, readAt := p.deps.Uptime(), p.deps.Now()
	var s *cloud.Snapshot
	err := p.call(ctx, "read the machine", func(ctx context.Context) (err error) {
		s, err = p.cloud.ReadInstance(ctx, p.instance)
		return err
	})
	if err != nil {
		return err
	}
	if s == nil || s.Instances[p.instance] == nil {
		return fmt.Errorf("cloud %s: read machine %q: %w", p.cloud.Name(), p.instance, cloud.ErrNoInstance)
	}
	before := p.view.counts()
	p.view.read(began, s, s.Instances[p.instance])
	for f, n := range p.view.counts() {
		if n != before[f] {
			delete(p.exhausted, ledger.Family(f))
		}
	}
	p.next.reading = began + p.deps.Config.Reconcile
	missing := p.view.missing(p.machine, began)
	if p.replaced { // what this machine lacks is the other one's, and may be in use there
		missing = nil
	}
	p.unconfirmed, p.readAt = missing, readAt
	if len(missing) > 0 {
		p.next.reading = min(p.next.reading, began+confirm)
	}
	if err := p.reconcile(ctx, missing); err != nil || !p.replaced {
		return err
	}
	if err := p.saveInstance(ctx); err != nil {
		return fmt.Errorf("save the ID of this machine: %w", err)
	}
	p.replaced = false
	return nil
}

// reconcile makes the machine follow the view, in one change. unconfirmed are blocks, by
// interface, that one reading has lacked: they stay until a second one lacks them.
func (p *Interfaces) reconcile(ctx context.Context, unconfirmed map[string][]netip.Prefix) error {
	p.metrics.readings.Inc()
	p.found = true
	defer func() { p.found = false }()
	if len(p.view.machine.Interfaces) == 0 {
		return errors.New(
			"the cloud shows no interface of this machine, want at least the primary one: nothing is changed",
		)
	}
	going := len(p.returning)
	p.reviewReturning()
	late := func(at time.Duration) bool { return p.deps.Uptime()-at >= lateness } // a reading shows it
	maps.DeleteFunc(p.deleted, func(_ string, at time.Duration) bool { return late(at) })
	maps.DeleteFunc(p.removed, func(_ netip.Prefix, at time.Duration) bool { return late(at) })
	next := p.machine.clone()
	var present []*attached // with their blocks, in the order of the view
	for _, i := range p.view.machine.Interfaces {
		if _, recent := p.deleted[i.ID]; recent { // the cloud may still show it
			continue
		}
		a := next[i.ID]
		if a == nil {
			a = &attached{record: record{Interface: Interface{ID: i.ID}}, since: p.deps.Uptime()}
			next[i.ID] = a
		}
		a.lost = false
		p.describe(a)
		p.loseMissing(a, append(p.podBlocks(i), unconfirmed[i.ID]...))
		present = append(present, a)
	}
	for id, a := range next {
		if _, doubtful := unconfirmed[id]; p.view.find(id) == nil && !doubtful && !a.lost {
			a.lost = true
			p.loseMissing(a, nil)
		}
	}
	var errs []error
	for _, a := range present {
		errs = append(errs, p.addNew(next, a, p.podBlocks(p.view.find(a.Interface.ID))))
	}
	p.dropGone(next)
	if next.equal(p.machine) && len(p.returning) == going {
		p.machine = next
	} else if _, err := p.change(ctx, next, nil); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take over the interfaces of this machine: %w", err)
	}
	return nil
}

// podBlocks returns the blocks of an interface for pods, of the families that pods have, sorted.
func (p *Interfaces) podBlocks(i *cloud.Interface) (all []netip.Prefix) {
	for _, b := range i.Blocks {
		if !b.Primary && slices.Contains(p.deps.Families, ledger.FamilyOf(b.Prefix.Addr())) {
			all = append(all, b.Prefix.Masked())
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// loseMissing notes the blocks that the cloud no longer has.
func (p *Interfaces) loseMissing(a *attached, has []netip.Prefix) {
	for _, b := range a.Blocks {
		if !slices.Contains(has, b) && !a.isGone(b) {
			a.lose(b)
			p.removed[b] = p.deps.Uptime()
		}
	}
}

// addNew adds the blocks that the cloud shows and the machine lacks.
func (p *Interfaces) addNew(m machine, a *attached, shown []netip.Prefix) error {
	var errs []error
	for _, b := range shown {
		_, isReturning := p.returning[b]
		has := slices.Contains(a.Blocks, b) && !a.isGone(b)
		if _, recent := p.removed[b]; has || isReturning || recent {
			continue
		}
		errs = append(errs, m.give(a, b))
	}
	return errors.Join(errs...)
}
