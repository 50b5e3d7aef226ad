// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// machine holds the programs and rights of this machine; tests replace it.
type machine struct {
	root       bool
	namespaces func() error
	find       func(program string) (string, error)
	systemd    func() bool
	apt        func(ctx context.Context, args ...string) error
}

func thisMachine() machine {
	return machine{
		root: os.Geteuid() == 0, namespaces: tryNamespaces, find: stage.LookPath, apt: stage.AptGet,
		systemd: func() bool {
			_, err := os.Stat("/run/systemd/system")
			return err == nil
		},
	}
}

// need finds the engine, and installs it where that is possible. The error says
// why nothing can be run here.
func (m machine) need(ctx context.Context, stdout io.Writer) (engine string, err error) {
	if !m.root {
		return "", errors.New("this user is not root")
	}
	if err := m.namespaces(); err != nil {
		return "", err
	}
	engine, err = m.find("dockerd")
	if err != nil {
		if err := m.install(ctx, stdout); err != nil {
			return "", err
		}
		if engine, err = m.find("dockerd"); err != nil {
			return "", fmt.Errorf("docker.io is installed and has no dockerd: %w", err)
		}
	}
	if _, err := m.find("docker"); err != nil {
		return "", fmt.Errorf("there is an engine, but no docker to speak to it: %w", err)
	}
	return engine, nil
}

// install installs Debian's package. Where systemd runs the package would start
// an engine for the whole machine, which is not wanted.
func (m machine) install(ctx context.Context, stdout io.Writer) error {
	if _, err := m.find("apt-get"); err != nil {
		return errors.New("there is no dockerd, and no apt-get to install it with")
	}
	if m.systemd() {
		return errors.New(
			"there is no dockerd, and docker.io would start one for the whole machine: install it yourself",
		)
	}
	fmt.Fprintln(stdout, "Installing docker.io ...")
	install := []string{"install", "--yes", "--no-install-recommends", "docker.io"}
	err := m.apt(ctx, install...)
	if err != nil && ctx.Err() == nil && m.apt(ctx, "update") == nil { // the lists may be old
		err = m.apt(ctx, install...)
	}
	if err != nil {
		return fmt.Errorf("there is no dockerd, and it cannot be installed: %w", err)
	}
	return nil
}

// tryNamespaces makes what a room is made of.
func tryNamespaces() error {
	if err := netlab.Try(); err != nil {
		return fmt.Errorf("root may not: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", "--help")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	for _, flag := range clones() {
		cmd.SysProcAttr.Cloneflags |= uintptr(flag)
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("root may not make namespaces for mounts and processes: %w", err)
	}
	return nil
}
