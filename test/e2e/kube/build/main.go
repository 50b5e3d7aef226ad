// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command build makes the programs that test/e2e/kube runs against: an etcd,
// a kube-apiserver, a kube-controller-manager and a kubectl, from the module
// test/e2e/kubernetes, which pins their versions.
//
// It owns the directory that it is given. It leaves a program alone whose stamp
// says that it was made of the same modules by the same compiler. It removes
// the stamp before it makes a program and writes it after, so that an
// interrupted build is done again. It needs Go, and the modules from a proxy or
// from Go's own cache; the first time takes minutes, the next less than a
// second.
//
// Example:
//
//	go run ./test/e2e/kube/build -o .cache/kube
//	KUBEBUILDER_ASSETS=$PWD/.cache/kube go test ./test/e2e/kube
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// program is one to be built.
type program struct {
	name    string
	pkg     string
	version string // in which variable its version is; "": it knows it
}

// programs returns the programs of envtest, and a controller manager to compare with.
func programs() []program {
	const version = "k8s.io/component-base/version"
	return []program{
		{"etcd", "go.etcd.io/etcd/server/v3", ""},
		{"kubectl", "k8s.io/kubernetes/cmd/kubectl", version},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", version},
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", version},
	}
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", filepath.FromSlash(".cache/kube"), "the directory of the programs")
	module := flags.String(
		"module",
		filepath.FromSlash("test/e2e/kubernetes"),
		"the directory of the module that they come from",
	)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if err := build(ctx, *module, *out, stdout); err != nil {
		fmt.Fprintln(stderr, "build:", err)
		return 1
	}
	return 0
}

// build makes what is not there.
func build(ctx context.Context, module, out string, stdout io.Writer) error {
	out, err := filepath.Abs(out) // the compiler runs in the module's directory
	if err != nil {
		return fmt.Errorf("find %s: %w", out, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("make the directory of the programs: %w", err)
	}
	made, err := origin(ctx, module)
	if err != nil {
		return err
	}
	kubernetes, err := versionOf(module, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	for _, p := range programs() {
		began := time.Now()
		flags := p.linkerFlags(kubernetes)
		stamp, want := filepath.Join(out, p.name+".stamp"), made+" "+p.pkg+" "+flags+"\n"
		if upToDate(filepath.Join(out, p.name), stamp, want) {
			fmt.Fprintf(stdout, "%-24s is up to date\n", p.name)
			continue
		}
		if err := os.Remove(stamp); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the stamp of %s: %w", p.name, err)
		}
		if _, err := goTool(
			ctx,
			module,
			"build",
			"-ldflags",
			flags,
			"-o",
			filepath.Join(out, p.name),
			p.pkg,
		); err != nil {
			return err
		}
		if err := os.WriteFile(stamp, []byte(want), 0o644); err != nil {
			return fmt.Errorf("write the stamp of %s: %w", p.name, err)
		}
		fmt.Fprintf(stdout, "%-24s %s\n", p.name, time.Since(began).Round(time.Second))
	}
	return nil
}

// linkerFlags leave out what only a debugger needs, and say the version, which
// a program built as a module does not know.
func (p program) linkerFlags(version string) string {
	flags := "-s -w"
	if p.version == "" {
		return flags
	}
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return flags + fmt.Sprintf(
		" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s",
		p.version,
		version,
		major,
		minor,
	)
}

// upToDate reports whether the program is there and was made like that.
func upToDate(program, stamp, want string) bool {
	if info, err := os.Stat(program); err != nil || !info.Mode().IsRegular() {
		return false
	}
	have, err := os.ReadFile(stamp)
	return err == nil && string(have) == want
}

// origin returns the versions of the modules and of the compiler.
func origin(ctx context.Context, module string) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", fmt.Errorf("read the module of the programs (start this at the root of the repository): %w", err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(data), data)
	}
	compiler, err := goTool(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH")
	return fmt.Sprintf("%x %s", sum.Sum(nil), strings.Join(strings.Fields(compiler), " ")), err
}

// versionOf is the version of a module that go.mod requires.
func versionOf(module, required string) (string, error) {
	path := filepath.Join(module, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("look for the version of %s: %w", required, err)
	}
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(strings.TrimPrefix(line, "require ")); len(words) >= 2 && words[0] == required {
			return words[1], nil
		}
	}
	return "", fmt.Errorf("%s requires no version of %s", path, required)
}

// goTool runs go in the module for what it prints.
func goTool(ctx context.Context, module string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	// What a person has set for other builds would make other programs.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
