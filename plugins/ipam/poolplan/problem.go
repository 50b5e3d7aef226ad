// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong with a pools.yaml, or with a pool.
type Problem struct {
	Field string `json:"field"`           // the full path of the key: "pools[1].ranges[0].cidr"
	Value string `json:"value,omitempty"` // as written, or empty where there is none to show
	Text  string `json:"text"`            // what is wrong, and what would be right
}

// Error is the field, the value and the text in one line.
func (p Problem) Error() string {
	if p.Value == "" {
		return p.Field + ": " + p.Text
	}
	return p.Field + ": " + strconv.Quote(p.Value) + " " + p.Text
}

// Problems is everything that is wrong; as an error it has a line for each.
// errors.As finds it in what this package returns.
type Problems []Problem

// Error is all of them, a line each.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// problems collects what is wrong.
type problems struct {
	list    Problems
	settled map[string]bool
}

func (ps *problems) add(field, value, format string, args ...any) {
	if ps.settled[field] {
		return
	}
	ps.list = append(ps.list, Problem{field, shorten(value), fmt.Sprintf(format, args...)})
}

// settle makes the fields that have a problem deaf to further ones: what could
// not be read must not be reported a second time as missing.
func (ps *problems) settle() {
	if ps.settled == nil {
		ps.settled = map[string]bool{}
	}
	for _, p := range ps.list {
		ps.settled[p.Field] = true
	}
}

// inOrder are the problems in the order of the file's entries.
func (ps *problems) inOrder() Problems {
	slices.SortStableFunc(ps.list, func(a, b Problem) int { return cmp.Compare(a.entry(), b.entry()) })
	return ps.list
}

// entry is the number of the file's entry that the problem is of, -1 for none.
func (p Problem) entry() int {
	n := -1
	_, _ = fmt.Sscanf(p.Field, poolsKey+"[%d]", &n) // n stays where it does not match
	return n
}

func (ps *problems) err() error {
	if len(ps.list) == 0 {
		return nil
	}
	return ps.inOrder()
}

// shorten keeps a message readable whatever the file contains.
func shorten(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}
