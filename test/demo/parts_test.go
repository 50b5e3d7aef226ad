// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestCommandLine(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	opt, err := parse([]string{"--namespaces", "user", "--bin", "b", "--root=/r", "run"}, io.Discard)
	want := options{verb: "run", way: wayUser, bin: filepath.Join(here, "b"), root: "/r"}
	if err != nil || opt != want {
		t.Errorf("%+v, %v; want %+v", opt, err, want)
	}
	for _, args := range []string{"jump", "run fast", "--namespaces=all", "--no-such-flag", "inside", "--dir=d --bin=b inside"} {
		var stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), io.Discard, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%s: exit code %d, %s", args, code, &stderr)
		}
	}
	if code := run(t.Context(), []string{"--help"}, io.Discard, io.Discard); code != 0 {
		t.Errorf("--help: exit code %d", code)
	}
}

func TestDirLeavesRoomForTheSocket(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{t.TempDir(), long} {
		t.Setenv("TMPDIR", base)
		dir, err := newDir()
		if err != nil {
			t.Fatal(err)
		}
		if socket := (place{dir: dir}).socket(); len(socket) > maxSocketPath {
			t.Errorf("%s has %d bytes", socket, len(socket))
		}
		if err := remove(dir); err != nil {
			t.Error(err)
		}
	}
	opt := options{root: "/r", bin: "/b", dir: long}
	if err := foreground(t.Context(), opt, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("a socket that does not fit: %v", err)
	}
}

func TestStory(t *testing.T) {
	var out strings.Builder
	s := &story{w: &out, steps: 8}
	s.step("Do %s.", "this")
	s.say("\na\n\n  b 100%%\n")
	s.step("Do that.")
	if want := "\n 9. Do this.\n    a\n\n      b 100%\n\n10. Do that.\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestVerifyHeld(t *testing.T) {
	p := &pod{name: "pod-1", address: netip.MustParsePrefix("10.1.1.2/24")}
	good := localapi.Lease{IP: "10.1.1.2", State: "held", Purpose: "pod", Network: networkName, ContainerID: p.containerID(),
		IfName: podInterface, PodName: "pod-1", PodNamespace: podNamespace, Since: time.Now(), Generation: 7}
	infra := localapi.Lease{IP: "10.1.1.1", State: "held", Purpose: "infra"}
	change := func(f func(*localapi.Lease)) localapi.Lease { l := good; f(&l); return l }
	if err := verifyHeld([]localapi.Lease{infra, good}, []*pod{p}); err != nil {
		t.Error(err)
	}
	for name, leases := range map[string][]localapi.Lease{
		"none":          {infra},
		"twice":         {good, good},
		"cooling":       {change(func(l *localapi.Lease) { l.State = "cooling" })},
		"another pod's": {change(func(l *localapi.Lease) { l.PodName = "pod-2" })},
		"the node's":    {change(func(l *localapi.Lease) { l.Purpose = "infra" })},
		"a stranger":    {good, change(func(l *localapi.Lease) { l.IP = "10.1.1.3" })},
	} {
		if err := verifyHeld(leases, []*pod{p}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestVerifyAdded(t *testing.T) {
	d := &demo{plan: plan{Pods: netip.MustParsePrefix("10.1.1.0/24"), Gateway: netip.MustParseAddr("10.1.1.1")}}
	other := &pod{address: netip.MustParsePrefix("10.1.1.9/24")}
	for _, c := range []struct {
		address, gateway string
		good             bool
	}{
		{"10.1.1.2/24", "10.1.1.1", true},
		{"10.1.1.2/24", "10.1.1.3", false},
		{"10.1.1.2/25", "10.1.1.1", false},
		{"10.1.2.2/24", "10.1.1.1", false},
		{"10.1.1.0/24", "10.1.1.1", false},
		{"10.1.1.1/24", "10.1.1.1", false},
		{"10.1.1.9/24", "10.1.1.1", false},
	} {
		p := &pod{address: netip.MustParsePrefix(c.address), gateway: netip.MustParseAddr(c.gateway)}
		if err := d.verifyAdded(p, []*pod{other}); (err == nil) != c.good {
			t.Errorf("%s, gateway %s: %v", c.address, c.gateway, err)
		}
	}
}

// TestSend talks over the loopback interface, without any namespace.
func TestSend(t *testing.T) {
	here := func(f func() error) error { return f() }
	lo := netip.MustParseAddr("127.0.0.1")
	for _, protocol := range []string{"udp", "tcp"} {
		x, err := send(t.Context(), protocol, end{"a", lo, here}, end{"b", lo, here})
		if err != nil || x.heard != "hello, b" || x.answer != "hello back, a" || x.seen.Addr() != lo {
			t.Errorf("%s: %+v, %v", protocol, x, err)
		}
		if _, err = send(t.Context(), protocol, end{"a", netip.MustParseAddr("127.0.0.2"), here}, end{"b", lo, here}); err == nil || !strings.Contains(err.Error(), "it came from 127.0.0.1") {
			t.Errorf("%s from somebody else: %v", protocol, err)
		}
		gone := errors.New("no such namespace")
		_, err = send(t.Context(), protocol, end{"a", lo, func(func() error) error { return gone }}, end{"b", lo, here})
		if !errors.Is(err, gone) {
			t.Errorf("%s from nowhere: %v", protocol, err)
		}
	}
}

func TestProcess(t *testing.T) {
	here := func(f func() error) error { return f() }
	shell := func(script string) *process {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdout = w
		p, err := start(cmd, here)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = r.Read(make([]byte, 1)) // it has come to its echo
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if err := shell("trap 'exit 0' TERM; echo; while :; do sleep 0.01; done").stop(time.Minute); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := shell("echo; exec sleep 60").halt(time.Minute); err != nil {
		t.Errorf("halt: %v", err)
	}
	if err := shell("trap '' TERM; echo; exec sleep 60").stop(time.Millisecond); err == nil {
		t.Error("stop of one that does not stop: no error")
	}
	if err := shell("echo; exec sleep 60").kill(); err != nil {
		t.Errorf("kill: %v", err)
	}
	p := shell("echo; exit 3")
	<-p.done
	if err := p.halt(time.Minute); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("halt of one that has ended: %v", err)
	}
	if _, err := start(exec.Command("/no/such/program"), here); err == nil {
		t.Error("start of nothing: no error")
	}
	gone := errors.New("no such namespace")
	if _, err := start(exec.Command("true"), func(func() error) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("start nowhere: %v", err)
	}
}

func TestWaitReadyOfAnAgentThatEnds(t *testing.T) {
	p, err := start(exec.Command("sh", "-c", "exit 4"), func(f func() error) error { return f() })
	if err != nil {
		t.Fatal(err)
	}
	if err := waitReady(t.Context(), p, filepath.Join(t.TempDir(), "s")); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.done = make(chan struct{}) // as if it went on
	if err := waitReady(ctx, p, filepath.Join(t.TempDir(), "s")); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("%v", err)
	}
}
