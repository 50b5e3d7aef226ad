// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cell names a number of a committed result. It has a page, the heading above the
// table, the first cell of the row, and the number of the column. The first column has
// the number 0.
type cell struct {
	page, heading, row string
	column             int
}

// results reads numbers from tables in Markdown below a folder. It keeps the pages that it
// has read. It is not for several goroutines.
type results struct {
	folder string
	pages  map[string]string
}

func newResults(folder string) *results { return &results{folder, map[string]string{}} }

// number returns the number in a cell.
func (r *results) number(c cell) (float64, error) {
	cells, err := r.row(c.page, c.heading, c.row)
	if err != nil {
		return 0, err
	}
	if len(cells) <= c.column {
		return 0, fmt.Errorf(
			"read %s, %q, row %q: it has %d columns, want number %d",
			c.page,
			c.heading,
			c.row,
			len(cells),
			c.column,
		)
	}
	value := strings.Trim(cells[c.column], "*×")
	value = strings.NewReplacer(" ", "", "\u202f", "").Replace(value) // between thousands
	number, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, fmt.Errorf(
			"read %s, %q, row %q, column %d: want a number: %w",
			c.page,
			c.heading,
			c.row,
			c.column,
			err,
		)
	}
	return number, nil
}

// row returns the cells of the first row below a heading that begins with a text.
func (r *results) row(name, heading, first string) ([]string, error) {
	page, err := r.page(name)
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(page, "# "+heading+"\n")
	if !found {
		return nil, fmt.Errorf("read %s: missing heading %q", name, heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == first {
			return cells, nil
		}
	}
	return nil, fmt.Errorf("read %s, %q: missing row %q", name, heading, first)
}

// page returns the text of a page.
func (r *results) page(name string) (string, error) {
	if text, ok := r.pages[name]; ok {
		return text, nil
	}
	text, err := os.ReadFile(filepath.Join(r.folder, name))
	if err != nil {
		return "", fmt.Errorf("read a result: %w", err)
	}
	r.pages[name] = string(text)
	return r.pages[name], nil
}
