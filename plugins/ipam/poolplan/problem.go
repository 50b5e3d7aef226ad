// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// problem is one error in a pools.yaml, or in a pool.
type problem = yamldoc.Problem

// Problems holds all errors of a file or a pool. errors.As finds it in what this
// package returns.
type Problems = yamldoc.Problems

// problems collects the errors of a file or of a pool.
type problems struct{ yamldoc.Collector }

func (ps *problems) add(field, value, format string, args ...any) {
	ps.Add("", field, value, format, args...)
}

// sorted returns the problems in the order of the file's entries.
func (ps *problems) sorted() Problems {
	slices.SortStableFunc(ps.Problems, func(a, b problem) int { return cmp.Compare(entryOf(a), entryOf(b)) })
	return ps.Problems
}

// entryOf returns the number of the file's entry that the problem is in, -1 for none.
func entryOf(p problem) int {
	n := -1
	_, _ = fmt.Sscanf(p.Field, "pools[%d]", &n) // n stays if it does not match
	return n
}

func (ps *problems) err() error {
	ps.sorted()
	return ps.Err()
}
