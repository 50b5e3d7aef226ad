// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// Options are the command line of a Harness.
type Options struct {
	Verb string // "" plays; one of Harness.Verbs; and what the program starts itself with: probe, inside
	Way  Way
	Root string // the repository; "": the one that the program is started in
	Bin  string // the built programs; "": they are built
	Dir  string // inside: where everything is written
}

// What the program starts itself with.
const (
	probe  = "probe"
	inside = "inside"
)

// Parse reads the command line; help and problems go to stderr.
func (h Harness) Parse(args []string, stderr io.Writer) (Options, error) {
	opt := Options{Way: WayAuto}
	fs := flag.NewFlagSet(h.Name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: %s\n\n", h.Usage)
		fs.PrintDefaults()
	}
	fs.Func(
		"namespaces",
		"the `way` to make network namespaces: root, user, none, or auto, the first that works",
		opt.Way.set,
	)
	fs.StringVar(&opt.Bin, "bin", "", "use the programs in this `directory` instead of building them")
	fs.StringVar(&opt.Root, "root", "", "the repository's `directory`, if it is not the current one's")
	fs.StringVar(&opt.Dir, "dir", "", "with a verb: the `directory` of its files, if not its own")
	if err := fs.Parse(args); err != nil {
		return opt, err
	}
	opt.Verb = fs.Arg(0)
	switch {
	case fs.NArg() > 1:
		return opt, fmt.Errorf("unexpected argument %q: flags come first", fs.Arg(1))
	case opt.Verb != "" && opt.Verb != probe && opt.Verb != inside && !slices.Contains(h.Verbs, opt.Verb):
		return opt, fmt.Errorf("unknown verb %q: known are [%s]", opt.Verb, strings.Join(h.Verbs, " "))
	case opt.Verb == inside && (opt.Dir == "" || opt.Bin == "" || opt.Root == ""):
		return opt, errors.New("inside needs --dir, --bin and --root: it is for the program itself")
	}
	return opt, opt.absolute()
}

// absolute makes the paths independent of the current directory.
func (o *Options) absolute() error {
	for _, path := range []*string{&o.Root, &o.Bin, &o.Dir} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return nil
}
