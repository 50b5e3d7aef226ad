// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
)

// options are the command line.
type options struct {
	verb string // "" tells the whole story; run; and what the program starts itself with: probe, inside
	way  way
	root string // the repository; "": the one that the program is started in
	bin  string // the built programs; "": they are built
	dir  string // inside: where everything is written
}

func parse(args []string, stderr io.Writer) (options, error) {
	opt := options{way: wayAuto}
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "usage: demo [flags]      shows everything and cleans up\n"+
			"       demo [flags] run  starts an agent in the foreground\n\n")
		fs.PrintDefaults()
	}
	fs.Func("namespaces", "the `way` to make network namespaces: root, user, none, or auto, the first that works", opt.way.set)
	fs.StringVar(&opt.bin, "bin", "", "use the programs in this `directory` instead of building them")
	fs.StringVar(&opt.root, "root", "", "the repository's `directory`, if it is not the current one's")
	fs.StringVar(&opt.dir, "dir", "", "with run: the `directory` of its files, if not .run")
	if err := fs.Parse(args); err != nil {
		return opt, err
	}
	opt.verb = fs.Arg(0)
	switch {
	case fs.NArg() > 1:
		return opt, fmt.Errorf("unexpected argument %q: flags come first", fs.Arg(1))
	case opt.verb != "" && opt.verb != "run" && opt.verb != "probe" && opt.verb != "inside":
		return opt, fmt.Errorf("unknown verb %q: only run is known", opt.verb)
	case opt.verb == "inside" && (opt.dir == "" || opt.bin == "" || opt.root == ""):
		return opt, errors.New("inside needs --dir, --bin and --root: it is for the program itself")
	}
	return opt, opt.absolute()
}

// absolute makes the paths independent of the current directory.
func (o *options) absolute() error {
	for _, path := range []*string{&o.root, &o.bin, &o.dir} {
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
