// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import "github.com/cadastre/cadastre/ipam/watermark"

// Targets holds the numbers of addresses that a node wants. If WarmIP or MinimumIP
// is set, WarmENI and WarmPrefix do not count.
type Targets struct {
	WarmENI    int // interfaces without an assigned address
	WarmIP     int // free addresses
	MinimumIP  int // addresses in total
	WarmPrefix int // prefixes without an assigned address
	MaxPods    int // the most addresses to have; 0: no limit
}

// ByIP reports whether the targets are numbers of addresses.
func (t Targets) ByIP() bool { return t.WarmIP > 0 || t.MinimumIP > 0 }

// Want returns the numbers of missing and of excess addresses by the targets in
// addresses; with prefixes, of prefixes. A cooling address counts as assigned.
// Without the excess ones nothing is missing.
func (t Targets) Want(s Stats, prefixes bool) (short, over int) {
	marks := watermark.Marks{Pre: t.WarmIP, Min: t.MinimumIP}
	level := watermark.Level{Total: s.Total, Used: s.Assigned + s.Cooling}
	if !prefixes {
		return marks.Needed(level), marks.Excess(level)
	}
	short = watermark.Units(marks.Needed(level), prefixSize)
	return short, max(0, min(s.FreePrefixes, s.Prefixes-watermark.Units(marks.Wanted(level), prefixSize)))
}

// Excess returns the number of addresses, or with prefixes of prefixes, that the node can
// return to the cloud.
func (t Targets) Excess(s Stats, prefixes bool) int {
	if prefixes && !t.ByIP() {
		return max(0, s.FreePrefixes-t.WarmPrefix)
	}
	if !t.ByIP() {
		return 0
	}
	_, over := t.Want(s, prefixes)
	return over
}

// TooLow reports whether the node needs addresses from the cloud. perENI is the
// number of addresses of an interface without prefixes.
func (t Targets) TooLow(s Stats, prefixes bool, perENI int) bool {
	if t.MaxPods > 0 && s.Total >= t.MaxPods {
		return false
	}
	if t.ByIP() {
		short, _ := t.Want(s, prefixes)
		return short > 0
	}
	warm := t.WarmENI * perENI
	if prefixes {
		warm = t.WarmPrefix * prefixSize
	}
	return s.Free() < warm || warm == 0 && s.Free() == 0
}

// Short returns the number of addresses to ask the cloud for, with prefixes of prefixes;
// 0 if the node needs none. It is at most perENI, or what MaxPods permits, if an interface
// shall be filled.
func (t Targets) Short(s Stats, prefixes bool, perENI int) int {
	if !t.TooLow(s, prefixes, perENI) {
		return 0
	}
	n := perENI
	switch {
	case t.ByIP():
		n, _ = t.Want(s, prefixes)
	case prefixes:
		n = max(1, watermark.Units(t.WarmPrefix*prefixSize-s.Free(), prefixSize))
	}
	if t.MaxPods > 0 {
		left := t.MaxPods - s.Total
		if prefixes {
			left = watermark.Units(left, prefixSize)
		}
		n = min(n, left)
	}
	return n
}

// TooHigh reports whether the node can return addresses to the cloud.
func (t Targets) TooHigh(s Stats, prefixes bool) bool {
	if t.ByIP() {
		_, over := t.Want(s, prefixes)
		return over > 0
	}
	return prefixes && s.FreePrefixes > t.WarmPrefix
}
