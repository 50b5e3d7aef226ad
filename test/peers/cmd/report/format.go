// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// format writes a number.
type format func(float64) string

// plain is a number with about three digits that count, the thousands apart.
func plain(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:] // a narrow space that does not break
	}
	return digits
}

// scaled divides first: 1e3 writes ns as µs.
func scaled(by float64) format { return func(v float64) string { return plain(v / by) } }

// duration takes the unit that suits.
func duration(ns float64) string {
	switch {
	case ns < 1e4:
		return plain(ns) + " ns"
	case ns < 1e7:
		return plain(ns/1e3) + " µs"
	}
	return plain(ns/1e6) + " ms"
}

func times(v float64) string { return fmt.Sprintf("%.2f×", v) }

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

func bold(f format) format { return func(v float64) string { return "**" + f(v) + "**" } }

// absent stands for a number that no run has given.
const absent = "–"

// cell is one number of a table.
type cell struct {
	expr   expr
	format format
}

func (c cell) text(r *results) string {
	if c.expr == nil {
		return ""
	}
	v, ok := c.expr(r)
	if !ok {
		return absent
	}
	return c.format(v)
}

// table is a Markdown table; the first column is the names of the rows.
type table struct {
	title string
	note  string
	head  []string
	rows  []row
}

type row struct {
	name  string
	cells []cell
}

func (t table) write(w *strings.Builder, r *results) {
	fmt.Fprintf(w, "\n### %s\n\n", t.title)
	if t.note != "" {
		w.WriteString(t.note + "\n\n")
	}
	w.WriteString("| |")
	for _, h := range t.head {
		fmt.Fprintf(w, " %s |", h)
	}
	w.WriteString("\n|---|" + strings.Repeat("--:|", len(t.head)) + "\n")
	for _, row := range t.rows {
		fmt.Fprintf(w, "| %s |", row.name)
		for i := range t.head {
			text := ""
			if i < len(row.cells) {
				text = row.cells[i].text(r)
			}
			fmt.Fprintf(w, " %s |", text)
		}
		w.WriteString("\n")
	}
}
