// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// place is one metric of one benchmark: ours, Index/lowest/24/churn/0, ns/op.
// A benchmark that ran with several numbers of processors has "@N" at its end.
type place struct{ pkg, bench, unit string }

// results are all runs of all metrics.
type results struct {
	runs    map[place][]float64
	busy    bool           // prefer what is quiet
	missing []string       // packages without a result, for people
	asked   map[place]bool // what was looked for, where somebody wants to know; nil: nobody
}

// value is the median of the runs and the range of them.
type value struct{ mid, low, high float64 }

func (r *results) at(p place) (value, bool) {
	if r.asked != nil {
		r.asked[p] = true
	}
	if q := p.quiet(); r.busy && len(r.runs[q]) > 0 {
		p = q
	}
	runs := slices.Sorted(slices.Values(r.runs[p]))
	if len(runs) == 0 {
		return value{}, false
	}
	return value{runs[len(runs)/2], runs[0], runs[len(runs)-1]}, true
}

// quiet is the metric that says the same, and takes less part in what the
// neighbours do: processor time, or the fastest tenth of what has turns.
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

// parse adds the lines of one raw file and returns how many benchmarks these are.
func (r *results) parse(name string, raw io.Reader) (n int, err error) {
	processors := regexp.MustCompile(`-(\d+)$`)
	lines := bufio.NewScanner(raw)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		if _, err := strconv.Atoi(f[1]); err != nil {
			continue // a line of a log
		}
		bench, cpus := strings.TrimPrefix(f[0], "Benchmark"), "1"
		if m := processors.FindStringSubmatch(bench); m != nil {
			bench, cpus = strings.TrimSuffix(bench, m[0]), m[1]
		}
		if strings.Contains(bench, "/parallel") {
			bench += "@" + cpus
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return n, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			p := place{name, bench, f[i+1]}
			r.runs[p] = append(r.runs[p], v)
		}
		n++
	}
	return n, lines.Err()
}
