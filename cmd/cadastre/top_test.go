// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// busyAgent is an agent that has answered more requests in each second of clock.
func busyAgent(t *testing.T, clock func() time.Time) *fakeAgent {
	agent := newAgent(t)
	agent.json(localapi.PathMapFindings, localapi.MapFindings{
		Report: &localapi.CheckReport{
			Findings:  []localapi.Finding{{Number: "K103", Name: "leaked"}, {Number: "K103", Name: "leaked"}, {Number: "K101", Name: "double"}},
			Witnesses: []localapi.Witness{{Name: "kernel", State: "present"}},
		},
		Cluster: &localapi.ClusterCheck{Total: 3},
	})
	agent.mux.HandleFunc(localapi.PathMetrics, func(w http.ResponseWriter, _ *http.Request) {
		s := clock().Sub(noon()).Seconds()
		fmt.Fprintf(w, `# TYPE cadastre_cni_requests_total counter
cadastre_cni_requests_total{command="ADD",code="0"} %v
cadastre_cni_requests_total{command="ADD",code="11"} %v
cadastre_cni_requests_total{command="DEL",code="0"} %v
# TYPE cadastre_store_commit_duration_seconds histogram
cadastre_store_commit_duration_seconds_bucket{outcome="ok",le="+Inf"} %v
cadastre_store_commit_duration_seconds_sum{outcome="ok"} %v
cadastre_store_commit_duration_seconds_count{outcome="ok"} %v
`, 100+12.5*s, 1+0.5*s, 200*s, 40*s, 0.08*s, 40*s)
	})
	return agent
}

// topCall runs top. Each pause takes two seconds of the clock, and the last one ends it.
func topCall(t *testing.T, pauses int, tty terminal, env map[string]string, args ...string) outcome {
	t.Helper()
	now := noon()
	agent := busyAgent(t, func() time.Time { return now })
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(""), &out, &errs, func(key string) string {
		if key == "CADASTRE_SOCKET" {
			return agent.socket
		}
		return env[key]
	})
	a.now = func() time.Time { return now }
	a.terminal = func(io.Writer) terminal { return tty }
	ctx, cancel := context.WithCancel(t.Context())
	a.pause = func(_ context.Context, d time.Duration) error {
		if pauses--; pauses < 0 {
			cancel()
			return errors.New("interrupted")
		}
		now = now.Add(d)
		return nil
	}
	code := a.run(ctx, append([]string{"top"}, args...))
	return outcome{code, out.String(), errs.String()}
}

func TestTopOnce(t *testing.T) {
	got := topCall(t, 1, terminal{width: 80, height: 24}, nil, "--once")
	expectText(t, got.err, "")
	expectText(t, got.out, `
node        node-5, ID 5; ready; 2026-03-04 12:00:02
event loop  healthy; 42 events processed, 1 queued
requests    ADD 12.5/s, DEL 200/s, failed 0.5/s; events 0.0/s
commits     40.0/s, 2ms each, failed 0.0/s
findings    3 of this node, 3 of the cluster: K101 double, K103 leaked

POOL     FAMILY  HELD  INFRA  COOLING  QUARANT.  FREE  USED
default  ipv4    12    2      3        0         237   #......... 15/252

NODE    ID  STATE     LEASES  SEEN   USED
node-5  5   self      13      5s     #......... 12/252
node-6  6   held      0       never  0
node-7  7   released  0       -      0
`)
	for _, line := range strings.Split(got.out, "\n") {
		NewWithT(t).Expect(len(line)).To(BeNumerically("<=", 80), line)
	}
}

// Without a terminal the screens follow each other, without bars and without codes.
func TestTopWithoutATerminal(t *testing.T) {
	g := NewWithT(t)
	got := topCall(t, 2, terminal{width: 80, height: 24}, nil)
	g.Expect(got.code).To(Equal(0), got.err)
	g.Expect(strings.Count(got.out, "node        node-5")).To(Equal(3))
	g.Expect(got.out).To(ContainSubstring("requests    -\n"), "the first screen has no rates")
	g.Expect(got.out).To(ContainSubstring("ADD 12.5/s"))
	g.Expect(got.out).NotTo(ContainSubstring("\x1b"))
	g.Expect(got.out).NotTo(ContainSubstring("#"))
}

