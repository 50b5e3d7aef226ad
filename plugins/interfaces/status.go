// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Status describes the interfaces and the cloud.
type Status struct {
	Cloud         string // its name; "": not opened yet
	Instance      string
	Interfaces    int
	MaxInterfaces int // 0: not known yet
	PerInterface  [2]int
	Families      []FamilyStatus
	Returning     int      // blocks on their way back to the cloud
	Lost          []string // interfaces with leases on addresses that the cloud no longer has
	LostBlocks    int      // of these interfaces
	BackingOff    bool     // the cloud is not asked because it had no addresses
	Unplaced      int      // imported leases whose interface is not attached
	Error         string   // of the last calls of the cloud; "": they have succeeded
	ErrorSince    time.Time
	Shortages     []string      // reasons why the cloud gives no more addresses
	Read          time.Time     // begin of the last reading; zero: none yet
	Placed        []PlacedBlock // the blocks of the ledger, by prefix
}

// PlacedBlock is a block of the ledger with its interfaces.
type PlacedBlock struct {
	Prefix    netip.Prefix
	Interface string // the one that packets of its pods take
	On        string // the one that has it in the cloud; "": none
}

// FamilyStatus holds the addresses of one family.
type FamilyStatus struct {
	Family ledger.Family
	Counts
}

// Status returns the present status. It does not wait for an event.
func (p *Interfaces) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Shortages, s.Placed = slices.Clone(s.Shortages), slices.Clone(s.Placed)
	return s
}

// Shortage returns the reason why the cloud gives no more addresses, "" if it gives
// them.
func (p *Interfaces) Shortage() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.status.Shortages)
	if p.status.Error != "" {
		all = append(all, p.status.Error)
	}
	return strings.Join(all, "; ")
}

// Notes returns what an administrator should know.
func (s Status) Notes() (notes []string) {
	if s.Error != "" {
		notes = append(notes, fmt.Sprintf("interfaces: since %s: %s", s.ErrorSince.Format(time.TimeOnly), s.Error))
	}
	for _, why := range s.Shortages {
		notes = append(notes, "interfaces: no more addresses: "+why)
	}
	for _, id := range s.Lost {
		notes = append(
			notes,
			fmt.Sprintf("interfaces: pods have addresses of interface %s that the cloud no longer has", id),
		)
	}
	if s.Unplaced > 0 {
		notes = append(
			notes,
			fmt.Sprintf("interfaces: %d imported leases are of interfaces that this machine does not have", s.Unplaced),
		)
	}
	return notes
}

// setError sets the error of the last calls.
func (p *Interfaces) setError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Error == "" && text != "" {
		p.status.ErrorSince = p.deps.Now()
	}
	p.status.Error = text
}

// setShortage sets the reason why a family gets no more addresses, "" for none.
func (p *Interfaces) setShortage(f ledger.Family, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	prefix := f.String() + ": "
	p.status.Shortages = slices.DeleteFunc(slices.Clone(p.status.Shortages), func(s string) bool {
		return strings.HasPrefix(s, prefix)
	})
	if why != "" {
		p.status.Shortages = append(p.status.Shortages, prefix+why)
	}
}

// publish sets the counts of the status.
func (p *Interfaces) publish() {
	s := Status{Instance: p.instance, Interfaces: len(p.machine), Unplaced: len(p.imported)}
	if p.cloud != nil {
		s.Cloud = p.cloud.Name()
	}
	if p.view.valid() {
		s.MaxInterfaces, s.PerInterface = p.mostInterfaces(), p.view.machine.Limits.Addresses
	}
	for _, f := range p.deps.Families {
		s.Families = append(s.Families, FamilyStatus{f, p.total(f)})
	}
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool == ipam.ReturningPool && b.State == ledger.Active {
			s.Returning++
		}
	}
	for _, a := range p.machine.sorted() {
		if s.LostBlocks += len(a.gone); len(a.gone) > 0 {
			s.Lost = append(s.Lost, a.Interface.ID)
		}
	}
	for _, until := range p.exhausted {
		s.BackingOff = s.BackingOff || p.deps.Uptime() < until
	}
	if p.view.valid() {
		s.Read, s.Placed = p.readAt, p.placed()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Error, s.ErrorSince, s.Shortages = p.status.Error, p.status.ErrorSince, p.status.Shortages
	p.status = s
}

// placed returns the blocks that the ledger uses, with their interfaces. A block that only one
// reading has lacked counts as present.
func (p *Interfaces) placed() []PlacedBlock {
	interfaces := p.machine.interfaces()
	var all []PlacedBlock
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool != ipam.PodPool || b.State != ledger.Active && b.Held+b.Quarantined == 0 {
			continue
		}
		x := PlacedBlock{Prefix: b.Block}
		if a := interfaces[b.Block]; a != nil {
			x.Interface = a.Interface.ID
		}
		for _, i := range p.view.machine.Interfaces {
			if hasBlock(i, b.Block) {
				x.On = i.ID
			}
		}
		if x.On == "" && slices.Contains(p.unconfirmed[x.Interface], b.Block) {
			x.On = x.Interface
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b PlacedBlock) int { return a.Prefix.Compare(b.Prefix) })
	return all
}
