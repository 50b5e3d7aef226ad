// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/otlptest"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/tracing"
)

// tracingAgent is the agent's real API with pods behind it.
type tracingAgent struct {
	socket    string
	collector *otlptest.Receiver
	tracer    *tracing.Tracer
	pods      *pods

	mu       sync.Mutex
	requests []string // paths, and the header of the trace
}

// newTracingAgent serves; without traces it traces nothing. refusal is its answer to each
// request, nil: it serves.
func newTracingAgent(t *testing.T, traces bool, refusal error) *tracingAgent {
	t.Helper()
	g := NewWithT(t)
	a := &tracingAgent{socket: filepath.Join(runDir(t), "agent.sock"), pods: &pods{err: refusal, reply: cni.Reply{IPs: []cni.IP{{Address: "10.1.5.2/24"}}}}}
	remote, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	a.collector = otlptest.New(remote)
	t.Cleanup(a.collector.Close)
	a.tracer, err = tracing.New(tracing.Options{Endpoint: a.collector.URL(), Sampling: 1, Node: "n", Every: time.Millisecond})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(a.tracer.Shutdown(context.Background())).To(Succeed()) })
	deps := restapi.Deps{Pods: a.pods}
	if traces {
		deps.Traces = a.tracer
	}
	api := restapi.NewPlugin(deps).Handler()
	l, err := net.Listen("unix", a.socket)
	g.Expect(err).NotTo(HaveOccurred())
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.requests = append(a.requests, strings.TrimSpace(r.URL.Path+" "+r.Header.Get(cni.HeaderTrace)))
		a.mu.Unlock()
		api.ServeHTTP(w, r)
	})}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		g.Expect(s.Close()).To(Succeed())
		g.Expect(<-ended).To(MatchError(http.ErrServerClosed))
	})
	return a
}

func (a *tracingAgent) paths() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

func TestTheProcessIsTheRootOfTheTrace(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		err     error
		exit    int
		failure string // of the process
		refused string // of the request
	}{
		"ADD":          {"ADD", nil, 0, "", ""},
		"refused ADD":  {"ADD", cni.Errorf(cni.CodeFull, "no address is free"), 1, "no address is free", ""},
		"ADD too soon": {"ADD", fmt.Errorf("ADD: %w", podmanager.ErrAway), 1, "does not serve yet", podmanager.ErrAway.Error()},
		"DEL":          {"DEL", nil, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newTracingAgent(t, true, c.err)
			o := call(g, env(c.command), conf(a.socket, ""))
			g.Expect(o.exit).To(Equal(c.exit), o.out)
			var byName map[string]otlptest.Span
			g.Eventually(func(g Gomega) {
				all, err := a.collector.Spans()
				g.Expect(err).NotTo(HaveOccurred())
				byName = map[string]otlptest.Span{}
				for _, s := range all {
					byName[s.Name] = s
				}
				g.Expect(byName).To(HaveLen(3))
			}, time.Minute, time.Millisecond).Should(Succeed())
			root, socket, request := byName["cadastre-cni "+c.command], byName["socket"], byName["agent "+c.command]
			g.Expect(root.Parent).To(BeEmpty())
			g.Expect(socket.Parent).To(Equal(root.ID))
			g.Expect(request.Parent).To(Equal(socket.ID))
			for _, times := range [][]time.Time{
				{root.Began, socket.Began, request.Began, request.Ended, socket.Ended, root.Ended},
			} {
				g.Expect(slices.IsSortedFunc(times, time.Time.Compare)).To(BeTrue(), "%v", times)
			}
			g.Expect(root.Failed).To(Equal(c.exit != 0))
			g.Expect(root.Failure).To(ContainSubstring(c.failure))
			g.Expect(request.Failure).To(ContainSubstring(c.refused))
			g.Expect(root.Attributes).To(HaveKeyWithValue("process.exit.code", fmt.Sprint(c.exit)))
		})
	}
}

func TestAProcessThatIsNotTracedTellsNothing(t *testing.T) {
	g := NewWithT(t)
	a := newTracingAgent(t, false, nil)
	call(g, env("ADD"), conf(a.socket, ""))
	g.Expect(a.paths()).To(HaveExactElements(HavePrefix(cni.Path + " 00-")))

	a = newTracingAgent(t, true, nil)
	for _, command := range []string{"CHECK", "GC", "STATUS"} {
		call(g, env(command), conf(a.socket, ""))
	}
	g.Expect(a.paths()).To(HaveExactElements(cni.Path, cni.Path, cni.Path))
}

// A process that is traced ends although the agent takes no further connection.
func TestTheReportWaitsForNoAnswer(t *testing.T) {
	g := NewWithT(t)
	stuck := make(chan struct{})
	defer close(stuck)
	a := newAgent(t, func(c net.Conn) {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nCni-Exit: 0\r\nCni-Traced: 1\r\nContent-Length: %d\r\n\r\n%s", len(lease), lease)
		<-stuck
	}, status(404, "")) // to the report, when the test ends
	g.Expect(call(g, env("ADD"), conf(a.socket, "")).out).To(Equal(lease))
}
