// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command release makes what a release of Cadastre consists of, without an engine and
// without a registry:
//
//	release images    the container images only, as OCI layouts in tar archives
//	release all       archives, images, Debian packages, checksums, SBOM, provenance
//
// The same commit, version of Go and certificates give the same bytes on every machine.
// The output folder is replaced. An error is one line; the exit code is then 1, or 2 if
// the command line is wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/images"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options holds the command line.
type options struct {
	verb         string
	root         string
	out          string
	version      string
	arches       []string
	groups       []string
	repository   string
	certificates string
	builder      string
}

// The verbs.
const (
	verbImages = "images"
	verbAll    = "all"
)

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	opt, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "release:", err)
		return 2
	}
	if err := release(ctx, opt, getenv, stdout); err != nil {
		fmt.Fprintln(stderr, "release:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (opt options, err error) {
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&opt.root, "root", "../..", "the `folder` of the source")
	fs.StringVar(&opt.out, "out", "", "the `folder` for the result, which is replaced (required)")
	fs.StringVar(&opt.version, "version", "", "the `version` (default: the tag of the commit, else the next one)")
	arches := fs.String("arch", "amd64,arm64", "the `architectures`")
	groups := fs.String("groups", "", "the `groups` of programs: main, a cloud, vpp (default all)")
	fs.StringVar(&opt.repository, "repository", "docker.io/library", "the registry and `folder` in the images' names")
	fs.StringVar(&opt.certificates, "certificates", images.CertificatesPath,
		"the `file` of the authorities of TLS in images of clouds")
	fs.StringVar(
		&opt.builder,
		"builder",
		"https://github.com/cadastre/cadastre/blob/main/docs/releases.md#a-release-by-hand",
		"the `address` of the builder in the provenance",
	)
	if err := fs.Parse(args); err != nil {
		return opt, err
	}
	opt.arches, opt.groups = words(*arches), words(*groups)
	if fs.NArg() != 1 || fs.Arg(0) != verbImages && fs.Arg(0) != verbAll {
		return opt, fmt.Errorf("%q: want one of %s, %s after the flags", fs.Args(), verbImages, verbAll)
	}
	opt.verb = fs.Arg(0)
	for _, arch := range opt.arches {
		if arch != "amd64" && arch != "arm64" {
			return opt, fmt.Errorf("--arch: %q is not known: want amd64, arm64", arch)
		}
	}
	switch {
	case len(opt.arches) == 0:
		return opt, errors.New("--arch is empty: want amd64, arm64 or both")
	case opt.out == "":
		return opt, errors.New("--out is empty: name a folder")
	}
	return opt, nil
}

// words splits a list at its commas and spaces.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func release(ctx context.Context, opt options, getenv func(string) string, stdout io.Writer) error {
	source, err := build.Read(ctx, opt.root, opt.version, getenv)
	if err != nil {
		return err
	}
	groups, err := build.Groups(source.Root)
	if err != nil {
		return err
	}
	if groups, err = build.Select(groups, opt.groups); err != nil {
		return err
	}
	r := room{options: opt, source: source, groups: groups, stdout: stdout}
	if err := r.begin(); err != nil {
		return err
	}
	defer os.RemoveAll(r.programs)
	fmt.Fprintf(stdout, "Cadastre %s for %s into %s\n", source.Version, strings.Join(opt.arches, " and "), opt.out)
	steps := []func(context.Context) error{r.build, r.images}
	if opt.verb == verbAll {
		steps = slices.Concat([]func(context.Context) error{r.notes}, steps)
		steps = append(steps, r.archives, r.packages, r.bills, r.sums, r.krew, r.provenance)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}
