// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The packages of the programs; each is built under its last name.
const (
	OurPrograms  = "github.com/cadastre/cadastre/cmd/..."
	BridgePlugin = "github.com/containernetworking/plugins/plugins/main/bridge"
)

// Repository is the directory of the module that the program is started in.
func Repository(ctx context.Context) (string, error) {
	out, err := goTool(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/cadastre/cadastre")
	if err != nil {
		return "", fmt.Errorf("find the repository (start this program inside it): %w", err)
	}
	return strings.TrimSpace(out), nil
}

// Build puts the programs of the packages into bin. They are linked once for all tests and
// demos, in the folder .cache of the module's root; one process at a time does so.
func Build(ctx context.Context, root, bin string, packages ...string) error {
	if err := build(ctx, root, bin, packages); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	return nil
}

func build(ctx context.Context, root, bin string, packages []string) error {
	shared, err := filepath.Abs(filepath.Join(root, ".cache", "programs"))
	if err != nil {
		return err
	}
	for _, dir := range []string{shared, bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	lock, err := os.Create(filepath.Join(shared, "lock"))
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which ends the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	args := append([]string{"build", "-o", shared + string(os.PathSeparator)}, packages...)
	if _, err := goTool(ctx, root, args...); err != nil { // links nothing that is as it should be
		return err
	}
	args = append([]string{"list", "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`}, packages...)
	paths, err := goTool(ctx, root, args...)
	if err != nil {
		return err
	}
	for _, p := range strings.Fields(paths) {
		if err := place(filepath.Join(shared, path.Base(p)), filepath.Join(bin, path.Base(p))); err != nil {
			return err
		}
	}
	return nil
}

// place makes to a link of the program, or a copy on another file system. A later build
// replaces the program, and leaves the link as it is.
func place(program, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(program, to) == nil {
		return nil
	}
	have, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(to, have, 0o755)
}

func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return output(ctx, cmd)
}

// output runs cmd for its standard output; what it says otherwise is in the error.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	if ctx.Err() != nil {
		return stdout.String(), context.Cause(ctx)
	}
	said := strings.TrimSpace(stderr.String() + stdout.String())
	return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
}
