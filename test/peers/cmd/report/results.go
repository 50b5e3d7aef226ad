// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// place names one metric of one benchmark: ours, Index/lowest/24/churn/0, ns/op.
// A benchmark that ran with several numbers of processors has "@N" at its end.
type place struct{ pkg, bench, unit string }

// results holds all runs of all metrics.
type results struct {
	runs    map[place][]float64
	busy    bool           // prefer what is quiet
	missing []string       // packages without a result, for people
	asked   map[place]bool // if not nil, at notes the metrics that it is asked for
}

// at returns the median of the runs of a metric, and whether there are any.
func (r *results) at(p place) (float64, bool) {
	if r.asked != nil {
		r.asked[p] = true
	}
	if q := p.quiet(); r.busy && len(r.runs[q]) > 0 {
		p = q
	}
	runs := slices.Sorted(slices.Values(r.runs[p]))
	if len(runs) == 0 {
		return 0, false
	}
	return runs[len(runs)/2], true
}

// quiet returns the metric of the same thing that depends less on the load of the
// machine: processor time, or the fastest tenth of what is measured in turns.
func (p place) quiet() place {
	if name, ok := strings.CutSuffix(p.unit, "-p50-ns"); ok {
		p.unit = name + "-p10-ns"
	} else if p.unit == "ns/op" {
		p.unit = "cpu-ns"
	}
	return p
}

// readResults reads the raw files of a folder.
func readResults(out string, busy bool) (*results, error) {
	r := &results{runs: map[place][]float64{}, busy: busy}
	for _, p := range packages() {
		f, err := os.Open(rawFile(out, p))
		if errors.Is(err, fs.ErrNotExist) {
			r.missing = append(r.missing, p.what)
			continue
		}
		if err != nil {
			return nil, err
		}
		n, err := r.parse(p.name, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("read %s: %w", rawFile(out, p), err)
		}
		if n == 0 {
			r.missing = append(r.missing, p.what)
		}
	}
	return r, nil
}

// parse adds what package benchfmt reads from the output of a package, and returns the
// number of results.
func (r *results) parse(name string, raw io.Reader) (n int, err error) {
	reader := benchfmt.NewReader(raw, name)
	for reader.Scan() {
		record := reader.Result()
		if bad, ok := record.(*benchfmt.SyntaxError); ok && !strings.Contains(bad.Msg, "iteration count") {
			return n, bad
		}
		x, ok := record.(*benchfmt.Result)
		if !ok {
			continue // a line of a log
		}
		bench := benchName(x.Name)
		for _, v := range x.Values {
			if v.OrigUnit != "" {
				v.Value, v.Unit = v.OrigValue, v.OrigUnit
			}
			p := place{name, bench, v.Unit}
			r.runs[p] = append(r.runs[p], v.Value)
		}
		n++
	}
	return n, reader.Err()
}

// benchName returns the name of a benchmark. A parallel one has its number of processors
// behind an @.
func benchName(name benchfmt.Name) string {
	base, parts := name.Parts()
	bench, cpus := string(base), "1"
	for _, part := range parts {
		if part[0] == '-' {
			cpus = string(part[1:])
			continue
		}
		bench += string(part)
	}
	if strings.Contains(bench, "/parallel") {
		bench += "@" + cpus
	}
	return bench
}
