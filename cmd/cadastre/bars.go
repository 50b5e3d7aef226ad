// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/ledger/addrspace"
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
// and would hide a full /24. It counts the addresses that pods can have.
func usageOf(blocks []localapi.Block) usage {
	families := byFamily{}
	for _, b := range blocks {
		prefix, err := netip.ParsePrefix(b.Block)
		if err != nil || b.State != "active" {
			continue
		}
		families.add(prefix, usage{
			used: uint64(b.Held + b.Cooling + b.Quarantined), //nolint:gosec // counts of addresses
			all:  b.Size - b.Reserved - uint64(b.Infra),      //nolint:gosec // a count of addresses
		})
	}
	return families.fullest()
}

// usageOfNode returns the usage of a node's blocks for pods, by its last report, as usageOf does.
func usageOfNode(n localapi.Node) usage {
	families, leases := byFamily{}, uint64(0)
	for _, p := range n.Pools {
		if p.Pool != podPool {
			continue
		}
		leases += p.Leases
		for _, b := range p.Blocks {
			if prefix, err := netip.ParsePrefix(b.Block); err == nil && !b.Draining {
				families.add(prefix, usage{used: b.Leases, all: addrspace.Size(prefix) - b.Reserved})
			}
		}
	}
	if len(families) == 0 { // it reports no blocks
		return usage{used: leases}
	}
	return families.fullest()
}

// byFamily holds the usage of blocks, by whether they are IPv4.
type byFamily map[bool]usage

func (f byFamily) add(block netip.Prefix, u usage) {
	is4 := block.Addr().Is4()
	f[is4] = usage{known: true, used: f[is4].used + u.used, all: sum(f[is4].all, u.all)}
}

func (f byFamily) fullest() usage {
	v4, v6 := f[true], f[false]
	if v4.known && v4.share() >= v6.share() {
		return v4
	}
	return v6
}

func (u usage) share() float64 {
	if u.all == 0 {
		return 0
	}
	return float64(u.used) / float64(u.all)
}