// In a terminal a screen replaces the last one, and fits.
func TestTopInATerminal(t *testing.T) {
	g := NewWithT(t)
	got := topCall(t, 1, terminal{is: true, width: 40, height: 10}, map[string]string{"LANG": "C.UTF-8"})
	g.Expect(got.code).To(Equal(0), got.err)
	screens := strings.Split(got.out, cursorHome)
	g.Expect(screens).To(HaveLen(3))
	g.Expect(screens[0]).To(Equal(clearAll))
	for _, screen := range screens[1:] {
		g.Expect(screen).To(HaveSuffix(clearRest))
		lines := strings.Split(strings.TrimSuffix(screen, clearRest), clearLine+"\r\n")
		g.Expect(len(lines)).To(Equal(10), "nine lines, and an empty rest")
		g.Expect(lines[8]).To(Equal("5 more lines"))
		for _, line := range lines {
			g.Expect(len([]rune(line))).To(BeNumerically("<=", 40), line)
		}
	}
	got = topCall(t, 1, terminal{is: true, width: 80, height: 40}, map[string]string{"LANG": "C.UTF-8"})
	g.Expect(got.out).To(ContainSubstring("█░░░░░░░░░ 15/252"))
	got = topCall(t, 1, terminal{is: true, width: 80, height: 40}, map[string]string{"LANG": "C.UTF-8"}, "--no-bars")
	g.Expect(got.out).NotTo(ContainSubstring("█"))
}

func TestTopForPrograms(t *testing.T) {
	g := NewWithT(t)
	var v topView
	got := topCall(t, 1, terminal{}, nil, "--once", "-o", "json")
	g.Expect(json.Unmarshal([]byte(got.out), &v)).To(Succeed(), got.out)
	g.Expect(*v.Rates).To(Equal(topRates{Adds: 12.5, Dels: 200, Failed: 0.5, Commits: 40, CommitSeconds: 0.002}))
	g.Expect(v.Findings.Names).To(Equal([]string{"K101 double", "K103 leaked"}))
	got = topCall(t, 2, terminal{}, nil, "-o", "json")
	screens := 0
	for d := json.NewDecoder(strings.NewReader(got.out)); d.Decode(&v) == nil; {
		screens++
	}
	g.Expect(screens).To(Equal(3))
	g.Expect(topCall(t, 1, terminal{}, nil, "-o", "yaml").out).To(HavePrefix("---\n"))
	g.Expect(topCall(t, 1, terminal{}, nil, "--once", "-o", "name").out).To(Equal("default\n"))
}

// An agent that goes away is waited for; with --once, or if there was none, it is an error.
func TestTopWaitsForTheAgent(t *testing.T) {
	g := NewWithT(t)
	g.Expect(call(t, noListener(t), "", "top").code).To(Equal(exitNoAgent))
	agent := newAgent(t)
	socket, next := agent.socket, []string{"/none.sock", agent.socket}
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(""), &out, &errs, func(string) string { return socket })
	ctx, cancel := context.WithCancel(t.Context())
	a.pause = func(context.Context, time.Duration) error {
		if len(next) == 0 {
			cancel()
			return errors.New("interrupted")
		}
		socket, next = next[0], next[1:]
		return nil
	}
	g.Expect(a.run(ctx, []string{"top"})).To(Equal(0))
	g.Expect(out.String()).To(ContainSubstring("no agent answers at /none.sock"))
	g.Expect(strings.Count(out.String(), "requests    -\n")).To(Equal(2), "before, and after it is back")
}

// Rates are not made of the counters of two runs of an agent.
func TestRatesEndWithTheRun(t *testing.T) {
	g := NewWithT(t)
	x := &sample{at: noon(), counters: counters{adds: 100, started: noon()}}
	y := &sample{at: noon().Add(time.Second), counters: counters{adds: 110, started: noon()}}
	g.Expect(ratesOf(x, y).Adds).To(Equal(10.0))
	g.Expect(ratesOf(x, x)).To(BeNil())
	y.counters.started = noon().Add(time.Millisecond)
	g.Expect(ratesOf(x, y)).To(BeNil())
}
