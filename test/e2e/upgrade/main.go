// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command upgrade builds the programs of the last release, against which test/e2e/kube
// tests the upgrade and the way back (TestUpgrade): those of the newest tag that HEAD
// follows.
//
// It checks the release out into a git worktree of its own, which it removes again. It
// leaves the programs and the folder k8s of that release below the directory that it is
// given. A release that is there already is left alone. It prints the directory. Before the
// first tag, and in a clone without that history, it prints nothing, says why on standard
// error, and succeeds.
//
// Example:
//
//	E2E_UPGRADE=$(go run ./test/e2e/upgrade -o .cache/upgrade) go test ./test/e2e/kube -run TestUpgrade
package main

import (
	"bytes"
	"context"
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("upgrade", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", filepath.FromSlash(".cache/upgrade"), "the directory of the releases")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	commit, err := lastRelease(ctx)
	if err != nil {
		fmt.Fprintln(stderr, "upgrade: NOT RUN:", err)
		return 0
	}
	dir, err := filepath.Abs(filepath.Join(*out, commit))
	if err == nil {
		err = build(ctx, commit, dir)
	}
	if err != nil {
		fmt.Fprintln(stderr, "upgrade:", err)
		return 1
	}
	fmt.Fprintln(stdout, dir)
	return 0
}

// lastRelease returns the commit of the last release, or why this clone does not have it.
func lastRelease(ctx context.Context) (string, error) {
	name, err := git(ctx, "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
	if err != nil {
		return "", errors.New("no release has a tag yet (v1.2.3) that this clone has")
	}
	commit, err := git(ctx, "rev-parse", "--verify", "--quiet", name+"^{commit}")
	if err != nil {
		return "", fmt.Errorf(
			"this clone has no commit %s, the last release: fetch it with git fetch --unshallow --tags",
			name,
		)
	}
	return commit, nil
}

// build makes what is not there. The directory appears when it is complete.
func build(ctx context.Context, commit, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "upgrade-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	tree := filepath.Join(work, "tree")
	if _, err := git(ctx, "worktree", "add", "--detach", "--force", tree, commit); err != nil {
		return err
	}
	defer func() {
		// also if the build was interrupted
		_, _ = git(context.WithoutCancel(ctx), "worktree", "remove", "--force", tree)
	}()
	made, err := os.MkdirTemp(filepath.Dir(dir), ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	for _, name := range []string{"cadastre-agent", "cadastre-operator", "cadastre-cni", "cadastre"} {
		cmd := exec.CommandContext(
			ctx,
			"go",
			"build",
			"-trimpath",
			"-buildvcs=false",
			"-o",
			filepath.Join(made, name),
			"./cmd/"+name,
		)
		cmd.Dir, cmd.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s of %s: %w: %s", name, commit, err, bytes.TrimSpace(out))
		}
	}
	if err := os.CopyFS(filepath.Join(made, "k8s"), os.DirFS(filepath.Join(tree, "k8s"))); err != nil {
		return err
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return err
	}
	return os.Rename(made, dir)
}

// git runs git in the repository for what it prints.
func git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
