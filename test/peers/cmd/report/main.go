// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command report runs the benchmarks of this project and of its peers, keeps
// what "go test -bench" prints, and writes the medians and the verdicts on our
// aims as Markdown.
//
//	go run ./test/peers/cmd/report OUT                    # everything
//	go run ./test/peers/cmd/report OUT ours limits        # some of it; the rest as it is in OUT
//	go run ./test/peers/cmd/report -render OUT            # nothing is run
//	go run ./test/peers/cmd/report -bench 'Durable|Callers' OUT ours
//	go run ./test/peers/cmd/report -doc docs/results/benchmarks.md OUT
//
// OUT/NAME.txt is the raw output, OUT/report.md the tables. Two runs are compared with
//
//	go run golang.org/x/perf/cmd/benchstat OLD/ours.txt NEW/ours.txt
//
// The
// environment variable DIR names the disk that durable rows are measured on;
// without it, that is the disk of the temporary directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

func main() { generated.Main("report", run) }

// options are the command line.
type options struct {
	out       string
	packages  []pkg
	bench     string
	benchtime string
	count     int
	render    bool
	busy      bool
	doc       string
}

func parseFlags(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	fs.IntVar(&o.count, "count", 3, "how `often` everything is run")
	fs.StringVar(&o.benchtime, "benchtime", "0.3s", "how `long` each benchmark runs, as go test has it")
	fs.StringVar(&o.bench, "bench", ".", "run only benchmarks that match this `regexp`")
	fs.BoolVar(&o.render, "render", false, "run nothing, only write the report again")
	fs.BoolVar(
		&o.busy,
		"busy",
		false,
		"the machine has busy neighbours: report processor time, not time elapsed, where a row needs nothing but the processor, and the fastest tenth, not the median, of what is measured in turns",
	)
	fs.StringVar(&o.doc, "doc", "", "write the report between the markers of this `file`, too")
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "usage: report [flags] OUT [PACKAGE...]\npackages: %s\n", names(packages()))
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() == 0 {
		return o, errors.New("the output folder is missing: report [flags] OUT [PACKAGE...]")
	}
	var err error
	if o.out, err = filepath.Abs(fs.Arg(0)); err != nil {
		return o, err
	}
	o.packages, err = choose(fs.Args()[1:])
	return o, err
}

func run(ctx context.Context, args []string) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var failed error
	if !o.render {
		failed = measure(ctx, o)
		if ctx.Err() != nil {
			return errors.New("interrupted; OUT has what was measured so far")
		}
	}
	r, err := readResults(o.out, o.busy)
	if err != nil {
		return errors.Join(failed, err)
	}
	machine, err := os.ReadFile(machineFile(o.out))
	if err != nil {
		return errors.Join(failed, err)
	}
	if o.busy {
		machine = append(
			machine,
			" Where a row needs nothing but the processor, the time is the processor's; of what is measured in turns it is the fastest tenth, not the median."...)
	}
	text := render(r, string(machine))
	if n := strings.Count(text, "| "+absent+" |"); n > 0 {
		fmt.Fprintf(os.Stderr, "report: %d numbers were not measured\n", n)
	}
	return errors.Join(failed, generated.Publish(o.out, o.doc, text))
}
