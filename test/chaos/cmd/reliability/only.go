// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

// publishRow writes the row of one kind between the markers of a page, and the circumstances
// of its run below the table. All other figures stay. An empty path writes to the standard
// output.
func (r *report) publishRow(path string, kind attack.Kind) error {
	i := slices.IndexFunc(r.rows, func(x *row) bool { return x.Kind == kind })
	if i < 0 {
		return fmt.Errorf("write the row of %s: the report has none", kind)
	}
	line, ran := r.rows[i].line(), r.ranAlone(kind)
	if path == "" {
		fmt.Print(line, ran)
		return r.problemsOf(kind)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page, err := withRow(string(old), r.rows[i], line, ran)
	if err != nil {
		return fmt.Errorf("write the row of %s into %s: %w", kind, path, err)
	}
	return errors.Join(os.WriteFile(path, []byte(page), 0o644), r.problemsOf(kind))
}

// tableEnd is the line below the table.
const tableEnd = "\n\"–\": the tests of this attack do not look at it.\n"

// withRow puts a row in the place of the one with the same attack, or at the end of the
// table.
func withRow(page string, x *row, line, ran string) (string, error) {
	table, rest, ok := strings.Cut(page, tableEnd)
	if !ok {
		return "", errors.New("it has no table of attacks")
	}
	lines := slices.DeleteFunc(strings.SplitAfter(table, "\n"), func(l string) bool {
		return strings.HasPrefix(l, "| "+x.What+" |")
	})
	table = strings.Join(lines, "") + line
	if begin := aloneBegin(x.Kind); strings.HasPrefix(rest, "\n"+begin) {
		_, rest, _ = strings.Cut(rest[1:], "\n")
	}
	return table + tableEnd + "\n" + ran + rest, nil
}

func aloneBegin(kind attack.Kind) string {
	return fmt.Sprintf("The last row (%s) is of a run of its own", kind)
}

// ranAlone describes the circumstances of a run of one attack.
func (r *report) ranAlone(kind attack.Kind) string {
	return fmt.Sprintf(
		"%s, on %s, of commit %s, in %s, with %s.\n",
		aloneBegin(kind),
		r.Began.UTC().Format(time.DateOnly),
		cmp.Or(r.Commit, "unknown"), r.Ended.Sub(r.Began).Round(time.Second),
		cmp.Or(strings.Join(r.Settings, " "), "default sizes"))
}

// problemsOf returns an error that names each failure of one kind, nil if there is none.
func (r *report) problemsOf(kind attack.Kind) error {
	alone := report{others: r.others}
	for _, x := range r.rows {
		if x.Kind == kind {
			alone.rows = append(alone.rows, x)
		}
	}
	return alone.problems()
}
