// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.fd.io/govpp"
	"go.fd.io/govpp/api"
	"go.fd.io/govpp/core"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// answerTime limits the wait for a reply, and for the kernel to remove links.
const answerTime = 20 * time.Second

// Running is a VPP that another program has started, for one test at a time. At the end of the
// test, it has the objects that it had before, or the test fails.
type Running struct {
	t         testing.TB
	socket    string
	namespace *netlab.Namespace
	conn      *core.Connection
	before    *inventory
	links     []string // of the kernel, before the test
	made      []string // links of the kernel that AddLink has made
}

// Attach returns the VPP at VPP_API_SOCKET, nil if that is not set.
func Attach(t testing.TB) *Running {
	t.Helper()
	path := os.Getenv(SocketEnv)
	if path == "" {
		return nil
	}
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process can make no network namespaces: %v", err)
	}
	lock(t, path)
	r := &Running{t: t, socket: path}
	var err error
	if r.namespace, err = namespaceOf(path); err != nil {
		t.Fatalf("find the network namespace of the VPP at %s: %v", path, err)
	}
	t.Cleanup(func() { _ = r.namespace.Close() })
	if r.conn, err = govpp.Connect(path); err != nil {
		t.Fatalf("connect to VPP at %s: %v", path, err)
	}
	t.Cleanup(r.conn.Disconnect)
	r.links, r.before = r.linkNames(), r.read()
	for _, line := range r.before.lines() {
		if strings.Contains(line, `"cadastre:`) {
			t.Fatalf("VPP at %s has an object of an agent: %s: want one that no agent uses", path, line)
		}
	}
	t.Cleanup(r.restore)
	return r
}

// lock keeps other tests from the VPP at a socket until the end of the test: go test runs the
// tests of several packages at once.
func lock(t testing.TB, socket string) {
	t.Helper()
	file, err := os.OpenFile(socket+".test", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatalf("lock the VPP at %s: %v", socket, err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", file.Name(), err)
	}
}

// namespaceOf returns the network namespace of the process that listens on a socket. It must
// not be that of this process: tests make links and routes in it.
func namespaceOf(socket string) (*netlab.Namespace, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/proc/%d/ns/net", peer.Pid)
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	theirs, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if os.SameFile(own, theirs) {
		return nil, fmt.Errorf("process %d is in that of the test: want VPP in a namespace of its own", peer.Pid)
	}
	return netlab.Open(path)
}

// Socket returns the path of the API socket.
func (r *Running) Socket() string { return r.socket }

// Namespace returns the network namespace of VPP.
func (r *Running) Namespace() *netlab.Namespace { return r.namespace }

// Connection returns a connection to VPP, which ends with the test.
func (r *Running) Connection() api.Connection { return r.conn }

// AddLink makes a link in the namespace of VPP until the end of the test.
func (r *Running) AddLink(name string) {
	r.t.Helper()
	if slices.Contains(r.links, name) {
		r.t.Fatalf("make link %s in the namespace of VPP: it has one already: want one without", name)
	}
	r.must(r.namespace.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"})
	}))
	r.made = append(r.made, name)
}

func (r *Running) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// linkNames returns the kernel's links in the namespace of VPP.
func (r *Running) linkNames() (names []string) {
	r.t.Helper()
	r.must(r.namespace.Do(func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		return err
	}))
	slices.Sort(names)
	return names
}

// restore removes what VPP and its namespace did not have before, and compares.
func (r *Running) restore() {
	r.remove(r.read())
	if before, after := r.before.lines(), r.read().lines(); !slices.Equal(before, after) {
		r.t.Errorf("VPP at %s is not as before:\n%s\nbefore:\n%s",
			r.socket, strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	r.must(r.namespace.Do(func() error {
		for _, name := range r.made {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkDel(l)
			}
			if _, gone := errors.AsType[netlink.LinkNotFoundError](err); err != nil && !gone {
				return fmt.Errorf("remove link %s: %w", name, err)
			}
		}
		return nil
	}))
	// The links of a pod go with its namespace, a while after that.
	deadline := time.Now().Add(answerTime)
	for !slices.Equal(r.linkNames(), r.links) {
		if time.Now().After(deadline) {
			r.t.Errorf("the namespace of VPP has the links %v: want %v", r.linkNames(), r.links)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// do sends a request that VPP must accept, and returns its reply.
func (r *Running) do(request api.Message) api.Message {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	reply, number, err := Ask(ctx, r.conn, request)
	if err != nil || number != 0 {
		r.t.Errorf("%s %v: %v, %v", request.GetMessageName(), request, api.RetvalToVPPApiError(number), err)
	}
	return reply
}

// all sends a request for details, and returns those of one type.
func all[T api.Message](r *Running, request api.Message) []T {
	r.t.Helper()
	found, err := details[T](r.conn, request)
	r.must(err)
	return found
}
