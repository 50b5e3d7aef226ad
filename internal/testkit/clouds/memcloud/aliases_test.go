// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

func pfx(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func TestPrefixIsRoutedToOneMachine(t *testing.T) {
	g := NewWithT(t)
	c := memcloud.New(memcloud.Config{})
	c.AddMachine("a", "mem://1")
	c.AddMachine("b", "mem://2")
	ctx := t.Context()
	one, two := nodeipam.Machine{Node: "a", ProviderID: "mem://1"}, nodeipam.Machine{Node: "b"}
	g.Expect(c.AddAlias(ctx, one, pfx("10.0.0.0/24"))).To(Succeed())
	g.Expect(c.AddAlias(ctx, one, pfx("10.0.0.0/24"))).To(Succeed(), "repeated")
	g.Expect(c.AddAlias(ctx, two, pfx("10.0.0.0/16"))).To(MatchError(nodeipam.ErrRouted))
	g.Expect(c.AddAlias(ctx, two, pfx("10.1.0.0/24"))).To(Succeed(), "found by its name")
	g.Expect(c.AddAlias(ctx, nodeipam.Machine{Node: "a", ProviderID: "mem://9"}, pfx("10.2.0.0/24"))).To(MatchError(nodeipam.ErrNoMachine))
	all, err := c.Aliases(ctx, two)
	g.Expect(err).NotTo(HaveOccurred())
	all[0] = netip.Prefix{}
	g.Expect(c.Routes()).To(Equal(map[string][]netip.Prefix{"a": {pfx("10.0.0.0/24")}, "b": {pfx("10.1.0.0/24")}}))
	c.SetFault(func(call memcloud.Call) memcloud.Fault {
		if call.What == "add alias" {
			return memcloud.Tear
		}
		return memcloud.Refuse
	})
	_, err = c.Aliases(ctx, one)
	g.Expect(err).To(MatchError(memcloud.ErrInjected))
	g.Expect(c.AddAlias(ctx, one, pfx("10.3.0.0/24"))).To(MatchError(memcloud.ErrInjected))
	g.Expect(slices.Contains(c.Routes()["a"], pfx("10.3.0.0/24"))).To(BeTrue(), "the alias was added, only the answer was lost")
	c.SetFault(nil)
	dead, cancel := context.WithCancel(ctx)
	cancel()
	g.Expect(c.AddAlias(dead, one, pfx("10.4.0.0/24"))).To(MatchError(context.Canceled))
	c.Terminate("a")
	g.Expect(c.AddAlias(ctx, two, pfx("10.0.0.0/24"))).To(Succeed())
}
