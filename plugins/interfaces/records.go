// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ipam/nodeset"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Keys of the records.
const (
	interfaceRecord = "interface/" // and the ID: a record
	instanceRecord  = "instance"   // the ID of the machine
	importRecord    = "import"     // the imported checkpoint
)

// record holds an interface with its blocks, to serve pods without the cloud. It is
// written before the ledger has the blocks. A block that the ledger does not have counts
// for nothing.
type record struct {
	Interface datastore.Interface `json:"interface"`
	MAC       string              `json:"mac,omitempty"`
	Ranges    []cloud.Range       `json:"ranges,omitempty"`
	VPC       []netip.Prefix      `json:"vpc,omitempty"`
	Blocks    []netip.Prefix      `json:"blocks,omitempty"`
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
	p.importing = &imported{}
	known := false
	err := p.deps.Records.Load(ctx, func(key string, value []byte) error {
		id, isInterface := strings.CutPrefix(key, interfaceRecord)
		switch {
		case key == instanceRecord:
			p.instance = string(value)
		case key == importRecord:
			known = true
			return json.Unmarshal(value, &p.importing.data)
		case isInterface:
			var r record
			if err := json.Unmarshal(value, &r); err != nil {
				return fmt.Errorf("record of interface %q: %w", id, err)
			}
			p.records[id] = r
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !known {
		if err := p.readCheckpoint(ctx); err != nil {
			return fmt.Errorf("import cadastre.interfaces.checkpoint %q: %w", p.deps.Config.Checkpoint, err)
		}
	}
	return p.forgetClaimed(ctx)
}

// readCheckpoint reads the checkpoint at the first start, and keeps its content: the
// agent reads the file only once.
func (p *Interfaces) readCheckpoint(ctx context.Context) error {
	data := datastore.CheckpointData{Version: datastore.CheckpointFormatVersion}
	if path := p.deps.Config.Checkpoint; path != "" && len(p.records) == 0 {
		err := datastore.NewJSONFile(path).Restore(&data)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		data.Allocations = datastore.PerAddress(data.Allocations)
		p.log.Info("imported the checkpoint of another program", "file", path, "leases", len(data.Allocations))
	}
	p.importing.data = data
	return p.saveImport(ctx)
}

func (p *Interfaces) saveImport(ctx context.Context) error {
	value, err := json.Marshal(p.importing.data)
	if err != nil {
		return err
	}
	return p.deps.Records.Commit(ctx, map[string][]byte{importRecord: value}, nil)
}

// forgetClaimed drops the imported leases that the ledger has claimed: a later process must
// not claim them again after their pods have ended.
func (p *Interfaces) forgetClaimed(ctx context.Context) error {
	if !p.importing.dropClaimed(p.deps.Ledger.Stats()) {
		return nil
	}
	if err := p.saveImport(ctx); err != nil {
		return fmt.Errorf("forget the imported leases that are claimed: %w", err)
	}
	return nil
}

func (p *Interfaces) saveInstance(ctx context.Context) error {
	return p.deps.Records.Commit(ctx, map[string][]byte{instanceRecord: []byte(p.instance)}, nil)
}

// attachments returns the interfaces of the records.
func (p *Interfaces) attachments() []datastore.Attachment {
	all := make([]datastore.Attachment, 0, len(p.records))
	for _, id := range slices.Sorted(maps.Keys(p.records)) {
		all = append(all, datastore.Attachment{Interface: p.records[id].Interface, Blocks: p.records[id].Blocks})
	}
	return all
}

// Known returns the interfaces and blocks of the last process.
func (p *Interfaces) Known() ipam.InterfaceState { return p.known }

func (p *Interfaces) lastKnown() ipam.InterfaceState {
	known := ipam.InterfaceState{Blocks: p.store.Known()}
	for _, id := range slices.Sorted(maps.Keys(p.records)) {
		known.Uplinks = append(known.Uplinks, p.records[id].uplink())
	}
	return known
}

// recordsOf returns the records for a grant: of each interface that has blocks. One that
// the cloud no longer has keeps its description.
func (p *Interfaces) recordsOf(g datastore.Grant) map[string]record {
	next := map[string]record{}
	for _, b := range g.Blocks {
		r, ok := next[b.Interface]
		if !ok {
			r = p.describe(b.Interface)
		}
		r.Blocks = append(r.Blocks, b.Prefix)
		next[b.Interface] = r
	}
	return next
}

func (p *Interfaces) describe(id string) record {
	if p.view.valid() {
		if i := p.view.find(id); i != nil {
			u := p.view.uplink(i)
			if len(u.Ranges) == 0 { // the reading lacks its subnets: an uplink needs them
				u.Ranges, u.VPCCIDRs = p.records[id].Ranges, p.records[id].VPC
			}
			return record{Interface: described(i), MAC: u.MAC, Ranges: u.Ranges, VPC: u.VPCCIDRs}
		}
	}
	r := p.records[id]
	r.Blocks = nil
	return r
}

// save writes the records of next, with those blocks of the present ones that leave.
func (p *Interfaces) save(ctx context.Context, next map[string]record, exact bool) error {
	put, del := map[string][]byte{}, []string{}
	for id, r := range next {
		if old, ok := p.records[id]; ok && !exact {
			for _, b := range old.Blocks {
				if !slices.Contains(r.Blocks, b) {
					r.Blocks = append(slices.Clip(r.Blocks), b)
				}
			}
		}
		if old, ok := p.records[id]; ok && old.equal(r) {
			continue
		}
		value, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("record of interface %q: %w", id, err)
		}
		put[interfaceRecord+id] = value
		next[id] = r
	}
	if exact {
		for id := range p.records {
			if _, ok := next[id]; !ok {
				del = append(del, interfaceRecord+id)
			}
		}
	}
	if len(put)+len(del) == 0 {
		return nil
	}
	if err := p.deps.Records.Commit(ctx, put, del); err != nil {
		return fmt.Errorf("write the records of the interfaces: %w", err)
	}
	maps.Copy(p.records, next)
	for _, key := range del {
		delete(p.records, strings.TrimPrefix(key, interfaceRecord))
	}
	return nil
}
