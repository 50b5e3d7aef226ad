// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

// render returns the section that the program writes.
func (r *report) render() string {
	var w strings.Builder
	w.WriteString("<!-- written by test/chaos/cmd/reliability: do not edit -->\n\n")
	fmt.Fprintf(
		&w,
		"Run on %s, of commit %s, in %s; %s, Linux %s, %d processors; %s. %s tests and subtests passed.\n\n",
		r.Began.UTC().Format(
			time.DateOnly,
		),
		cmp.Or(r.Commit, "unknown"),
		r.Ended.Sub(r.Began).Round(time.Second),
		r.Go,
		r.Kernel,
		r.Processors,
		cmp.Or(strings.Join(r.Settings, " "), "default sizes"),
		thousands(int64(r.passed)),
	)
	w.WriteString(
		"| attack | how often | held twice | leases lost | crashed | waited longer than stated |\n|---|--:|--:|--:|--:|--:|\n",
	)
	for _, x := range r.rows {
		w.WriteString(x.line())
	}
	w.WriteString("\n\"–\": the tests of this attack do not look at it.\n")
	r.exceptions(&w)
	r.list(&w, "Failed", func(x *row) []verdict { return x.failed }, r.others)
	r.list(&w, "Skipped, not tested", func(x *row) []verdict { return x.skipped }, nil)
	w.WriteString("\nThe commands, with `" + attack.FileEnv + "` naming the file for the counts, and `SIM_ALL=1`:\n\n")
	for _, s := range suites() {
		w.WriteString("    go " + strings.Join(quoted(s.command()), " ") + "\n")
	}
	w.WriteString("\n")
	return w.String()
}

// exceptions writes what the tests found and no promise covers.
func (r *report) exceptions(w *strings.Builder) {
	var lines []string
	for _, x := range r.rows {
		for _, reason := range slices.Sorted(maps.Keys(x.except)) {
			if n := x.except[reason]; n > 0 {
				lines = append(lines, fmt.Sprintf("- %s: %s (%s)\n", x.Kind, reason, thousands(int64(n))))
			}
		}
	}
	if len(lines) > 0 {
		w.WriteString(
			"\n**Found, and not in the table**, because nothing is promised there (how often it was seen):\n\n" + strings.Join(
				lines,
				"",
			),
		)
	}
}

// list writes the verdicts of all rows, and more, if there are any.
func (r *report) list(w *strings.Builder, title string, of func(*row) []verdict, more []verdict) {
	var lines []string
	for _, x := range r.rows {
		for _, v := range of(x) {
			lines = append(lines, fmt.Sprintf("- %s: `%s`: %s\n", x.Kind, v.test, v.said))
		}
	}
	for _, v := range more {
		lines = append(lines, fmt.Sprintf("- `%s`: %s\n", cmp.Or(v.test, "a package"), v.said))
	}
	if len(lines) > 0 {
		w.WriteString("\n**" + title + ":**\n\n" + strings.Join(lines, ""))
	}
}

// line returns the row of the table.
func (x *row) line() string {
	return fmt.Sprintf(
		"| %s | %s | %s | %s | %s | %s |\n",
		x.What,
		x.times(),
		x.cell(attack.Twice),
		x.cell(attack.Lost),
		x.cell(attack.Crashed),
		x.cell(attack.Late),
	)
}

func (x *row) times() string {
	if x.count == 0 {
		return "**not tried**"
	}
	if x.count == 1 {
		return "1 " + strings.TrimSuffix(x.Unit, "s")
	}
	return thousands(x.count) + " " + x.Unit
}

// cell says what the tests found of one promise. A test that fails does not say
// which promise was broken, so its row has no number.
func (x *row) cell(promise attack.Checks) string {
	switch {
	case x.Checks&promise == 0 || x.count == 0 && len(x.failed) == 0:
		return "–"
	case len(x.failed) > 0:
		return "**failed**"
	case promise == attack.Late:
		return "0 (" + x.Stated + ")"
	}
	return "0"
}

// thousands writes a number with a narrow space, which does not break, before
// each three digits.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

// quoted puts arguments that a shell would change between quotes.
func quoted(args []string) []string {
	all := make([]string, len(args))
	for i, a := range args {
		if strings.ContainsAny(a, "|*$ ") {
			a = "'" + a + "'"
		}
		all[i] = a
	}
	return all
}
