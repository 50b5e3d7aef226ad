// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// assetsEnv says where Kubernetes' programs are; they are not built then.
const assetsEnv = "KUBEBUILDER_ASSETS"

// programs builds what the scenario needs beside our programs, and answers the
// directory of Kubernetes'.
func programs(ctx context.Context, p stage.Place, s *stage.Scenario) (assets string, err error) {
	if err := stage.Build(ctx, p.Root, p.Bin, "./test/e2e/node/inside"); err != nil {
		return "", err
	}
	s.Step("Make the images of the agent and of the installer of CNI as a release does.")
	if err := buildImages(ctx, p); err != nil {
		return "", err
	}
	if assets = os.Getenv(assetsEnv); assets == "" {
		assets = filepath.Join(p.Root, ".cache", "kube")
		s.Step(
			"Build etcd and Kubernetes' programs into %s. The first time takes 10 to 20 minutes.",
			filepath.Join(".cache", "kube"),
		)
		if err := buildKubernetes(ctx, p.Root, assets); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kubelet", "kube-proxy"} {
		if _, err := exec.LookPath(filepath.Join(assets, name)); err != nil {
			return "", fmt.Errorf(
				"%s=%s: it needs etcd, kube-apiserver, kube-controller-manager, kubectl, kubelet and kube-proxy there: %w",
				assetsEnv,
				assets,
				err,
			)
		}
	}
	return filepath.Abs(assets)
}

// buildKubernetes has the builder of test/e2e/kube do its work, and builds the kubelet
// and kube-proxy, which that suite does not need, in the same way.
func buildKubernetes(ctx context.Context, root, assets string) error {
	if _, err := goTool(ctx, root, "run", "./test/e2e/kube/build", "-o", assets); err != nil {
		return err
	}
	module := filepath.Join(root, "test", "e2e", "kubernetes")
	version, err := goTool(ctx, module, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
	for _, name := range []string{"kubelet", "kube-proxy"} {
		if _, err := goTool(
			ctx,
			module,
			"build",
			"-ldflags",
			flags,
			"-o",
			filepath.Join(assets, name),
			"k8s.io/kubernetes/cmd/"+name,
		); err != nil {
			return err
		}
	}
	return nil
}

// goTool runs go for what it prints.
func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
	return output(ctx, cmd)
}

// output runs cmd for its standard output; what it says otherwise is in the error.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf(
			"%s %s: %w: %s",
			filepath.Base(cmd.Path),
			strings.Join(cmd.Args[1:], " "),
			err,
			strings.TrimSpace(stderr.String()),
		)
	}
	return strings.TrimSpace(stdout.String()), nil
}
