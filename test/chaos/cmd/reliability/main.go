// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command reliability runs the tests that attack the agent, and writes what was
// tried, how often, and the result as Markdown.
//
//	go run ./test/chaos/cmd/reliability OUT                               # run all, write OUT/report.md
//	go run ./test/chaos/cmd/reliability -doc docs/reliability.md OUT      # and between the markers of that file
//	go run ./test/chaos/cmd/reliability -render -doc FILE OUT             # run nothing
//	go run ./test/chaos/cmd/reliability -only evidence -doc FILE OUT      # one attack, and its row
//
// CADASTRE_TEST_EFFORT chooses the number of repetitions (package effort). OUT/NAME.json is the
// output of "go test -json", OUT/NAME.tries what the tests counted, OUT/run.json when and with what
// they ran. The exit code is 1 if a test failed, or if a kind of attack was not tried.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/generated"
)

func main() { generated.Main("reliability", run) }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("reliability", flag.ContinueOnError)
	doc := flags.String("doc", "", "write the report between the markers of this `file`, too")
	only := flags.String("only", "", "run only the tests of this `attack`, and write only its row of the page")
	render := flags.Bool("render", false, "run nothing, only write the report again")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: reliability [flags] OUT")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("got %d arguments, want the output folder: reliability [flags] OUT", flags.NArg())
	}
	out, err := filepath.Abs(flags.Arg(0))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	all := suites()
	if *only != "" {
		one, ok := alone()[attack.Kind(*only)]
		if !ok {
			return fmt.Errorf("run only the attack %q: want one of %q", *only, slices.Sorted(maps.Keys(alone())))
		}
		all = []suite{one}
	}
	if !*render {
		if err := runAll(ctx, out, all); err != nil {
			return err
		}
	}
	r, err := readReport(out, all)
	if err != nil {
		return err
	}
	if *only != "" {
		return r.publishRow(*doc, attack.Kind(*only))
	}
	if err := generated.Publish(out, *doc, r.render()); err != nil {
		return err
	}
	return r.problems()
}
