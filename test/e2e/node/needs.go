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
	"slices"
	"strings"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/engines/containerd"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
)

// machine holds the programs and rights of this machine; tests replace it.
type machine struct {
	root       bool
	namespaces func() error
	missing    func() []string // packages
	aptGet     bool
	systemd    bool
	apt        func(ctx context.Context, args ...string) error
}

func thisMachine() machine {
	_, apt := stage.LookPath("apt-get")
	_, err := os.Stat("/run/systemd/system")
	return machine{
		root:       os.Geteuid() == 0,
		namespaces: tryNamespaces,
		missing:    missing,
		aptGet:     apt == nil,
		systemd:    err == nil,
		apt:        stage.AptGet,
	}
}

// need finds the packages, and installs them where that is possible. The error
// says why nothing can be run here.
func (m machine) need(ctx context.Context, stdout io.Writer) error {
	if !m.root {
		return errors.New("this user is not root")
	}
	if err := m.namespaces(); err != nil {
		return err
	}
	lack := m.missing()
	if len(lack) == 0 {
		return nil
	}
	names := strings.Join(lack, ", ")
	if !m.aptGet {
		return fmt.Errorf("these packages are missing, and there is no apt-get to install them with: %s", names)
	}
	if m.systemd && slices.Contains(lack, "containerd") {
		return errors.New(
			"there is no containerd, and its package would start one for the whole machine: install it yourself",
		)
	}
	fmt.Fprintf(stdout, "Installing %s ...\n", names)
	install := append([]string{"install", "--yes", "--no-install-recommends"}, lack...)
	err := m.apt(ctx, install...)
	if err != nil && ctx.Err() == nil && m.apt(ctx, "update") == nil { // the lists may be old
		err = m.apt(ctx, install...)
	}
	if err != nil {
		return fmt.Errorf("these packages are missing, and cannot be installed: %s: %w", names, err)
	}
	if lack := m.missing(); len(lack) > 0 {
		return fmt.Errorf("these packages are installed, and have not what they should: %s", strings.Join(lack, ", "))
	}
	return nil
}

// pluginDir is the folder of CNI's plugins in Debian's package.
const pluginDir = "/usr/lib/cni/"

// plugins returns those that a runtime needs beside ours.
func plugins() []string { return []string{"loopback", conflist.PortMap} }

// missing are the packages of which something is not there.
func missing() (all []string) {
	lacks := func(pkg string, err error) {
		if err != nil && !slices.Contains(all, pkg) {
			all = append(all, pkg)
		}
	}
	for _, x := range []struct{ pkg, program string }{
		{"containerd", "containerd"}, {"containerd", "ctr"}, {"containerd", "runc"}, {"iptables", "iptables"}, {"conntrack", "conntrack"},
	} {
		_, err := stage.LookPath(x.program)
		lacks(x.pkg, err)
	}
	for _, plugin := range plugins() {
		_, err := os.Stat(pluginDir + plugin)
		lacks("containernetworking-plugins", err)
	}
	_, err := containerd.StaticBusybox()
	lacks("busybox-static", err)
	return all
}

// tryNamespaces makes what a room is made of, and looks for control groups.
func tryNamespaces() error {
	if err := netlab.Try(); err != nil {
		return fmt.Errorf("root may not: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", "--help")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: clones}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("root may not make namespaces for mounts and processes: %w", err)
	}
	g, err := newGroups("cadastre-e2e-try")
	return errors.Join(err, g.remove())
}
