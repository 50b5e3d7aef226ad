// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// Keys of the records.
const (
	interfaceRecord = "interface/" // and the ID: a record
	instanceRecord  = "instance"   // the ID of the machine
	importRecord    = "import"     // the imported leases that are not claimed yet
)

// record holds an interface with its blocks, to serve pods without the cloud. It is
// written before the ledger has the blocks. A block that the ledger does not have counts
// for nothing.
type record struct {
	Interface Interface      `json:"interface"`
	MAC       string         `json:"mac,omitempty"`
	Ranges    []cloud.Range  `json:"ranges,omitempty"`
	VPC       []netip.Prefix `json:"vpc,omitempty"`
	Blocks    []netip.Prefix `json:"blocks,omitempty"` // sorted
}

func (r record) uplink() nodeset.Uplink {
	return nodeset.Uplink{
		Interface: r.Interface.ID,
		MAC:       r.MAC,
		Device:    r.Interface.Device,
		Ranges:    r.Ranges,
		VPCCIDRs:  r.VPC,
	}
}

func (r record) equal(x record) bool {
	return r.Interface == x.Interface && r.uplink().Equal(x.uplink()) && slices.Equal(r.Blocks, x.Blocks)
}

// load reads the records, and at the first start the checkpoint to import.
func (p *Interfaces) load(ctx context.Context) error {
	known := false
	err := p.deps.Records.Load(ctx, func(key string, value []byte) error {
		id, isInterface := strings.CutPrefix(key, interfaceRecord)
		switch {
		case key == instanceRecord:
			p.instance = string(value)
		case key == importRecord:
			known = true
			return json.Unmarshal(value, &p.imported)
		case isInterface:
			var r record
			if err := json.Unmarshal(value, &r); err != nil {
				return fmt.Errorf("record of interface %q: %w", id, err)
			}
			p.stored[id] = r
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !known {
		if err := p.importCheckpoint(ctx); err != nil {
			return fmt.Errorf("import cadastre.interfaces.checkpoint %q: %w", p.deps.Config.Checkpoint, err)
		}
	}
	p.attach()
	return p.forgetClaimed(ctx)
}

// attach makes the interfaces of the records those of the machine, with those of their
// blocks that the ledger has.
func (p *Interfaces) attach() {
	have := map[netip.Prefix]ledger.BlockState{}
	for _, b := range p.deps.Ledger.Stats() {
		switch {
		case b.Pool == ipam.ReturningPool && b.State == ledger.Active:
			p.returning[b.Block] = returning{}
		case b.Pool == ipam.PodPool && (b.State == ledger.Active || b.Held+b.Quarantined > 0):
			have[b.Block] = b.State
		}
	}
	for id, r := range p.stored {
		a := &attached{record: r, since: p.deps.Uptime()}
		a.Blocks = nil
		for _, b := range r.Blocks {
			state, has := have[b]
			if other, _ := p.machine.overlapping(b); !has || other != nil {
				continue
			}
			if a.add(
				b,
			); state == ledger.Draining &&
				a.isUsable(b, p.deps.Config.Prefixes) { // the cloud did not have it
				a.lose(b)
			}
		}
		p.machine[id] = a
	}
}

func (p *Interfaces) saveInstance(ctx context.Context) error {
	return p.deps.Records.Commit(ctx, map[string][]byte{instanceRecord: []byte(p.instance)}, nil)
}

// Known returns the interfaces and blocks of the last process.
func (p *Interfaces) Known() ipam.InterfaceState { return p.known }

func (p *Interfaces) lastKnown() ipam.InterfaceState {
	known := ipam.InterfaceState{Blocks: p.blocks(p.machine)}
	for _, id := range slices.Sorted(maps.Keys(p.stored)) {
		known.Uplinks = append(known.Uplinks, p.stored[id].uplink())
	}
	return known
}

// describe describes an interface as the last reading has it. One that the cloud no longer
// has keeps its description.
func (p *Interfaces) describe(a *attached) {
	if !p.view.valid() {
		return
	}
	i := p.view.find(a.Interface.ID)
	if i == nil {
		return
	}
	u := p.view.uplink(i)
	a.Interface, a.MAC = described(i), u.MAC
	if len(u.Ranges) > 0 { // otherwise the reading lacks its subnets: an uplink needs them
		a.Ranges, a.VPC = u.Ranges, u.VPCCIDRs
	}
}

// recordsOf returns the records of a machine: of each interface that has blocks.
func recordsOf(m machine) map[string]record {
	all := map[string]record{}
	for id, a := range m.withBlocks() {
		r := a.record
		r.Blocks = slices.Clone(r.Blocks)
		all[id] = r
	}
	return all
}

// saveBefore writes the records for a change that the ledger does not have yet: blocks
// that leave stay in them.
func (p *Interfaces) saveBefore(ctx context.Context, next map[string]record) error {
	all := maps.Clone(p.stored)
	for id, r := range next {
		r.Blocks = slices.Concat(r.Blocks, p.stored[id].Blocks)
		slices.SortFunc(r.Blocks, netip.Prefix.Compare)
		r.Blocks = slices.Compact(r.Blocks)
		all[id] = r
	}
	return p.save(ctx, all)
}

// save makes all the stored records.
func (p *Interfaces) save(ctx context.Context, all map[string]record) error {
	put, del := map[string][]byte{}, []string{}
	for id, r := range all {
		if old, ok := p.stored[id]; ok && old.equal(r) {
			continue
		}
		value, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("record of interface %q: %w", id, err)
		}
		put[interfaceRecord+id] = value
	}
	for id := range p.stored {
		if _, ok := all[id]; !ok {
			del = append(del, interfaceRecord+id)
		}
	}
	if len(put)+len(del) == 0 {
		return nil
	}
	if err := p.deps.Records.Commit(ctx, put, del); err != nil {
		return fmt.Errorf("write the records of the interfaces: %w", err)
	}
	p.stored = all
	return nil
}
