// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// Chains of the masquerade. The base chain has one rule for each source, which sends a
// new connection to the chain of its family. That chain has one rule for each direct
// destination and the masquerade at its end.
const (
	egressBase = "egress"
	egressIPv4 = "egress-ipv4"
	egressIPv6 = "egress-ipv6"
)

// Comments of the rules, from which retrieve reads the values back.
const (
	egressSource     = "cadastre: from pods "
	egressDirect     = "cadastre: direct to "
	egressMasquerade = "cadastre: masquerade"
)

// egress makes the value "egress". The rules are in chains of our own table;
// other tables are neither read nor changed. Of several chains that rewrite the source of
// a connection, the kernel uses the first that does.
type egress struct {
	nft     *nft
	monitor *monitor
}

// kind returns the kind of the value. Its plan is the rules.
func (e *egress) kind() southbound.Kind[[]nftRule] {
	return southbound.Kind[[]nftRule]{
		Name:   "linux egress",
		Prefix: kv.SinkEgress,
		Read: func(_ string, m proto.Message) ([]nftRule, error) {
			wanted, err := message[*kv.Egress](m)
			if err != nil {
				return nil, err
			}
			return egressRules(wanted)
		},
		Create:   e.create,
		Delete:   e.remove,
		Retrieve: e.retrieve,
		Watch:    e.watch,
	}
}

// egressChains returns the chains in which the rules are.
func egressChains() []*nftables.Chain {
	table := &nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet}
	accept := nftables.ChainPolicyAccept
	return []*nftables.Chain{
		{Table: table, Name: egressIPv4},
		{Table: table, Name: egressIPv6},
		{
			Table:    table,
			Name:     egressBase,
			Type:     nftables.ChainTypeNAT,
			Hooknum:  nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource,
			Policy:   &accept,
		},
	}
}

// egressRules returns the rules of a value, in their order.
func egressRules(value *kv.Egress) ([]nftRule, error) {
	sources, err := readNetworks("sources", value.GetSources())
	if err != nil {
		return nil, err
	}
	direct, err := readNetworks("direct", value.GetDirect())
	if err != nil {
		return nil, err
	}
	var rules []nftRule
	for _, p := range direct {
		exprs := append(matchPrefix(p, false), &expr.Verdict{Kind: expr.VerdictReturn})
		rules = append(rules, nftRule{egressChain(p), egressDirect + p.String(), exprs})
	}
	for _, chain := range []string{egressIPv4, egressIPv6} {
		rules = append(rules, nftRule{chain, egressMasquerade, []expr.Any{&expr.Masq{FullyRandom: true}}})
	}
	for _, p := range sources {
		exprs := append(matchFamily(p.Addr()), matchPrefix(p, true)...)
		exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictGoto, Chain: egressChain(p)})
		rules = append(rules, nftRule{egressBase, egressSource + p.String(), exprs})
	}
	return rules, nil
}

// egressChain returns the chain of a prefix's family.
func egressChain(p netip.Prefix) string {
	if p.Addr().Is6() {
		return egressIPv6
	}
	return egressIPv4
}

// create replaces all rules in one step: the kernel takes the batch as a whole or not at
// all, and no packet sees a part of it.
func (e *egress) create(_ context.Context, _ string, rules []nftRule) error {
	c, err := e.nft.conn()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if err := dropEgress(c); err != nil {
		return err
	}
	chains := egressChains()
	c.AddTable(chains[0].Table)
	byName := map[string]*nftables.Chain{}
	for _, chain := range chains {
		byName[chain.Name] = c.AddChain(chain)
	}
	for _, r := range rules {
		c.AddRule(&nftables.Rule{Table: chains[0].Table, Chain: byName[r.chain], Exprs: r.exprs, UserData: r.comment()})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write the %d rules of the masquerade to nftables: %w", len(rules), err)
	}
	return nil
}

