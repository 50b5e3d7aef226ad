// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/cloud"
)

// Interface describes a network interface of this machine.
type Interface struct {
	ID       string `json:"id"`
	Device   int    `json:"device,omitempty"` // 0 is the primary interface
	Primary  bool   `json:"primary,omitempty"`
	Trunk    bool   `json:"trunk,omitempty"`    // carries the interfaces of pods that have their own
	EFA      bool   `json:"efa,omitempty"`      // an Elastic Fabric Adapter: never removed
	Excluded bool   `json:"excluded,omitempty"` // gives no new address; pods keep theirs
	Foreign  bool   `json:"foreign,omitempty"`  // another program has made it: never removed
}

func described(i *cloud.Interface) Interface {
	return Interface{
		ID:       i.ID,
		Device:   i.Device,
		Primary:  i.Device == 0,
		Trunk:    i.Trunk,
		EFA:      i.EFA,
		Excluded: i.Exclude,
		Foreign:  !i.Owned,
	}
}

// attached is an interface of this machine with its blocks.
type attached struct {
	record
	since time.Duration  // uptime at which this process learned of it
	gone  []netip.Prefix // blocks with addresses of pods that the cloud no longer has
	lost  bool           // the cloud no longer has the interface
}

// isGone reports whether the cloud no longer has a block.
func (a *attached) isGone(p netip.Prefix) bool { return slices.Contains(a.gone, p) }

// isUsable reports whether new addresses are allocated from a block. prefixes is the
// configured kind of blocks.
func (a *attached) isUsable(p netip.Prefix, prefixes bool) bool {
	i := a.Interface
	return !a.isGone(p) && !i.Excluded && !i.Trunk && p.IsSingleIP() != prefixes
}

// lose notes that the cloud no longer has a block.
func (a *attached) lose(p netip.Prefix) {
	if !slices.Contains(a.gone, p) {
		a.gone = append(a.gone, p)
	}
}

// add adds a block, or one that was gone and is back.
func (a *attached) add(p netip.Prefix) {
	a.gone = slices.DeleteFunc(a.gone, func(x netip.Prefix) bool { return x == p })
	if !slices.Contains(a.Blocks, p) {
		a.Blocks = append(a.Blocks, p)
		slices.SortFunc(a.Blocks, netip.Prefix.Compare)
	}
}

// remove removes blocks.
func (a *attached) remove(which func(netip.Prefix) bool) {
	a.Blocks = slices.DeleteFunc(a.Blocks, which)
	a.gone = slices.DeleteFunc(a.gone, which)
}

// machine holds the interfaces of this machine by their ID. A change is made on a clone.
type machine map[string]*attached

func (m machine) clone() machine {
	copied := machine{}
	for id, a := range m {
		one := *a
		one.Blocks, one.gone = slices.Clone(a.Blocks), slices.Clone(a.gone)
		copied[id] = &one
	}
	return copied
}

// sorted returns the interfaces by device number and ID.
func (m machine) sorted() []*attached {
	return slices.SortedFunc(maps.Values(m), func(x, y *attached) int {
		return cmp.Or(cmp.Compare(x.Interface.Device, y.Interface.Device), cmp.Compare(x.Interface.ID, y.Interface.ID))
	})
}

// of returns the interface that a block is of, nil if it is of none.
func (m machine) of(p netip.Prefix) *attached {
	for _, a := range m {
		if slices.Contains(a.Blocks, p) {
			return a
		}
	}
	return nil
}

// overlapping returns a block that overlaps p, with its interface, nil if there is none.
func (m machine) overlapping(p netip.Prefix) (*attached, netip.Prefix) {
	for _, a := range m {
		if i := slices.IndexFunc(a.Blocks, p.Overlaps); i >= 0 {
			return a, a.Blocks[i]
		}
	}
	return nil, netip.Prefix{}
}

// give adds a block to an interface, unless another block overlaps it. One that another
// interface no longer has moves.
func (m machine) give(to *attached, p netip.Prefix) error {
	other, b := m.overlapping(p)
	switch {
	case other != nil && (b != p || other != to && !other.isGone(p)):
		return fmt.Errorf("add %s to interface %q: interface %q has %s", p, to.Interface.ID, other.Interface.ID, b)
	case other != nil && other != to:
		other.remove(func(x netip.Prefix) bool { return x == p })
	}
	to.add(p)
	return nil
}

// interfaces returns the interface of each block.
func (m machine) interfaces() map[netip.Prefix]*attached {
	all := map[netip.Prefix]*attached{}
	for _, a := range m {
		for _, p := range a.Blocks {
			all[p] = a
		}
	}
	return all
}

// equal reports whether two machines have the same blocks, on interfaces of the same
// description.
func (m machine) equal(x machine) bool {
	return maps.EqualFunc(m.withBlocks(), x.withBlocks(), func(a, b *attached) bool {
		return a.equal(b.record) && a.lost == b.lost && slices.Equal(a.gone, b.gone)
	})
}

func (m machine) withBlocks() machine {
	all := maps.Clone(m)
	maps.DeleteFunc(all, func(_ string, a *attached) bool { return len(a.Blocks) == 0 })
	return all
}
