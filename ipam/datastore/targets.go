// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import "github.com/cadastre/cadastre/operator/netresource/watermark"

// Targets are how many addresses a node wants to have. WarmIP and MinimumIP
// together are one way to say so, WarmENI and WarmPrefix are others: where one
// of the first two is set, the others do not count.
type Targets struct {
	WarmENI    int // interfaces that nothing is assigned of
	WarmIP     int // addresses that nothing is assigned of
	MinimumIP  int // addresses in all
	WarmPrefix int // prefixes that nothing is assigned of
	MaxPods    int // no more addresses are wanted than this; 0: any number
}

// ByIP is true where the targets are addresses.
func (t Targets) ByIP() bool { return t.WarmIP > 0 || t.MinimumIP > 0 }

// Want is how many addresses are missing and how many are too many, by the
// targets in addresses: both in addresses or, with prefixes, in prefixes. What
// cools is as good as assigned: it cannot be had.
//
// What is over is what can go without anything being missing afterwards.
func (t Targets) Want(s Stats, prefixes bool) (short, over int) {
	marks := watermark.AWS{WarmIP: t.WarmIP, MinimumIP: t.MinimumIP}.Marks()
	level := watermark.Level{Total: s.Total, Used: s.Assigned + s.Cooling}
	if !prefixes {
		return marks.Needed(level), marks.Excess(level)
	}
	short = watermark.Units(marks.Needed(level), prefixSize)
	return short, max(0, min(s.FreePrefixes, s.Prefixes-watermark.Units(marks.Wanted(level), prefixSize)))
}

// TooLow is true where addresses are to be had from the cloud. perENI is how
// many an interface has, without prefixes.
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

// TooHigh is true where addresses are to be given back.
func (t Targets) TooHigh(s Stats, prefixes bool) bool {
	if t.ByIP() {
		_, over := t.Want(s, prefixes)
		return over > 0
	}
	return prefixes && s.FreePrefixes > t.WarmPrefix
}
