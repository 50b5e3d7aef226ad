// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// barCells is the number of cells of a bar.
const barCells = 10

// usage counts the used addresses of all.
type usage struct {
	known     bool // all is known
	used, all uint64
}

// bars draws usages.
type bars struct {
	off  bool // --no-bars
	utf8 bool // otherwise ASCII
}

// barsFor adds --no-bars to a verb. The bars are drawn if the output goes to a terminal.
func (a *app) barsFor(cmd *cobra.Command) *bars {
	b := &bars{}
	cmd.Flags().BoolVar(&b.off, "no-bars", false, "draw no bars; without a terminal there are none")
	return b
}

// draws reports whether bars are drawn, and in which characters.
func (a *app) draws(b *bars) bool {
	b.utf8 = a.utf8Locale()
	return !b.off && a.terminal(a.stdout).is
}

// text returns a bar with its counts: "##........ 12/252".
func (b *bars) text(u usage) string {
	if !u.known {
		return strconv.FormatUint(u.used, 10)
	}
	return b.draw(u) + " " + u.counts()
}

// counts returns "12/252". A number of more than 6 digits is a power of two.
func (u usage) counts() string {
	const most = 1_000_000
	if u.all < most {
		return fmt.Sprintf("%d/%d", u.used, u.all)
	}
	return fmt.Sprintf("%d/2^%d", u.used, bitsOf(u.all))
}

// bitsOf returns the power of two that is nearest above n.
func bitsOf(n uint64) int {
	bits := 0
	for ; bits < 64 && uint64(1)<<bits < n; bits++ { //nolint:revive // counts
	}
	return bits
}

// draw returns the bar. One used address fills a cell, and one free address leaves one empty.
func (b *bars) draw(u usage) string {
	full, empty := "#", "."
	if b.utf8 {
		full, empty = "█", "░"
	}
	n := 0
	switch {
	case u.all == 0 || u.used == 0:
	case u.used >= u.all:
		n = barCells
	default:
		share := float64(u.used) / float64(u.all)
		n = min(max(int(share*barCells+0.5), 1), barCells-1)
	}
	return strings.Repeat(full, n) + strings.Repeat(empty, barCells-n)
}

// usageOf returns the usage of the fullest family of the active blocks: a /64 is never full
// and would hide a full /24.
func usageOf(blocks []localapi.Block) usage {
	families := map[bool]usage{}
	for _, b := range blocks {
		prefix, err := netip.ParsePrefix(b.Block)
		if err != nil || b.State != "active" {
			continue
		}
		u := families[prefix.Addr().Is4()]
		u.used += uint64(b.Held + b.Infra + b.Cooling + b.Quarantined) //nolint:gosec // counts of addresses
		u.all = sum(u.all, b.Free)
		families[prefix.Addr().Is4()] = u
	}
	fullest := usage{}
	for _, is4 := range []bool{true, false} {
		u, has := families[is4]
		if u.all = sum(u.all, u.used); has && (!fullest.known || u.share() > fullest.share()) {
			fullest, fullest.known = u, true
		}
	}
	return fullest
}

func (u usage) share() float64 {
	if u.all == 0 {
		return 0
	}
	return float64(u.used) / float64(u.all)
}

// usageOfNode returns the usage of a node's pod subnets by its last report. It counts the
// leases of both families together, so that all is known of nodes with one family only.
func usageOfNode(n localapi.Node) usage {
	u := usage{known: len(n.PodCIDRs) > 0}
	for _, p := range n.Pools {
		if p.Pool == podPool {
			u.used += p.Leases
		}
	}
	for i, text := range n.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || i > 0 && !sameFamily(n.PodCIDRs[0], prefix) {
			return usage{used: u.used}
		}
		size := ^uint64(0)
		if bits := prefix.Addr().BitLen() - prefix.Bits(); bits < 64 {
			size = 1 << bits
		}
		u.all = sum(u.all, size)
	}
	return u
}

func sameFamily(text string, p netip.Prefix) bool {
	other, err := netip.ParsePrefix(text)
	return err == nil && other.Addr().Is4() == p.Addr().Is4()
}
