// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
)

const (
	// linkPrefix begins the names of all our links.
	linkPrefix = "cad"
	// forwardComment marks our rules in the tables of iptables.
	forwardComment = "cadastre"
	forwardChain   = "FORWARD"
	filterTable    = "filter"
)

// forwardRules is the part of NodeNetwork that lets a firewall forward the packets of the
// pods. Docker sets the policy of iptables' chain FORWARD to DROP. An accept in a table of
// our own cannot override that: a packet has to pass all tables. So two rules are added at
// the end of FORWARD itself, behind all rules of Docker and of the administrator, where
// they replace nothing but the policy. They stay when Docker starts again.
//
// Without allow, the part changes nothing, and removes rules of an earlier agent that had
// it. In both cases, Notes names each firewall that drops the packets.
type forwardRules struct {
	nft    *nft
	legacy *legacyTables
	allow  bool
	log    *slog.Logger

	mu    sync.Mutex
	notes []string // of the last look
}

// firewall holds what is known of one chain FORWARD.
type firewall struct {
	program string // that shows the chain: iptables, ip6tables, iptables-legacy, nft list table inet NAME
	drops   bool   // its policy is DROP
	missing bool   // of our rules
	ours    int    // our rules
	err     error  // why the rules cannot be changed; nil: they can
	fix     func() error
	remove  func() error
}

func (f *forwardRules) read(*kv.NodeNetwork, *nodePlan) error { return nil }

func (f *forwardRules) wanted(nodePlan) bool { return f.allow }

// look reads the firewalls, and notes those that drop the packets.
func (f *forwardRules) look() ([]firewall, error) {
	all, err := f.nftFirewalls()
	if err != nil && !lacksNFT(err) {
		return nil, err
	}
	legacy, err := f.legacy.firewalls()
	if err != nil {
		return nil, err
	}
	return append(all, legacy...), nil
}

// lacksNFT reports whether a request failed because the kernel has no nftables.
func lacksNFT(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// Notes returns one sentence for each firewall that drops the pods' packets, with the
// command that changes it. Any goroutine may call it.
func (f *forwardRules) Notes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.notes)
}

// note records the sentences, and logs those that are new.
func (f *forwardRules) note(all []firewall) {
	var notes []string
	for _, w := range all {
		if w.drops && w.missing {
			notes = append(notes, w.note(f.allow))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range notes {
		if !slices.Contains(f.notes, n) {
			f.log.Warn("a firewall drops packets of pods", "problem", n)
		}
	}
	f.notes = notes
}

// note returns the sentence about a firewall that drops the packets.
func (w firewall) note(allow bool) string {
	commands := fmt.Sprintf(
		"%[1]s -A FORWARD -i %[2]s+ -j ACCEPT && %[1]s -A FORWARD -o %[2]s+ -j ACCEPT",
		w.program,
		linkPrefix,
	)
	if table, ok := strings.CutPrefix(w.program, nftList); ok {
		commands = fmt.Sprintf(
			`nft add rule %[1]s iifname "%[2]s*" accept && nft add rule %[1]s oifname "%[2]s*" accept`,
			table,
			linkPrefix,
		)
		return fmt.Sprintf(
			"the policy of chain %s of nftables is drop, so packets of pods are dropped: run %s",
			table,
			commands,
		)
	}
	text := fmt.Sprintf(
		"the policy of chain FORWARD of %s is DROP (Docker sets it), so packets of pods are dropped",
		w.program,
	)
	if allow && w.err != nil {
		return fmt.Sprintf("%s, and cadastre.allowForward could not add rules: %v: run %s", text, w.err, commands)
	}
	return fmt.Sprintf("%s: set cadastre.allowForward: true, or run %s", text, commands)
}

// create adds the rules to each chain that lacks them. A chain that cannot be changed is
// only noted: the packets of other families and nodes pass.
func (f *forwardRules) create(nodePlan) error {
	all, err := f.look()
	if err != nil {
		return err
	}
	for i, w := range all {
		if !w.missing || w.fix == nil {
			continue
		}
		if err := w.fix(); err != nil {
			all[i].err = err
			continue
		}
		all[i].missing = false
	}
	f.note(all)
	return nil
}

func (f *forwardRules) replaces(nodePlan) bool { return false }

// remove removes the rules.
func (f *forwardRules) remove() error {
	all, err := f.look()
	if err != nil {
		return err
	}
	for i, w := range all {
		if w.ours == 0 {
			continue
		}
		err = errors.Join(err, w.remove())
		all[i].missing = true
	}
	f.note(all)
	return err
}

// retrieve reports the part as complete if no chain lacks the rules.
func (f *forwardRules) retrieve(_ *kv.NodeNetwork, plan nodePlan) (partState, error) {
	all, err := f.look()
	if err != nil {
		return partAbsent, err
	}
	f.note(all)
	ours, missing := false, false
	for _, w := range all {
		ours = ours || w.ours > 0
		missing = missing || w.missing && w.fix != nil
	}
	switch {
	case plan.value == nil && !ours:
		return partAbsent, nil
	case f.allow && !missing:
		return partComplete, nil
	case ours || f.allow:
		return partDifferent, nil
	}
	return partAbsent, nil
}

// nftList begins the program of a chain that is not one of iptables.
const nftList = "nft list chain "

// nftFirewalls returns the chains of nftables that see forwarded packets: those of
// iptables, and of others those that drop them.
func (f *forwardRules) nftFirewalls() ([]firewall, error) {
	c, err := f.nft.conn()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	var all []firewall
	for _, family := range []struct {
		family        nftables.TableFamily
		name, program string
	}{
		{nftables.TableFamilyIPv4, "ip", "iptables"},
		{nftables.TableFamilyIPv6, "ip6", "ip6tables"},
		{nftables.TableFamilyINet, "inet", ""},
	} {
		chains, err := c.ListChainsOfTableFamily(family.family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains of family %s: %w", family.name, err)
		}
		for _, chain := range chains {
			if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward {
				continue
			}
			chain.Table.Family = family.family
			drops := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
			if family.program != "" && chain.Table.Name == filterTable && chain.Name == forwardChain {
				w, err := f.nftFirewall(c, chain, family.program)
				if err != nil {
					return nil, err
				}
				w.drops = drops
				all = append(all, w)
				continue
			}
			if drops && !acceptsLinks(c, chain) {
				place := fmt.Sprintf("%s%s %s %s", nftList, family.name, chain.Table.Name, chain.Name)
				all = append(all, firewall{program: place, drops: true, missing: true})
			}
		}
	}
	return all, nil
}

// forwardExprs returns the two rules in the form in which iptables writes them, so that it
// can show them.
func forwardExprs() [][]expr.Any {
	var rules [][]expr.Any
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		rules = append(
			rules,
			append(matchLinks(key, linkPrefix), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}),
		)
	}
	return rules
}

