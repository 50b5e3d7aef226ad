// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// example is a command of a page with the output that the page shows.
type example struct {
	args []string
	want string
}

// examples returns the commands of a page: lines of an indented block that begin with
// "$ cadastre", each with the lines behind it.
func examples(page string) []example {
	var all []example
	open := false
	for line := range strings.Lines(page) {
		code, indented := strings.CutPrefix(line, "    ")
		command, isCommand := strings.CutPrefix(code, "$ cadastre ")
		switch {
		case indented && isCommand:
			command, _, _ = strings.Cut(command, " #")
			all = append(all, example{args: strings.Fields(command)})
			open = true
		case indented && open && !strings.HasPrefix(code, "$ "):
			all[len(all)-1].want += code
		case strings.TrimSpace(line) == "" && open:
			all[len(all)-1].want += "\n"
		default:
			open = false
		}
	}
	return all
}

// matches reports whether an output is what a page shows: "..." stands for anything, also for
// several lines if it is a line. Times and numbers of events differ in each run. Lines behind
// the last one that is shown may follow.
func matches(shown, have string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	volatile := regexp.MustCompile(`\d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]+Z?|#\d+`)
	for line := range strings.Lines(strings.Trim(shown, "\n") + "\n") {
		line = strings.TrimRight(line, " \n")
		if line == "..." {
			pattern.WriteString(`(?s:.*?)`)
			continue
		}
		text := volatile.ReplaceAllString(line, "\x00")
		text = strings.ReplaceAll(regexp.QuoteMeta(text), `\.\.\.`, `.*`)
		pattern.WriteString(strings.ReplaceAll(text, "\x00", `\S+`) + ` *\n`)
	}
	return regexp.MustCompile(pattern.String()).MatchString(have)
}

// runPage implements the command page: it runs every "$ cadastre" of a page of the
// repository, and compares what it prints with what the page shows.
func runPage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: page FILE")
	}
	top, err := filepath.Abs(root)
	ts.Check(err)
	page, err := os.ReadFile(filepath.Join(top, args[0]))
	ts.Check(err)
	all := examples(string(page))
	if len(all) == 0 {
		ts.Fatalf("%s has no command", args[0])
	}
	for _, x := range all {
		for i, arg := range x.args {
			if strings.HasPrefix(arg, "conf/") {
				x.args[i] = filepath.Join(top, arg)
			}
		}
		ts.Check(ts.Exec("cadastre", x.args...))
		if have := ts.ReadFile("stdout"); !matches(x.want, have) {
			ts.Fatalf(
				"%s: cadastre %s: the page shows\n%s\nand the program prints\n%s",
				args[0],
				strings.Join(x.args, " "),
				x.want,
				have,
			)
		}
	}
}
