// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// tty collects what the program prints on standard error.
type tty struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *tty) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(b)
}

func (t *tty) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// last returns the last line that was drawn.
func (t *tty) last() string {
	_, line, _ := strings.Cut(t.String(), "\r")
	if i := strings.LastIndex(line, "\r"); i >= 0 {
		line = line[i+1:]
	}
	return line
}

// onTerminal runs the program with standard error as a terminal of 80 columns.
func onTerminal(t *testing.T, socket string, errs *tty, args ...string) outcome {
	t.Helper()
	var out bytes.Buffer
	a := newApp(strings.NewReader(""), &out, errs, func(key string) string {
		return map[string]string{"CADASTRE_SOCKET": socket}[key]
	})
	a.terminal = func(w io.Writer) terminal {
		return terminal{is: w == io.Writer(errs), width: 80, height: 24}
	}
	code := a.run(t.Context(), args)
	return outcome{code, out.String(), errs.String()}
}

// A backup shows its bytes, rate and remaining time while it goes on, and nothing of it stays.
func TestProgressOfABackup(t *testing.T) {
	g := NewWithT(t)
	agent, errs, dir := bareAgent(t), &tty{}, t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, databaseName), make([]byte, 4<<20), 0o600)).To(Succeed())
	agent.json(localapi.PathStatus, localapi.Status{StateDir: dir})
	agent.mux.HandleFunc(localapi.PathBackup, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", localapi.TrailerBytes)
		defer w.Header().Set(localapi.TrailerBytes, "4194304")
		_, _ = w.Write(make([]byte, 1<<20))
		w.(http.Flusher).Flush()
		g.Eventually(errs.last, time.Minute).Should(
			MatchRegexp(`^backup: copy 1\.0 MiB of 4\.0 MiB, [0-9.]+ [KM]iB/s, [0-9]+s left\x1b\[K$`))
		_, _ = w.Write(make([]byte, 3<<20))
	})
	got := onTerminal(t, agent.socket, errs, "backup", filepath.Join(dir, "copy"))
	g.Expect(got.code).To(Equal(0), got.err)
	g.Expect(got.out).To(HaveSuffix("copy, 4194304 bytes\n"))
	g.Expect(got.err).To(HaveSuffix("\r" + clearLine))
}

// A check counts the rounds of the witnesses by the times that the agent shows.
func TestProgressOfACheck(t *testing.T) {
	g := NewWithT(t)
	agent, errs := bareAgent(t), &tty{}
	var mu sync.Mutex
	read := time.Time{}
	agent.mux.HandleFunc(localapi.PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		text, _ := encode(localapi.Status{Witnesses: []localapi.Witness{{Name: "runtime"}, {Name: "kernel", Read: read}}}, "")
		_, _ = w.Write(text)
	})
	agent.mux.HandleFunc(localapi.PathCheck, func(w http.ResponseWriter, _ *http.Request) {
		g.Eventually(errs.last, time.Minute).Should(MatchRegexp(`^check: read 0 of 2 rounds of the witnesses, [0-9]+s\x1b\[K$`))
		mu.Lock()
		read = time.Now()
		mu.Unlock()
		g.Eventually(errs.last, time.Minute).Should(
			MatchRegexp(`^check: read 1 of 2 rounds of the witnesses, [0-9.]+/s, [0-9]+s left\x1b\[K$`))
		text, _ := encode(someReport(), "")
		_, _ = w.Write(text)
	})
	got := onTerminal(t, agent.socket, errs, "check")
	g.Expect(got.code).To(Equal(0), got.err)
	g.Expect(got.err).To(HaveSuffix("\r" + clearLine))
}

// Work that ends within the first pause shows nothing, and a program without a terminal
// shows nothing at all.
func TestNoProgress(t *testing.T) {
	agent := newAgent(t)
	for _, is := range []bool{true, false} {
		g := NewWithT(t)
		var out, errs bytes.Buffer
		a := newApp(strings.NewReader(""), &out, &errs, func(string) string { return agent.socket })
		a.terminal = func(io.Writer) terminal { return terminal{is: is, width: 80} }
		var pauses []time.Duration
		a.pause = func(ctx context.Context, d time.Duration) error {
			pauses = append(pauses, d)
			<-ctx.Done()
			return ctx.Err()
		}
		g.Expect(a.run(t.Context(), []string{"resync"})).To(Equal(0))
		g.Expect(errs.String()).To(BeEmpty())
		if is {
			g.Expect(pauses).To(Equal([]time.Duration{firstProgress}))
		} else {
			g.Expect(pauses).To(BeEmpty())
		}
	}
}

func TestStepsInWords(t *testing.T) {
	for want, c := range map[string]struct {
		step    step
		elapsed time.Duration
	}{
		"read, 7s":                            {step{name: "read"}, 7 * time.Second},
		"read 0 of 3 sources, 2s":             {step{name: "read", unit: "sources", total: 3}, 2 * time.Second},
		"read 2 of 3 sources, 0.5/s, 2s left": {step{name: "read", unit: "sources", done: 2, total: 3}, 4 * time.Second},
		"read 3 of 3 sources, 0.8/s, 4s":      {step{name: "read", unit: "sources", done: 3, total: 3}, 4 * time.Second},
		"copy 512 bytes, 256 bytes/s, 2s":     {step{name: "copy", unit: bytesUnit, done: 512}, 2 * time.Second},
		"copy 1.5 GiB of 9.0 GiB, 25.6 MiB/s, 5m0s left": {
			step{name: "copy", unit: bytesUnit, done: 3 << 29, total: 9 << 30}, time.Minute},
	} {
		NewWithT(t).Expect(c.step.text(c.elapsed)).To(Equal(want))
	}
}