// forwards returns the rules of forwardExprs that a chain has, by their index there.
func forwards(rules []*nftables.Rule) map[int]*nftables.Rule {
	found := map[int]*nftables.Rule{}
	for _, r := range rules {
		if len(r.Exprs) < 3 {
			continue
		}
		meta, isMeta := r.Exprs[0].(*expr.Meta)
		names, isCmp := r.Exprs[1].(*expr.Cmp)
		verdict, isVerdict := r.Exprs[len(r.Exprs)-1].(*expr.Verdict)
		if !isMeta || !isCmp || !isVerdict || verdict.Kind != expr.VerdictAccept || string(names.Data) != linkPrefix {
			continue
		}
		if slices.ContainsFunc(r.Exprs[2:len(r.Exprs)-1], narrows) {
			continue
		}
		switch meta.Key {
		case expr.MetaKeyIIFNAME:
			found[0] = r
		case expr.MetaKeyOIFNAME:
			found[1] = r
		}
	}
	return found
}

// narrows reports whether an expression may exclude packets.
func narrows(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Counter:
		return false
	case *expr.Match:
		return e.Name != "comment"
	}
	return true
}

// acceptsLinks reports whether the administrator has added the rules to a chain.
func acceptsLinks(c *nftables.Conn, chain *nftables.Chain) bool {
	rules, err := c.GetRules(chain.Table, chain)
	return err == nil && len(forwards(rules)) == len(forwardExprs())
}

// nftFirewall reads chain FORWARD of iptables in nftables.
func (f *forwardRules) nftFirewall(c *nftables.Conn, chain *nftables.Chain, program string) (firewall, error) {
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return firewall{}, fmt.Errorf("list the rules of chain FORWARD of %s: %w", program, err)
	}
	present := forwards(rules)
	w := firewall{program: program, missing: len(present) < len(forwardExprs())}
	var ours []*nftables.Rule
	for _, r := range rules {
		if nftText(r) == forwardComment {
			ours = append(ours, r)
		}
	}
	w.ours = len(ours)
	w.fix = func() error {
		for i, exprs := range forwardExprs() {
			if present[i] == nil {
				c.AddRule(&nftables.Rule{
					Table:    chain.Table,
					Chain:    chain,
					Exprs:    exprs,
					UserData: nftRule{text: forwardComment}.comment(),
				})
			}
		}
		return c.Flush()
	}
	w.remove = func() error {
		for _, r := range ours {
			r.Table, r.Chain = chain.Table, chain
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("remove our rules from chain FORWARD of %s: %w", program, err)
		}
		return nil
	}
	return w, nil
}
