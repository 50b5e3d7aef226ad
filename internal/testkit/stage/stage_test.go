// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	harness := Harness{Name: "harness", Verbs: []string{"run"}}
	opt, err := harness.Parse([]string{"--namespaces", "user", "--bin", "b", "--root=/r", "run"}, io.Discard)
	want := Options{Verb: "run", Way: WayUser, Bin: filepath.Join(here, "b"), Root: "/r"}
	if err != nil || opt != want {
		t.Errorf("%+v, %v; want %+v", opt, err, want)
	}
	for _, args := range []string{"jump", "run fast", "--namespaces=all", "--no-such-flag", "inside", "--dir=d --bin=b inside"} {
		if opt, err := harness.Parse(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s: %+v", args, opt)
		}
	}
}

func TestRunning(t *testing.T) {
	dir := t.TempDir()
	if running, err := Running(dir); err != nil || len(running) > 0 {
		t.Errorf("%q, %v", running, err)
	}
	p, err := Start(exec.Command("sh", "-c", "sleep 60; : "+dir), func(f func() error) error { return f() })
	if err != nil {
		t.Fatal(err)
	}
	if running, err := Running(dir); err != nil || len(running) != 1 {
		t.Errorf("%q, %v", running, err)
	}
	if err := remove(dir); err == nil || !strings.Contains(err.Error(), "still running") {
		t.Errorf("remove while something runs there: %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}

// TestRun runs scenarios without programs.
func TestRun(t *testing.T) {
	failed := errors.New("a step fails")
	for _, c := range []struct {
		name           string
		acts           func(context.Context, Place, Way, *Scenario) error
		code           int
		stdout, stderr string
	}{
		{"well", func(_ context.Context, p Place, _ Way, _ *Scenario) error {
			return os.WriteFile(filepath.Join(p.Dir, "file"), nil, 0o600)
		}, 0, "why: it was asked for\n\n 1. Use the programs in /b.\n\nAll was as it must be", ""},
		{"failing", func(context.Context, Place, Way, *Scenario) error { return failed }, 1, "", "harness: a step fails\n"},
		{"told", func(ctx context.Context, _ Place, _ Way, s *Scenario) error { return s.End(ctx, failed, nil) }, 1, "FAILED in step 1: a step fails", ""},
	} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		var stdout, stderr strings.Builder
		harness := Harness{Name: "harness", Socket: "s", Title: func(_ Way, why string) string { return "why: " + why }, Scenario: c.acts}
		code := harness.Run(t.Context(), []string{"--namespaces=none", "--root=/r", "--bin=/b"}, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || stderr.String() != c.stderr {
			t.Errorf("%s: exit code %d: %s%s", c.name, code, &stdout, &stderr)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", c.name, left, err)
		}
	}
}

func TestDirLeavesRoomForTheSocket(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{t.TempDir(), long} {
		t.Setenv("TMPDIR", base)
		dir, err := newDir("play", SocketName)
		if err != nil {
			t.Fatal(err)
		}
		if socket := filepath.Join(dir, SocketName); len(socket) > MaxSocketPath {
			t.Errorf("%s has %d bytes", socket, len(socket))
		}
		if err := remove(dir); err != nil {
			t.Error(err)
		}
	}
}

func TestScenarioPrintsItsSteps(t *testing.T) {
	var out strings.Builder
	s := &Scenario{W: &out, steps: 8}
	s.Step("Do %s.", "this")
	s.Say("\na\n\n  b 100%%\n")
	s.Step("Do that.")
	if want := "\n 9. Do this.\n    a\n\n      b 100%\n\n10. Do that.\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestVerifyHeld(t *testing.T) {
	p := &Pod{Name: "pod-1", Address: netip.MustParsePrefix("10.1.1.2/24")}
	good := localapi.Lease{IP: "10.1.1.2", State: "held", Purpose: "pod", Network: networkName, ContainerID: p.ContainerID(),
		IfName: PodInterface, PodName: "pod-1", PodNamespace: PodNamespace, Since: time.Now(), Generation: 7}
	infra := localapi.Lease{IP: "10.1.1.1", State: "held", Purpose: "infra"}
	change := func(f func(*localapi.Lease)) localapi.Lease { l := good; f(&l); return l }
	if err := VerifyHeld([]localapi.Lease{infra, good}, []*Pod{p}, false); err != nil {
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
		if err := VerifyHeld(leases, []*Pod{p}, false); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestVerifyAdded(t *testing.T) {
	subnet, first := netip.MustParsePrefix("10.1.1.0/24"), netip.MustParseAddr("10.1.1.1")
	other := &Pod{Address: netip.MustParsePrefix("10.1.1.9/24")}
	for _, c := range []struct {
		address, gateway string
		good             bool
	}{
		{"10.1.1.2/24", "10.1.1.1", true},
		{"10.1.1.2/24", "10.1.1.3", false},
		{"10.1.1.2/32", "10.1.1.1", true},
		{"10.1.2.2/24", "10.1.1.1", false},
		{"10.1.1.0/24", "10.1.1.1", false},
		{"10.1.1.1/24", "10.1.1.1", false},
		{"10.1.1.9/24", "10.1.1.1", false},
	} {
		p := &Pod{Address: netip.MustParsePrefix(c.address), Gateway: netip.MustParseAddr(c.gateway)}
		if err := p.VerifyAdded(subnet, first, []*Pod{other}); (err == nil) != c.good {
			t.Errorf("%s, gateway %s: %v", c.address, c.gateway, err)
		}
	}
}

// TestSend talks over the loopback interface, without any namespace.
func TestSend(t *testing.T) {
	here := func(f func() error) error { return f() }
	lo := netip.MustParseAddr("127.0.0.1")
	for _, protocol := range []string{"udp", "tcp"} {
		x, err := Send(t.Context(), protocol, End{"a", lo, here}, End{"b", lo, here})
		if err != nil || x.Heard != "hello, b" || x.Answer != "hello back, a" || x.Seen.Addr() != lo {
			t.Errorf("%s: %+v, %v", protocol, x, err)
		}
		if _, err = Send(t.Context(), protocol, End{"a", netip.MustParseAddr("127.0.0.2"), here}, End{"b", lo, here}); err == nil || !strings.Contains(err.Error(), "it came from 127.0.0.1") {
			t.Errorf("%s from another sender: %v", protocol, err)
		}
		gone := errors.New("no such namespace")
		_, err = Send(t.Context(), protocol, End{"a", lo, func(func() error) error { return gone }}, End{"b", lo, here})
		if !errors.Is(err, gone) {
			t.Errorf("%s from nowhere: %v", protocol, err)
		}
	}
}

func TestProcess(t *testing.T) {
	here := func(f func() error) error { return f() }
	for how, begin := range map[string]func(*exec.Cmd) (*Process, error){
		"started": func(cmd *exec.Cmd) (*Process, error) { return Start(cmd, here) },
		"followed": func(cmd *exec.Cmd) (*Process, error) {
			if err := cmd.Start(); err != nil {
				return nil, err
			}
			return Follow(cmd), nil
		},
	} {
		t.Run(how, func(t *testing.T) { endProcesses(t, begin) })
	}
	if _, err := Start(exec.Command("/no/such/program"), here); err == nil {
		t.Error("start of nothing: no error")
	}
	gone := errors.New("no such namespace")
	if _, err := Start(exec.Command("true"), func(func() error) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("start nowhere: %v", err)
	}
}

// endProcesses ends processes in every way.
func endProcesses(t *testing.T, begin func(*exec.Cmd) (*Process, error)) {
	shell := func(script string) *Process {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdout = w
		p, err := begin(cmd)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = r.Read(make([]byte, 1)) // it has come to its echo
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if err := shell("trap 'exit 0' TERM; echo; while :; do sleep 0.01; done").Stop(time.Minute); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := shell("echo; exec sleep 60").Halt(time.Minute); err != nil {
		t.Errorf("halt: %v", err)
	}
	if err := shell("trap '' TERM; echo; exec sleep 60").Stop(time.Millisecond); err == nil {
		t.Error("stop of one that does not stop: no error")
	}
	if err := shell("echo; exec sleep 60").Kill(); err != nil {
		t.Errorf("kill: %v", err)
	}
	p := shell("echo; exit 3")
	<-p.done
	if err := p.Halt(time.Minute); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("halt of one that has ended: %v", err)
	}
}

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	want := filepath.Join(dir, "cadastre-look-path")
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if path, err := LookPath("cadastre-look-path"); err != nil || path != want {
		t.Errorf("%s, %v", path, err)
	}
	if path, err := LookPath("cadastre-no-such-program"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%s, %v", path, err)
	}
	roots, _ := filepath.Glob("/usr/sbin/ldconfig") // what every Linux has, if its root's programs are there
	for _, want := range roots {
		if path, err := LookPath("ldconfig"); err != nil || path != want {
			t.Errorf("%s, %v", path, err)
		}
	}
}

func TestAptGet(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$DEBIAN_FRONTEND $*\" = 'noninteractive --quiet install --yes x' ] && exit\necho Reading; echo 'E: not so' >&2; echo; exit 100\n"
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if err := AptGet(t.Context(), "install", "--yes", "x"); err != nil {
		t.Error(err)
	}
	if err := AptGet(t.Context(), "update"); err == nil || err.Error() != "apt-get update: exit status 100: E: not so" {
		t.Errorf("%v", err)
	}
}

func TestAwaitAnAgentThatEnds(t *testing.T) {
	agent := Agent{Place: Place{Dir: t.TempDir()}}
	p, err := Start(exec.Command("sh", "-c", "exit 4"), func(f func() error) error { return f() })
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Await(t.Context(), p); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.done = make(chan struct{}) // as if it went on
	if err := agent.Await(ctx, p); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("%v", err)
	}
}

func TestTalk(t *testing.T) {
	here := func(f func() error) error { return f() }
	lo := netip.MustParseAddr("127.0.0.1")
	start := func(exchanges uint64) *Talk {
		t.Helper()
		talk, err := NewTalk(End{"a", lo, here}, End{"b", lo, here})
		if err != nil {
			t.Fatal(err)
		}
		for talk.Exchanges() < exchanges && talk.Err() == nil {
			runtime.Gosched()
		}
		return talk
	}
	talk := start(3)
	if err := errors.Join(talk.Err(), talk.End()); err != nil {
		t.Error(err)
	}
	for what, disturb := range map[string]func(*Talk) error{
		"closed network connection": func(talk *Talk) error { return talk.answerer.Close() },
		"came back, not": func(talk *Talk) error {
			_, err := talk.answerer.WriteTo(make([]byte, 8), talk.caller.LocalAddr()) // the number is 0
			return err
		},
	} {
		talk := start(1)
		if err := disturb(talk); err != nil {
			t.Fatal(err)
		}
		<-talk.done
		if err := talk.Err(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want: %s", err, what)
		}
		if talk.End() == nil {
			t.Errorf("%s: the end says nothing of it", what)
		}
	}
	gone := errors.New("no such namespace")
	nowhere := End{"a", lo, func(func() error) error { return gone }}
	for _, ends := range [][2]End{{nowhere, {"b", lo, here}}, {{"b", lo, here}, nowhere}} {
		if _, err := NewTalk(ends[0], ends[1]); !errors.Is(err, gone) {
			t.Errorf("talk with nowhere: %v", err)
		}
	}
}
