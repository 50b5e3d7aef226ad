// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
)

// listing holds the flags of a verb that prints a table of objects.
type listing struct {
	noHeaders bool
	sortBy    string // the name of a column; "": in the order of the agent
	watch     bool   // go on with what changes
}

// listingFor adds the flags of a table to a verb.
func listingFor(cmd *cobra.Command) *listing {
	l := &listing{}
	cmd.Flags().BoolVar(&l.noHeaders, "no-headers", false, "print the table without its first line")
	cmd.Flags().StringVar(&l.sortBy, "sort-by", "", "sort the table by this `COLUMN`; -COLUMN: the largest first")
	cmd.Flags().BoolVarP(
		&l.watch,
		"watch",
		"w",
		false,
		"after the table print each row that changes, until it is interrupted",
	)
	completeValues(cmd, "sort-by")
	return l
}

// text prints a table whose first row names the columns.
func (l *listing) text(g columns.Rows) (string, error) {
	head, rows := g[0], slices.Clone(g[1:])
	if l.sortBy != "" {
		name, reverse := strings.CutPrefix(l.sortBy, "-")
		at := slices.IndexFunc(head, func(h string) bool { return strings.EqualFold(h, name) })
		if at < 0 {
			return "", usagef("--sort-by: there is no column %q: the columns are %s",
				name, strings.ToLower(strings.Join(head, ", ")))
		}
		slices.SortStableFunc(rows, func(x, y []string) int {
			if reverse {
				x, y = y, x
			}
			return compareCells(x[at], y[at])
		})
	}
	if !l.noHeaders {
		rows = append(columns.Rows{head}, rows...)
	}
	return rows.String(), nil
}

// printTable prints v, or for people the rows of its table.
func (a *app) printTable(v any, l *listing, rows columns.Rows) error {
	if err := l.check(a); err != nil {
		return err
	}
	if !a.forPeople() {
		return a.print(v, nil)
	}
	text, err := l.text(rows)
	if err != nil {
		return err
	}
	return a.print(v, func(bool) string { return text })
}

// check refuses the flags for an output in another form than a table.
func (l *listing) check(a *app) error {
	if (l.noHeaders || l.sortBy != "" || l.watch) && !a.forPeople() {
		return usagef("--no-headers, --sort-by and --watch are for tables: leave -o %s out, or sort with jq", a.output)
	}
	return nil
}

// compareCells compares two cells of a column: as addresses, numbers or ages where both are
// such, and as text otherwise.
func compareCells(x, y string) int {
	if a, err := netip.ParseAddr(x); err == nil {
		if b, err := netip.ParseAddr(y); err == nil {
			return a.Compare(b)
		}
	}
	if a, err := netip.ParsePrefix(x); err == nil {
		if b, err := netip.ParsePrefix(y); err == nil {
			return a.Compare(b)
		}
	}
	if a, err := strconv.ParseUint(x, 10, 64); err == nil {
		if b, err := strconv.ParseUint(y, 10, 64); err == nil {
			return cmp.Compare(a, b)
		}
	}
	if a, ok := parseAge(x); ok {
		if b, ok := parseAge(y); ok {
			return cmp.Compare(a, b)
		}
	}
	return strings.Compare(x, y)
}

// parseAge reads what age writes.
func parseAge(s string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}
