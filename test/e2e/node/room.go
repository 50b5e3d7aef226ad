// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// clones are the namespaces of a room. All that runs in it ends with its first
// process, which ends with this one; mounts and interfaces go with it.
const clones = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID

// runScenario builds what is missing and has the scenario told in a room for each mode.
func runScenario(ctx context.Context, p stage.Place, _ stage.Way, s *stage.Scenario) error {
	assets, err := programs(ctx, p, s)
	if err != nil {
		return err
	}
	for _, mode := range []string{derived, external} {
		if err := tellInRoom(ctx, p, s.W, mode, assets); err != nil {
			return err
		}
	}
	return nil
}

// tellInRoom has a scenario told by this program in a room, and removes what is left
// outside of it.
func tellInRoom(ctx context.Context, p stage.Place, stdout io.Writer, mode, assets string) (err error) {
	dir := filepath.Join(p.Dir, mode)
	for _, own := range ownDirs() {
		if err := os.MkdirAll(filepath.Join(dir, own), 0o755); err != nil {
			return err
		}
	}
	was, err := saved()
	if err != nil {
		return err
	}
	g, err := newGroups(groupName(dir))
	unmake, failed := mountPoints()
	if err = errors.Join(err, failed); err == nil {
		err = enter(ctx, p, stdout, mode, assets)
	}
	left := errors.Join(g.remove(), unmake(), restore(was))
	if left != nil {
		fmt.Fprintf(stdout, "\nFAILED to clean up: %v\n", left)
	}
	return errors.Join(err, left)
}

// groupName is that of the control groups of a room, which is unique as its
// directory is.
func groupName(dir string) string {
	return filepath.Base(filepath.Dir(dir)) + "-" + filepath.Base(dir)
}

// enter starts this program as the first process of a room.
func enter(ctx context.Context, p stage.Place, stdout io.Writer, mode, assets string) error {
	cmd, err := stage.Again(ctx, "--dir", filepath.Join(p.Dir, mode), "--bin", p.Bin, "--root", p.Root, mode)
	if err != nil {
		return err
	}
	cmd.Env = append(
		os.Environ(),
		assetsEnv+"="+assets,
		"PATH="+os.Getenv("PATH")+":/usr/sbin:/usr/bin:/sbin:/bin",
		"TMPDIR="+p.Dir,
	)
	cmd.Stdout, cmd.Stderr = stdout, stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: clones}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	runtime.LockOSThread() // or it is killed when this thread ends
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the scenario of %s blocks: %w", mode, err)
	}
	return nil
}

// ownDirs are directories of the machine that a room has its own of, by what
// they are called in its directory.
func ownDirs() map[string]string {
	return map[string]string{
		"/run":     "run",
		"/var/lib": "lib",
		"/var/log": "log",
		"/opt/cni": "opt-cni",
		"/etc/cni": "etc-cni",
	}
}

// mountPoints makes those of the machine's directories that it lacks, so that a room can
// mount its own there. remove removes them.
func mountPoints() (remove func() error, err error) {
	var made []string
	remove = func() error {
		var errs []error
		for _, dir := range made {
			errs = append(errs, os.Remove(dir))
		}
		made = nil
		return errors.Join(errs...)
	}
	for dir := range ownDirs() {
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			made = append(made, dir)
		case !errors.Is(err, fs.ErrExist):
			return remove, fmt.Errorf("make a directory for the room's own: %w", err)
		}
	}
	return remove, nil
}

// furnish mounts what is the room's own, and gives it a network: a loopback
// interface, and a pair of others of which one has the node's address.
func furnish(ctx context.Context, dir string) error {
	if os.Getpid() != 1 {
		return errors.New("this is for the program itself: start it without a verb")
	}
	mount := func(source, target, kind string, flags uintptr) error {
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE) // nothing is seen outside
	if err == nil {
		err = mount("", "/", "", unix.MS_REC|unix.MS_SHARED) // and containers see what kubelet mounts
	}
	if err == nil {
		err = mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	}
	for target, own := range ownDirs() {
		if err == nil {
			err = mount(filepath.Join(dir, own), target, "", unix.MS_BIND)
		}
	}
	for path, value := range settings() { // kubelet finds what it wants, and writes nothing
		file := filepath.Join(dir, strings.ReplaceAll(path[1:], "/", "."))
		if err == nil {
			err = os.WriteFile(file, []byte(value+"\n"), 0o644)
		}
		if err == nil {
			err = mount(file, path, "", unix.MS_BIND)
		}
	}
	if err != nil {
		return fmt.Errorf("furnish the room: %w", err)
	}
	if err := connect(); err != nil {
		return err
	}
	return serveClusterIP(ctx)
}

// serveClusterIP does kube-proxy's work for the one Service that there is, that of the
// API server.
func serveClusterIP(ctx context.Context) error {
	rule := "--protocol tcp --destination " + serviceIP + " --dport 443 --jump DNAT --to-destination 127.0.0.1:6443"
	args := append([]string{"--table", "nat", "--append", "OUTPUT"}, strings.Fields(rule)...)
	_, err := output(ctx, exec.CommandContext(ctx, "iptables", args...))
	return err
}

// nodeIP is the node's address, of no network that the configurations have.
const nodeIP = "192.0.2.1"

func connect() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "node0"}, PeerName: "world0"}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkAdd(pair)); err != nil {
		return fmt.Errorf("make the node's interface: %w", err)
	}
	world, err := netlink.LinkByName("world0")
	if err != nil {
		return fmt.Errorf("find world0: %w", err)
	}
	address, err := netlink.ParseAddr(nodeIP + "/24")
	if err != nil {
		return fmt.Errorf("read the node's address: %w", err)
	}
	everything, err := netlink.ParseIPNet("0.0.0.0/0")
	if err != nil {
		return fmt.Errorf("read the node's route: %w", err)
	}
	err = errors.Join(netlink.LinkSetUp(pair), netlink.LinkSetUp(world), netlink.AddrAdd(pair, address))
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: pair.Attrs().Index, Dst: everything})
	}
	if err != nil {
		return fmt.Errorf("give the node its address: %w", err)
	}
	return nil
}
