// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// A bar is empty only if nothing is used, and full only if nothing is free.
func TestBars(t *testing.T) {
	for want, u := range map[string]usage{
		".......... 0/254":   {known: true, all: 254},
		"#......... 1/254":   {known: true, used: 1, all: 254},
		"#####..... 127/254": {known: true, used: 127, all: 254},
		"#########. 253/254": {known: true, used: 253, all: 254},
		"########## 254/254": {known: true, used: 254, all: 254},
		"########## 300/254": {known: true, used: 300, all: 254},
		"#......... 3/2^64":  {known: true, used: 3, all: 1<<64 - 1},
		"#......... 3/2^20":  {known: true, used: 3, all: 1 << 20},
		"17":                 {used: 17, all: 254},
	} {
		NewWithT(t).Expect((&bars{}).text(u)).To(Equal(want))
	}
	NewWithT(t).Expect((&bars{utf8: true}).text(usage{known: true, used: 1, all: 2})).To(Equal("█████░░░░░ 1/2"))
}

// The fullest family counts, and active blocks only.
func TestUsageOfBlocks(t *testing.T) {
	g := NewWithT(t)
	g.Expect(usageOf(somePools()[0].Blocks)).To(Equal(usage{known: true, used: 12, all: 252}))
	g.Expect(usageOf([]localapi.Block{
		{Block: "10.1.5.0/24", State: "active", Size: 256, Reserved: 2, Infra: 2, Held: 1, Cooling: 3, Quarantined: 4, Free: 244},
		{Block: "10.1.6.0/24", State: "draining", Size: 256, Held: 50},
		{Block: "10.1.7.0/24", State: "active", Size: 256, Reserved: 2, Free: 254},
	})).To(Equal(usage{known: true, used: 8, all: 506}))
	g.Expect(usageOf(nil)).To(Equal(usage{}))
}

// A node's bar and its pool's have one denominator, from the ledger or from the last report.
func TestUsageOfNodes(t *testing.T) {
	of := func(blocks ...localapi.BlockUse) usage {
		return usageOfNode(localapi.Node{Pools: []localapi.PoolUse{
			{Pool: "default", Leases: 12, Blocks: blocks},
			{Pool: "blue", Leases: 5, Blocks: []localapi.BlockUse{{Block: "10.9.0.0/24", Leases: 5}}},
		}})
	}
	g := NewWithT(t)
	v4 := localapi.BlockUse{Block: "10.1.5.0/24", Leases: 10, Reserved: 4}
	v6 := localapi.BlockUse{Block: "fd00::/64", Leases: 12, Reserved: 3}
	g.Expect(of(v4, localapi.BlockUse{Block: "10.1.6.0/25", Leases: 2, Reserved: 2})).To(Equal(usage{known: true, used: 12, all: 378}))
	g.Expect(of(v4, v6)).To(Equal(usage{known: true, used: 10, all: 252}))
	g.Expect(of(v6).counts()).To(Equal("12/2^64"))
	g.Expect(of(v4, localapi.BlockUse{Block: "10.1.7.0/24", Leases: 9, Draining: true})).To(Equal(usage{known: true, used: 10, all: 252}))
	g.Expect(of()).To(Equal(usage{used: 12}))
}

// Bars need a terminal, and are ASCII unless the locale has more.
func TestListsWithBars(t *testing.T) {
	agent := newAgent(t)
	run := func(tty bool, locale string, args ...string) string {
		var out, errs bytes.Buffer
		a := newApp(strings.NewReader(""), &out, &errs, func(key string) string {
			return map[string]string{"CADASTRE_SOCKET": agent.socket, "LANG": "C.UTF-8", "LC_ALL": locale}[key]
		})
		a.now = func() time.Time { return noon() }
		a.terminal = func(io.Writer) terminal { return terminal{is: tty} }
		NewWithT(t).Expect(a.run(t.Context(), args)).To(Equal(0), errs.String())
		return out.String()
	}
	for _, c := range []struct{ verb, ascii, utf8 string }{
		{"pool", "#......... 12/252", "█░░░░░░░░░ 12/252"},
		{"node", "#......... 12/252", "█░░░░░░░░░ 12/252"},
	} {
		g := NewWithT(t)
		g.Expect(run(true, "POSIX", c.verb, "list")).To(ContainSubstring(c.ascii))
		g.Expect(run(true, "", c.verb, "list", "-o", "wide")).To(ContainSubstring(c.utf8))
		without := run(false, "", c.verb, "list")
		g.Expect(without).NotTo(ContainSubstring("USED"))
		g.Expect(run(true, "", c.verb, "list", "--no-bars")).To(Equal(without))
	}
}
