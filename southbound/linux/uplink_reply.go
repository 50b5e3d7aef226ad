// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// replies sends the replies of pods to connections that came to an address of the node back
// as the node's own packets. Such a connection is, for example, one to a host port or a
// NodePort. The replies have the node's address when they leave, and a cloud drops them on
// the link of the pod's uplink.
//
// A connection to an address of the node is marked if it enters by the link by which the main
// table leads back to its source. A packet of a pod with that mark uses the main table.
type replies struct{ nft *nft }

const (
	repliesChain = "uplink-replies"
	replyMark    = 0x80 // the bit that the AWS VPC CNI has for the same purpose
)

// replyRules returns the rules of marked packets to the main table.
func replyRules(families []byte) (all []object) {
	for _, family := range families {
		all = append(all, object{kind: replyObject, prefix: defaultRoute(family), table: unix.RT_TABLE_MAIN})
	}
	return all
}

func (r *replies) chain() *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return &nftables.Chain{
		Table:    &nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet},
		Name:     repliesChain,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityMangle, // before an address is translated
		Policy:   &accept,
	}
}

// rules returns the rules of the chain.
func (r *replies) rules() []nftRule {
	word := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	set := &expr.Bitwise{
		SourceRegister: 1,
		DestRegister:   1,
		Len:            4,
		Mask:           word(^uint32(replyMark)),
		Xor:            word(replyMark),
	}
	is := func(bits uint32) []expr.Any {
		return []expr.Any{
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: word(bits), Xor: word(0)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: word(0)},
		}
	}
	begun := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(linkPrefix)},
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
	}
	begun = append(begun, is(expr.CtStateBitNEW)...)
	begun = append(begun,
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: word(unix.RTN_LOCAL)},
		&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: word(0)},
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1},
		set,
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
	)
	answered := append(matchLinks(expr.MetaKeyIIFNAME, linkPrefix), &expr.Ct{Key: expr.CtKeyMARK, Register: 1})
	answered = append(answered, is(replyMark)...)
	answered = append(answered,
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		set,
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	)
	return []nftRule{
		{repliesChain, "cadastre: connections to the node", begun},
		{repliesChain, "cadastre: replies of pods to them", answered},
	}
}

// present reports whether the chain is there, and whether it is complete.
func (r *replies) present(c *nftables.Conn) (have *nftables.Chain, complete bool, err error) {
	all, err := nftChains(c)
	if err != nil || all[repliesChain] == nil {
		return nil, false, err
	}
	have = all[repliesChain]
	rules, err := c.GetRules(have.Table, have)
	if err != nil {
		return nil, false, fmt.Errorf("list the rules of nftables chain %s: %w", repliesChain, err)
	}
	want := r.rules()
	complete = sameChain(have, r.chain()) && len(rules) == len(want)
	for i := range min(len(rules), len(want)) {
		complete = complete && want[i].read().is(rules[i])
	}
	return have, complete, nil
}

// read returns the rule as package nftables reads it back: it does not read the register
// from which a connection's mark is set.
func (r nftRule) read() nftRule {
	r.exprs = slices.Clone(r.exprs)
	for i, x := range r.exprs {
		if ct, ok := x.(*expr.Ct); ok && ct.SourceRegister {
			r.exprs[i] = &expr.Ct{Key: ct.Key}
		}
	}
	return r
}

// change makes the chain, or removes it. A kernel without nftables has none.
func (r *replies) change(wanted bool) error {
	c, err := r.nft.conn()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	have, complete, err := r.present(c)
	switch {
	case lacksNFT(err):
		return nil
	case err != nil:
		return err
	case complete == wanted && (have != nil) == wanted:
		return nil
	}
	if have != nil {
		c.FlushChain(have)
		c.DelChain(have)
	}
	if wanted {
		chain := r.chain()
		c.AddTable(chain.Table)
		chain = c.AddChain(chain)
		for _, x := range r.rules() {
			c.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: x.exprs, UserData: x.comment()})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("change nftables chain %s: %w", repliesChain, err)
	}
	return nil
}

// complete reports whether the chain is as it has to be.
func (r *replies) complete() (bool, error) {
	c, err := r.nft.conn()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	_, is, err := r.present(c)
	if lacksNFT(err) {
		return true, nil
	}
	return is, err
}
