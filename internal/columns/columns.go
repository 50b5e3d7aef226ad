// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package columns prints rows of cells in columns, for people. Its types are plain values: a
// caller that shares one between goroutines guards it.
package columns

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Rows holds rows of cells.
type Rows [][]string

// Add appends a row.
func (r *Rows) Add(cells ...string) { *r = append(*r, cells) }

// String aligns the columns, two spaces apart; an empty cell is "-".
func (r Rows) String() string {
	var widths []int
	for _, row := range r {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(shown(cell)))
		}
	}
	var b strings.Builder
	for _, row := range r {
		line := ""
		for i, cell := range row {
			cell = shown(cell)
			line += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

func shown(cell string) string {
	if cell == "" {
		return "-"
	}
	return Clean(cell)
}

// Clean replaces the characters by which a foreign name could move the cursor of a terminal.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
