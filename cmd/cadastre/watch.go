// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/columns"
)

// watchEvery is the time between two looks of --watch.
const watchEvery = time.Second

// list prints a table of objects, and with --watch goes on with the rows that change. once
// prints the table, and returns its rows, of which the first names the columns. The first
// column and the one of the pool name an object.
func (a *app) list(ctx context.Context, l *listing, once func(print bool) (columns.Rows, error)) error {
	rows, err := once(true)
	if err != nil || !l.watch {
		return err
	}
	known := byObject(rows)
	for {
		if a.pause(ctx, watchEvery) != nil || ctx.Err() != nil {
			return nil //nolint:nilerr // it was interrupted
		}
		now, err := once(false)
		if err != nil {
			return err
		}
		changed := changedRows(known, now)
		known = byObject(now)
		if len(changed) == 0 {
			continue
		}
		_, body, _ := strings.Cut(append(columns.Rows{now[0]}, changed...).String(), "\n")
		if err := a.write([]byte(a.coloured(body))); err != nil {
			return err
		}
	}
}

// row is a row of a table with the names of its columns.
type row struct {
	head, cells []string
}

// object names the object of a row.
func (r row) object() string {
	name := r.cells[0]
	if at := slices.Index(r.head, "POOL"); at >= 0 {
		name += " " + r.cells[at]
	}
	return name
}

// same reports whether two rows differ in nothing but the passing of time.
func (r row) same(o row) bool {
	for i, c := range r.cells {
		if h := r.head[i]; h != "AGE" && h != "SEEN" && c != o.cells[i] {
			return false
		}
	}
	return true
}

// byObject returns the rows of a table by their objects.
func byObject(rows columns.Rows) map[string]row {
	all := map[string]row{}
	for _, cells := range rows[1:] {
		r := row{rows[0], cells}
		all[r.object()] = r
	}
	return all
}

// changedRows returns the rows that are new or differ, and the last row of each object that
// is gone, with "gone" as its state.
func changedRows(known map[string]row, now columns.Rows) (changed columns.Rows) {
	present := byObject(now)
	for _, cells := range now[1:] {
		r := row{now[0], cells}
		if old, had := known[r.object()]; !had || !r.same(old) {
			changed = append(changed, cells)
		}
	}
	var gone columns.Rows
	for name, r := range known {
		if _, is := present[name]; is {
			continue
		}
		cells := slices.Clone(r.cells)
		if at := slices.Index(r.head, "STATE"); at >= 0 {
			cells[at] = "gone"
		}
		gone = append(gone, cells)
	}
	slices.SortFunc(gone, func(x, y []string) int { return compareCells(x[0], y[0]) })
	return append(changed, gone...)
}