// dropEgress adds the removal of all chains to the batch.
func dropEgress(c *nftables.Conn) error {
	present, err := nftChains(c)
	if err != nil {
		return err
	}
	var chains []*nftables.Chain
	for _, chain := range egressChains() {
		if have := present[chain.Name]; have != nil {
			chains = append(chains, have)
		}
	}
	for _, chain := range chains {
		c.FlushChain(chain)
	}
	for _, chain := range chains {
		c.DelChain(chain)
	}
	return nil
}

// remove removes the chains, and the table if it is empty then.
func (e *egress) remove(context.Context, string, southbound.Made[[]nftRule]) error {
	c, err := e.nft.conn()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	present, err := nftChains(c)
	if err != nil || len(present) == 0 {
		return err
	}
	for _, chain := range egressChains() {
		delete(present, chain.Name)
	}
	if len(present) == 0 {
		c.DelTable(egressChains()[0].Table)
	} else if err := dropEgress(c); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the masquerade from nftables: %w", err)
	}
	return nil
}

// retrieve compares each chain and each rule with those of the wanted value. If there is a
// difference, it returns what the comments of the rules say.
func (e *egress) retrieve(_ context.Context, all []southbound.Wanted[[]nftRule]) ([]controller.Value, error) {
	c, err := e.nft.conn()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	present, err := nftChains(c)
	if err != nil {
		return nil, err
	}
	rules := map[string][]*nftables.Rule{}
	same := true
	for _, chain := range egressChains() {
		have := present[chain.Name]
		if have == nil {
			same = false
			continue
		}
		same = same && sameChain(have, chain)
		if rules[chain.Name], err = c.GetRules(have.Table, have); err != nil {
			return nil, fmt.Errorf("list the rules of nftables chain %s: %w", chain.Name, err)
		}
		delete(present, chain.Name)
	}
	if len(rules) == 0 {
		return nil, nil
	}
	have := describeEgress(rules)
	for _, want := range all {
		if same && sameEgress(want.Plan, rules) {
			return []controller.Value{{Key: kv.SinkEgress, Message: want.Message}}, nil
		}
		if proto.Equal(have, want.Message) {
			have = &kv.Egress{} // the difference is one that the value does not show
		}
	}
	return []controller.Value{{Key: kv.SinkEgress, Message: have}}, nil
}

// watch calls changed when our table changes.
func (e *egress) watch(ctx context.Context, changed func(key string)) error {
	return e.monitor.follow(ctx, changed, watch{
		families: []int{unix.NETLINK_NETFILTER},
		damaged:  func(a announcement) (key string, is bool) { return kv.SinkEgress, a.table == nftTable },
		all:      kv.SinkEgress,
	})
}

// sameEgress reports whether the rules of the kernel are the wanted ones.
func sameEgress(want []nftRule, have map[string][]*nftables.Rule) bool {
	left := maps.Clone(have)
	for _, r := range want {
		if len(left[r.chain]) == 0 || !r.is(left[r.chain][0]) {
			return false
		}
		left[r.chain] = left[r.chain][1:]
	}
	for _, rules := range left {
		if len(rules) > 0 {
			return false
		}
	}
	return true
}

// describeEgress returns the value that the comments of rules name.
func describeEgress(rules map[string][]*nftables.Rule) *kv.Egress {
	value := &kv.Egress{}
	for _, chain := range slices.Sorted(maps.Keys(rules)) {
		for _, r := range rules[chain] {
			text := nftText(r)
			if p, ok := strings.CutPrefix(text, egressSource); ok {
				value.Sources = append(value.Sources, p)
			}
			if p, ok := strings.CutPrefix(text, egressDirect); ok {
				value.Direct = append(value.Direct, p)
			}
		}
	}
	return value
}

// readNetworks parses prefixes without host bits.
func readNetworks(field string, all []string) ([]netip.Prefix, error) {
	read, err := readPrefixes(field, all)
	for _, p := range read {
		if p.Masked() != p {
			err = errors.Join(err, fmt.Errorf("%s %q: want %s", field, p, p.Masked()))
		}
	}
	return read, err
}
