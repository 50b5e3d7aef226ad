// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc

import (
	"fmt"
	"strconv"
	"strings"
)

// Rule names the rule that a value breaks.
type Rule string

// The rules of this package. Callers add their own.
const (
	RuleSyntax       Rule = "syntax"        // not YAML
	RuleDocument     Rule = "document"      // not exactly one mapping
	RuleUnknownKey   Rule = "unknown-key"   // a key without a meaning
	RuleDuplicateKey Rule = "duplicate-key" // given twice, also in another case
	RuleType         Rule = "type"          // for example a list instead of a number
	RuleDuration     Rule = "duration"      // not a duration
	RuleCIDR         Rule = "cidr"          // not a network
	RuleHostBits     Rule = "host-bits"     // a network with bits behind its prefix
	RuleMapped       Rule = "ipv4-mapped"   // IPv4 written as IPv6
	RuleMissing      Rule = "missing"       // no value, but one is needed
	RuleOneNode      Rule = "one-node"      // a one-node prefix length that leaves no room
)

// wholeFile is the field of a problem that belongs to no single key.
const wholeFile = "(file)"

// Problem is one error in a file or in one of its values.
type Problem struct {
	Rule  Rule   `json:"-"`
	Field string `json:"field"`           // the full path of the key: "ipamConfig.podSubnetCIDR"
	Value string `json:"value,omitempty"` // as written; empty if there is none to show
	Text  string `json:"text"`            // what is wrong, and what would be right
}

// Error returns the field, the value and the text in one line.
func (p Problem) Error() string {
	if p.Value == "" {
		return p.Field + ": " + p.Text
	}
	return p.Field + ": " + strconv.Quote(p.Value) + " " + p.Text
}

// Problems holds all errors of a file. errors.As finds it in the errors that the
// readers of files return.
type Problems []Problem

// Error returns one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Collector collects problems. The zero Collector is empty and ready for use.
type Collector struct {
	Problems Problems

	muted    map[string]bool // fields that take no further problem
	sections []string        // sections that could not be read: likewise the fields below them
}

// Add appends a problem, unless its field is muted.
func (c *Collector) Add(rule Rule, field, value, format string, args ...any) {
	if c.isMuted(field) {
		return
	}
	c.Problems = append(c.Problems, Problem{rule, field, shorten(value), fmt.Sprintf(format, args...)})
}

func (c *Collector) isMuted(field string) bool {
	for _, section := range c.sections {
		if strings.HasPrefix(field, section+".") {
			return true
		}
	}
	return c.muted[field]
}

// Mute keeps only the problems that each field has now: a value that could not be
// read must not be reported a second time as missing.
func (c *Collector) Mute() {
	c.muted = map[string]bool{}
	for _, p := range c.Problems {
		c.muted[p.Field] = true
	}
}

// Err returns the Problems, nil if there are none.
func (c *Collector) Err() error {
	if len(c.Problems) == 0 {
		return nil
	}
	return c.Problems
}

// shorten keeps a message readable if the file contains a very long text.
func shorten(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "..."
	}
	return s
}
