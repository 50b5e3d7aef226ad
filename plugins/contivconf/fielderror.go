// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"errors"
	"fmt"
	"strconv"
)

// FieldError is one thing that is wrong with a configuration. Parse and
// Validate report all of them at once; FieldErrors takes them apart again.
type FieldError struct {
	Rule    Rule
	Field   string // the full path of the key: "ipamConfig.podSubnetCIDR"
	Value   string // as written, or empty where there is none to show
	Problem string // what is wrong, and what would be right
}

// Error is the field, the value and the problem in one line.
func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Field + ": " + e.Problem
	}
	return e.Field + ": " + strconv.Quote(e.Value) + " " + e.Problem
}

// Rule names what a configuration broke. testdata/bad has a file for each.
type Rule string

// The rules.
const (
	RuleSyntax       Rule = "syntax"        // not YAML
	RuleDocument     Rule = "document"      // not exactly one mapping
	RuleUnknownKey   Rule = "unknown-key"   // nothing has this name
	RuleDuplicateKey Rule = "duplicate-key" // given twice, also in another case
	RuleType         Rule = "type"          // a list for a number, and so on
	RuleDuration     Rule = "duration"      // not a duration
	RuleCIDR         Rule = "cidr"          // not a network
	RuleHostBits     Rule = "host-bits"     // a network with bits behind its prefix
	RuleMapped       Rule = "ipv4-mapped"   // an IPv4 address in IPv6 clothes
	RuleSameFamily   Rule = "same-family"   // two networks of one family
	RuleFamily       Rule = "family"        // networks that disagree about the families
	RuleMissing      Rule = "missing"       // no network where one is needed
	RuleContivCIDR   Rule = "contiv-cidr"   // too small to be cut up
	RuleOneNode      Rule = "one-node"      // a one-node prefix length that leaves no room
	RuleNoRoom       Rule = "no-room"       // a shared network without room for one node
	RuleOverlap      Rule = "overlap"       // two networks share addresses
	RuleReserved     Rule = "reserved"      // a network of special purpose: loopback, link-local, multicast
	RuleCollision    Rule = "collision"     // an address that something else has
	RuleAllowOverlap Rule = "allow-overlap" // not a pair of networks
	RuleGateway      Rule = "gateway"       // not a host of the node network
	RuleNodeID       Rule = "node-id"       // a pinned ID that fits not every network
	RuleExternalIPAM Rule = "external-ipam" // useExternalIPAM against podBlocks
	RuleStaticBlocks Rule = "static-blocks" // staticPodCIDRs and podBlocks do not fit
	RuleNetResource  Rule = "net-resource"  // netResource, podBlocks and kvdb do not fit
	RuleEnum         Rule = "enum"          // not one of the allowed words
	RuleRange        Rule = "range"         // a number or duration out of range
	RuleKVDB         Rule = "kvdb"          // a store that could not be reached as described
	RuleMetrics      Rule = "metrics"       // a listener for metrics without address or TLS
	RuleREST         Rule = "rest"          // a listener without address or TLS
)

// FieldErrors is every FieldError in err, in the order in which they were reported.
func FieldErrors(err error) []*FieldError {
	switch e := err.(type) {
	case nil:
		return nil
	case *FieldError:
		return []*FieldError{e}
	case interface{ Unwrap() []error }:
		var all []*FieldError
		for _, one := range e.Unwrap() {
			all = append(all, FieldErrors(one)...)
		}
		return all
	}
	return FieldErrors(errors.Unwrap(err))
}

// problems collects what is wrong.
type problems struct {
	list    []*FieldError
	settled map[string]bool
}

func (p *problems) add(rule Rule, field, value, format string, args ...any) {
	if p.settled[field] {
		return
	}
	p.list = append(p.list, &FieldError{rule, field, shorten(value), fmt.Sprintf(format, args...)})
}

// settle makes the fields that have a problem deaf to further ones: what could
// not be read must not be reported a second time as missing.
func (p *problems) settle() {
	p.settled = map[string]bool{}
	for _, e := range p.list {
		p.settled[e.Field] = true
	}
}

// tolerate takes out what is tolerable.
func (p *problems) tolerate() (tolerated []*FieldError) {
	rest := p.list[:0:0]
	for _, e := range p.list {
		if e.Rule.tolerable() {
			tolerated = append(tolerated, e)
		} else {
			rest = append(rest, e)
		}
	}
	p.list = rest
	return tolerated
}

func (p *problems) err() error {
	errs := make([]error, len(p.list))
	for i, e := range p.list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// shorten keeps a message readable whatever the file contains.
func shorten(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}
