// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

// event is one line of "go test -json".
type event struct {
	Action, Package, Test, Output string
}

// verdict is a test that failed or was skipped, and what it said.
type verdict struct {
	test string
	said string
}

// row holds the results of one kind of attack.
type row struct {
	attack.Attack
	count   int64
	except  map[string]int // by their reason
	failed  []verdict
	skipped []verdict
}

// report is all that the page says.
type report struct {
	circumstances
	rows   []*row
	others []verdict // failures of tests that count nothing
	passed int       // tests, with their subtests
}

// readReport reads what runAll has left in a folder.
func readReport(out string, all []suite) (*report, error) {
	r := &report{}
	data, err := os.ReadFile(runFile(out))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &r.circumstances); err != nil {
		return nil, fmt.Errorf("read %s: %w", runFile(out), err)
	}
	rows := map[attack.Kind]*row{}
	for _, a := range attack.All() {
		rows[a.Kind] = &row{Attack: a, except: map[string]int{}}
		r.rows = append(r.rows, rows[a.Kind])
	}
	for _, s := range all {
		tries, err := os.ReadFile(s.tries(out))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		records, err := parseTries(tries)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", s.tries(out), err)
		}
		output, err := os.ReadFile(s.output(out))
		if err != nil {
			return nil, err
		}
		events, err := parseEvents(output)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", s.output(out), err)
		}
		if err := r.add(rows, records, events); err != nil {
			return nil, fmt.Errorf("suite %s: %w", s.name, err)
		}
	}
	return r, nil
}

func parseTries(data []byte) (all []attack.Record, err error) {
	for line := range bytes.Lines(data) {
		var r attack.Record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// parseEvents skips the lines that are not JSON, such as those of a failed build.
func parseEvents(data []byte) (all []event, err error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			all = append(all, e)
		}
	}
	return all, lines.Err()
}

// add takes the records and the events of one suite into the rows.
func (r *report) add(rows map[attack.Kind]*row, records []attack.Record, events []event) error {
	kinds := map[string]attack.Kind{} // of the tests that count, by name
	ended := map[string]bool{}
	for _, x := range records {
		row := rows[x.Kind]
		if row == nil {
			return fmt.Errorf("%s: unknown kind of attack %q", x.Test, x.Kind)
		}
		kinds[x.Test] = x.Kind
		if x.Outcome == attack.Began {
			continue
		}
		ended[x.Test] = true
		if x.Outcome != attack.Skipped {
			row.count += x.Count
			for reason, n := range x.Excepted {
				row.except[reason] += n
			}
		}
	}
	said, failed := map[string][]string{}, []string{}
	ran := false
	for _, e := range events {
		switch {
		case e.Action == "output":
			said[e.Test] = append(said[e.Test], e.Output)
		case e.Test == "":
			ran = ran || e.Action == "pass" || e.Action == "fail"
			if e.Action == "fail" {
				failed = append(failed, "")
			}
		case e.Action == "pass":
			r.passed++
		case e.Action == "fail":
			failed = append(failed, e.Test)
		case e.Action == "skip":
			if row := rows[kinds[e.Test]]; row != nil {
				row.skipped = append(row.skipped, verdict{e.Test, gist(said[e.Test])})
			}
		}
	}
	if !ran {
		r.others = append(r.others, verdict{"the whole suite", "it did not run to its end"})
	}
	for test := range kinds {
		if !ended[test] && !slices.Contains(failed, test) { // its process ended first
			failed = append(failed, test)
			said[test] = []string{"its process ended before the test"}
		}
	}
	r.blame(rows, kinds, failed, said)
	return nil
}

// blame adds each failure to the row of the test that counts, or that contains or
// is contained in one that counts. A test whose subtest failed is not named.
func (r *report) blame(
	rows map[attack.Kind]*row,
	kinds map[string]attack.Kind,
	failed []string,
	said map[string][]string,
) {
	slices.Sort(failed)
	for _, test := range failed {
		below := func(other string) bool { return other != test && (test == "" || strings.HasPrefix(other, test+"/")) }
		if slices.ContainsFunc(failed, below) {
			continue
		}
		v, known := verdict{test, gist(said[test])}, map[attack.Kind]bool{}
		for name, kind := range kinds {
			if test != "" && (name == test || strings.HasPrefix(test, name+"/") || strings.HasPrefix(name, test+"/")) {
				known[kind] = true
			}
		}
		for kind := range known {
			rows[kind].failed = append(rows[kind].failed, v)
		}
		if len(known) == 0 {
			r.others = append(r.others, v)
		}
	}
}

// gist is the first line that a test said of its own, without what is of one run.
func gist(lines []string) string {
	for line := range strings.Lines(strings.Join(lines, "")) {
		text := strings.TrimSpace(line)
		if place, rest, ok := strings.Cut(text, ".go:"); ok && !strings.Contains(place, " ") {
			_, text, _ = strings.Cut(rest, ": ")
		}
		if text == "" || strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") {
			continue
		}
		return text
	}
	return "it says nothing"
}

// problems returns an error that names each failure, nil if there is none.
func (r *report) problems() error {
	var errs []error
	for _, x := range r.rows {
		for _, v := range x.failed {
			errs = append(errs, fmt.Errorf("%s: %s failed: %s", x.Kind, v.test, v.said))
		}
		if x.count == 0 {
			errs = append(errs, fmt.Errorf("%s: nothing was tried", x.Kind))
		}
	}
	for _, v := range r.others {
		errs = append(errs, fmt.Errorf("%s failed: %s", v.test, v.said))
	}
	return errors.Join(errs...)
}
