// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"math"

	"github.com/cadastre/cadastre/api/watermark"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// prefixSize is the number of addresses of a prefix in targets.
const prefixSize = 16

// Counts are the addresses for pods of one family. An address is assigned, cooling or free.
type Counts struct {
	Total        int
	Assigned     int
	Cooling      int
	Prefixes     int
	FreePrefixes int // prefixes without an assigned or cooling address
}

// Free returns the number of free addresses. Those of the other kind and of excluded
// interfaces are included.
func (c Counts) Free() int { return c.Total - c.Assigned - c.Cooling }

func (c Counts) plus(x Counts) Counts {
	return Counts{
		Total:        c.Total + x.Total,
		Assigned:     c.Assigned + x.Assigned,
		Cooling:      c.Cooling + x.Cooling,
		Prefixes:     c.Prefixes + x.Prefixes,
		FreePrefixes: c.FreePrefixes + x.FreePrefixes,
	}
}

// counts returns the counts of a family, of each interface and in total.
func (p *Interfaces) counts(f ledger.Family) (each map[*attached]Counts, total Counts) {
	each, of := map[*attached]Counts{}, p.machine.interfaces()
	for _, b := range p.deps.Ledger.Stats() {
		a := of[b.Block]
		if b.Pool != ipam.PodPool || a == nil || ledger.FamilyOf(b.Block.Addr()) != f {
			continue
		}
		used := b.Held + b.Quarantined
		c := Counts{Total: used, Assigned: used} // nothing of a drained block is free
		if b.State == ledger.Active {
			c = Counts{Total: int(min(b.Size-b.Reserved, math.MaxInt)), Assigned: used, Cooling: b.Cooling}
			if !b.Block.IsSingleIP() {
				c.Prefixes = 1
				if used+b.Cooling == 0 {
					c.FreePrefixes = 1
				}
			}
		}
		each[a] = each[a].plus(c)
		total = total.plus(c)
	}
	return each, total
}

// total returns the counts of a family.
func (p *Interfaces) total(f ledger.Family) Counts {
	_, total := p.counts(f)
	return total
}

// targets holds the numbers of addresses that the node wants of each family. If warmIPs
// or minimumIPs is set, warmInterfaces and warmPrefixes do not count.
type targets struct {
	warmInterfaces int // interfaces without an assigned address
	warmIPs        int // free addresses
	minimumIPs     int // addresses in total
	warmPrefixes   int // prefixes without an assigned address
	maxPods        int // the most addresses to have; 0: no limit
	prefixes       bool
}

// byIP reports whether the targets are numbers of addresses.
func (t targets) byIP() bool { return t.warmIPs > 0 || t.minimumIPs > 0 }

// want returns the numbers of missing and of excess addresses by the targets in
// addresses; with prefixes, of prefixes. A cooling address counts as assigned.
// Without the excess ones nothing is missing.
func (t targets) want(c Counts) (short, over int) {
	marks := watermark.Marks{Pre: t.warmIPs, Min: t.minimumIPs}
	level := watermark.Level{Total: c.Total, Used: c.Assigned + c.Cooling}
	if !t.prefixes {
		return marks.Needed(level), marks.Excess(level)
	}
	short = watermark.Units(marks.Needed(level), prefixSize)
	return short, max(0, min(c.FreePrefixes, c.Prefixes-watermark.Units(marks.Wanted(level), prefixSize)))
}

// excess returns the number of addresses, or with prefixes of prefixes, that the node can
// return to the cloud.
func (t targets) excess(c Counts) int {
	switch {
	case t.byIP():
		_, over := t.want(c)
		return over
	case t.prefixes:
		return max(0, c.FreePrefixes-t.warmPrefixes)
	}
	return 0
}

// isLow reports whether the node needs addresses. perInterface is the number of addresses
// of an interface without prefixes.
func (t targets) isLow(c Counts, perInterface int) bool {
	if t.maxPods > 0 && c.Total >= t.maxPods {
		return false
	}
	if t.byIP() {
		short, _ := t.want(c)
		return short > 0
	}
	warm := t.warmInterfaces * perInterface
	if t.prefixes {
		warm = t.warmPrefixes * prefixSize
	}
	return c.Free() < warm || warm == 0 && c.Free() == 0
}

// short returns the number of addresses to ask the cloud for, with prefixes of prefixes;
// 0 if the node needs none. It is at most perInterface, or what maxPods permits, if an
// interface shall be filled.
func (t targets) short(c Counts, perInterface int) int {
	if !t.isLow(c, perInterface) {
		return 0
	}
	n := perInterface
	switch {
	case t.byIP():
		n, _ = t.want(c)
	case t.prefixes:
		n = max(1, watermark.Units(t.warmPrefixes*prefixSize-c.Free(), prefixSize))
	}
	if t.maxPods > 0 {
		left := t.maxPods - c.Total
		if t.prefixes {
			left = watermark.Units(left, prefixSize)
		}
		n = min(n, left)
	}
	return n
}

// need returns the reason for which the addresses of an interface are needed; "": the targets
// are met without them. mine are those of the interface, total those of all.
func (t targets) need(mine, total Counts) string {
	warmIPs, minimumIPs := t.warmIPs, t.minimumIPs
	if t.prefixes {
		warmIPs = watermark.Units(warmIPs, prefixSize) * prefixSize
		minimumIPs = watermark.Units(minimumIPs, prefixSize) * prefixSize
	}
	switch {
	case mine.Assigned > 0:
		return "pods have addresses of it"
	case mine.Cooling > 0:
		return "addresses of it are cooling"
	case warmIPs > 0 && total.Free()-mine.Free() < warmIPs:
		return "too few addresses would be free"
	case minimumIPs > 0 && total.Total-mine.Total < minimumIPs:
		return "too few addresses would be left"
	case t.prefixes && total.FreePrefixes-mine.FreePrefixes < t.warmPrefixes:
		return "too few prefixes would be free"
	}
	return ""
}
