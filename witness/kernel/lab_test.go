// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/witness/kernel"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// need skips a test on a machine that gives no network namespaces.
func need(t testing.TB) {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a namespace in the part of a host, with a folder of files of namespaces.
type node struct {
	t   testing.TB
	ns  *netlab.Namespace
	dir string
}

func newNode(t testing.TB) *node {
	t.Helper()
	need(t)
	n := &node{t: t, ns: newNamespace(t), dir: t.TempDir()}
	return n
}

func newNamespace(t testing.TB) *netlab.Namespace {
	t.Helper()
	ns, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// do calls f in the host's namespace, on one thread.
func (n *node) do(f func() error) {
	n.t.Helper()
	must(n.t, n.ns.Do(f))
}

// named gives a namespace a file, as runtimes do.
func (n *node) named(ns *netlab.Namespace, name string) string {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	bind(n.t, ns.Path(), path)
	return path
}

func bind(t testing.TB, from, path string) {
	t.Helper()
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, unix.Mount(from, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unbind(path) })
}

func unbind(path string) error {
	return errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path))
}

// pod makes a namespace with a link to the host, and its file.
func (n *node) pod(name string, addrs ...string) (*netlab.Namespace, string) {
	n.t.Helper()
	ns := newNamespace(n.t)
	n.connect(ns, name, addrs...)
	return ns, n.named(ns, name)
}

// connect lays a pair of links between the host and a namespace.
func (n *node) connect(ns *netlab.Namespace, host string, addrs ...string) {
	n.t.Helper()
	n.do(func() error { return connect(host, "eth0", ns) })
	must(n.t, ns.Do(func() error { return addresses("eth0", addrs...) }))
}

// connect lays a pair of links between the namespace of the thread and another one.
func connect(near, far string, to *netlab.Namespace) error {
	file, err := os.Open(to.Path())
	if err != nil {
		return err
	}
	defer file.Close()
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far, PeerNamespace: netlink.NsFd(file.Fd())})
}

// move moves a link of the thread's namespace into another one.
func move(name string, to *netlab.Namespace) error {
	file, err := os.Open(to.Path())
	if err != nil {
		return err
	}
	defer file.Close()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetNsFd(link, int(file.Fd()))
}

// addresses sets a link up and gives it addresses.
func addresses(name string, addrs ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		ip, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		ip.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, ip); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, name, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// process starts a process of a user in a namespace, the address of which is on lo, and
// returns its PID.
func (n *node) process(ns *netlab.Namespace, addr string, uid uint32) int {
	n.t.Helper()
	must(n.t, ns.Do(func() error { return addresses("lo", addr) }))
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return n.start(ns, cmd)
}

// userNamespace starts a process in a user and network namespace of its own.
func (n *node) userNamespace() int {
	n.t.Helper()
	cmd := exec.Command("cat")
	netlab.Enter(cmd)
	return n.start(n.ns, cmd)
}

// start starts a process that ends with this one, which holds the other end of its input.
func (n *node) start(ns *netlab.Namespace, cmd *exec.Cmd) int {
	n.t.Helper()
	input, err := cmd.StdinPipe()
	must(n.t, err)
	must(n.t, ns.Do(cmd.Start))
	n.t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// removal returns a function that waits for the removal of a link of the host.
func (n *node) removal(ctx context.Context, name string) func() error {
	n.t.Helper()
	var socket *nl.NetlinkSocket
	n.do(func() (err error) {
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
		return err
	})
	must(n.t, socket.SetReceiveTimeout(&unix.Timeval{Sec: 60})) // a broken reader keeps it for ever
	return func() error {
		defer socket.Close()
		for ctx.Err() == nil {
			messages, _, err := socket.Receive()
			if err != nil {
				return err
			}
			for _, m := range messages {
				if m.Header.Type == unix.RTM_DELLINK && bytes.Contains(m.Data, append([]byte(name), 0)) {
					return nil
				}
			}
		}
		return ctx.Err()
	}
}

// reader returns a reader of this node only.
func (n *node) reader() *kernel.Reader {
	return kernel.New(kernel.Options{Host: n.ns.Path(), Dirs: []string{n.dir}, NoProcesses: true})
}
