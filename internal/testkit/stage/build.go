// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
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

// Build puts the programs of the packages into bin.
func Build(ctx context.Context, root, bin string, packages ...string) error {
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	args := append([]string{"build", "-o", bin + string(os.PathSeparator)}, packages...)
	_, err := goTool(ctx, root, args...)
	return err
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
