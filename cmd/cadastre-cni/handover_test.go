// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
)

// pods answers each request of the real API with the same reply.
type pods struct {
	reply cni.Reply
	err   error

	mu        sync.Mutex
	asked     []cni.Request
	delivered []error
}

func (p *pods) Accept(ctx context.Context, _ func() bool) (context.Context, func()) {
	return ctx, func() {}
}

func (p *pods) Serve(_ context.Context, r cni.Request) (cni.Reply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, r)
	return p.reply, p.err
}

func (p *pods) Delivered(_ cni.Request, _ cni.Reply, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delivered = append(p.delivered, err)
}

// requests returns the requests that came.
func (p *pods) requests() []cni.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (*pods) Delete(context.Context, ledger.Lease) error { return nil }

// serveAPI serves the agent's real API for p; without calls it is that of an older agent.
// It returns the socket, and the number of calls so far.
func serveAPI(t *testing.T, p *pods, calls bool) (socket string, count func() int) {
	t.Helper()
	g := NewWithT(t)
	socket = filepath.Join(runDir(t), "agent.sock")
	l, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	api := restapi.NewPlugin(restapi.Deps{Pods: p}).Handler()
	var mu sync.Mutex
	n := 0
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == cni.PathCall {
			mu.Lock()
			n++
			mu.Unlock()
			if !calls {
				http.NotFound(w, r)
				return
			}
		}
		api.ServeHTTP(w, r)
	})}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		g.Expect(s.Close()).To(Succeed())
		g.Expect(<-ended).To(MatchError(http.ErrServerClosed))
	})
	return socket, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// What the agent does for the plugin is what the plugin does itself: the same output, the
// same exit code, and the same request.
func TestTheAgentDoesWhatThePluginWouldDo(t *testing.T) {
	one := cni.Reply{
		IPs:    []cni.IP{{Address: "10.1.5.2/24", Gateway: "10.1.5.1"}, {Address: "fd00::2/64"}},
		Routes: []cni.Route{{Dst: "0.0.0.0/0", GW: "10.1.5.1"}},
	}
	wire := one
	wire.Interfaces = []cni.Interface{{Name: "eth0", MAC: "02:00:00:00:00:01", MTU: 1450, Sandbox: "/run/netns/x"}}
	text := func(more string) string {
		return `{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": "SOCKET"}` + more + `}`
	}
	outcomes := map[string]struct {
		reply cni.Reply
		err   error
	}{
		"a reply":           {reply: one},
		"with a wire":       {reply: wire},
		"nothing":           {},
		"a refusal":         {err: cni.Errorf(cni.CodeFull, "no address is free: %q", "\xff <&>")},
		"it is away":        {err: podmanager.ErrAway},
		"an internal error": {err: errors.New("a table is missing")},
	}
	configs := map[string]string{
		"plain":             text(""),
		"of an old version": strings.Replace(text(""), "1.1.0", "0.3.1", 1),
		"of no version":     strings.Replace(text(""), "1.1.0", "9.9.9", 1),
		"main":              strings.Replace(text(`, "dns": {"domain": "x"}`), "bridge", "cadastre-cni", 1),
		"with much":         text(`, "runtimeConfig": {"ips": ["10.1.5.9/24"], "mac": "02:00:00:00:00:02"}, "prevResult": {"ips": [{"address": "10.1.5.2/24"}]}, "cni.dev/valid-attachments": []`),
		"with spaces":       strings.ReplaceAll(text(""), `"socket": `, "\"socket\"\n\t: "),
		"with escapes":      strings.ReplaceAll(text(""), `"SOCKET"`, `"\u002fSOCKET"`),
		"two sockets":       text(`, "args": {"socket": "/nowhere"}`),
		"a socket elsewhere": strings.Replace(
			text(`, "args": {"socket": "SOCKET"}`), `, "socket": "SOCKET"`, "", 1),
		"no socket":      strings.Replace(text(""), `, "socket": "SOCKET"`, "", 1),
		"an unknown key": text(`, "ipam": {"colour": "blue", "socket": "SOCKET"}`),
		"not UTF-8":      text(`, "dns": {"domain": "` + "\xff" + `"}`),
		"not JSON":       text("")[1:],
		"nothing":        "",
		"another name":   strings.Replace(text(""), "pods", "../pods", 1),
	}
	environments := map[string][]string{
		"as usual":   nil,
		"bad names":  {"CNI_ARGS=K8S_POD_NAME=\xff", "CNI_IFNAME=e\xff"},
		"bad args":   {"CNI_ARGS=x"},
		"no ifname":  {"CNI_IFNAME="},
		"wanted":     {"CNI_ARGS=IP=10.1.5.7"},
		"no address": {"CNI_ARGS=IP=x"},
	}
	called := 0
	for what, answer := range outcomes {
		for kind, config := range configs {
			for how, changes := range environments {
				if what != "a reply" && (how != "as usual" || kind != "plain" && kind != "main") ||
					how != "as usual" && kind != "plain" && kind != "two sockets" {
					continue
				}
				for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "MOVE"} {
					t.Run(fmt.Sprint(what, ", ", kind, ", ", how, ", ", command), func(t *testing.T) {
						g := NewWithT(t)
						by := func(calls bool) (exit int, out string, asked []cni.Request, n int) {
							p := &pods{reply: answer.reply, err: answer.err}
							socket, count := serveAPI(t, p, calls)
							stdin := strings.ReplaceAll(strings.ReplaceAll(config, "\\u002fSOCKET", "\\u002f"+socket[1:]), "SOCKET", socket)
							var printed bytes.Buffer
							exit = run(env(command, append(changes, "CADASTRE_SOCKET="+socket)...), strings.NewReader(stdin), &printed)
							return exit, strings.ReplaceAll(printed.String(), socket, "SOCKET"), p.requests(), count()
						}
						exit, out, asked, _ := by(false)
						callExit, callOut, callAsked, n := by(true)
						g.Expect(callExit).To(Equal(exit))
						g.Expect(callOut).To(Equal(out))
						if answer.err == nil || !errors.Is(answer.err, podmanager.ErrAway) && errors.As(answer.err, new(*cni.Error)) {
							g.Expect(callAsked).To(Equal(asked))
						}
						called += n
					})
				}
			}
		}
	}
	NewWithT(t).Expect(called).To(BeNumerically(">", 100), "most of them went to the agent")
}

// A call that got its answer is one request, and the agent knows that it was delivered.
func TestACallIsOneRequest(t *testing.T) {
	g := NewWithT(t)
	p := &pods{reply: cni.Reply{IPs: []cni.IP{{Address: "10.1.5.2/24"}}}}
	socket, calls := serveAPI(t, p, true)
	o := call(g, env("ADD"), conf(socket, ""))
	g.Expect(o.exit).To(BeZero())
	g.Expect(o.out).To(ContainSubstring("10.1.5.2/24"))
	g.Expect(calls()).To(Equal(1))
	g.Eventually(func() []error {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.delivered
	}).Should(Equal([]error{nil}))
	g.Expect(p.requests()).To(HaveLen(1))
}

// An answer to a call that is not one is none: the plugin asks again, in the old way.
func TestAnAnswerToACallThatIsNone(t *testing.T) {
	for name, text := range map[string]string{
		"cut off":             "HTTP/1.1 200 OK\r\nCni-Exit: 0\r\nContent-Length: 100\r\n\r\n{}",
		"without a length":    "HTTP/1.1 200 OK\r\nCni-Exit: 0\r\n\r\n{}",
		"without an exit":     "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"with an odd exit":    "HTTP/1.1 200 OK\r\nCni-Exit: 2\r\nContent-Length: 2\r\n\r\n{}",
		"of another status":   "HTTP/1.1 409 Conflict\r\nCni-Exit: 0\r\nContent-Length: 2\r\n\r\n{}",
		"of another protocol": "220 mail.example ESMTP\r\n\r\n",
		"nothing":             "",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, ok(lease))
			a.mu.Lock()
			a.call = raw(text)
			a.mu.Unlock()
			o := call(g, env("ADD"), conf(a.socket, ""))
			g.Expect(o.exit).To(BeZero(), o.out)
			g.Expect(o.out).To(ContainSubstring("10.1.5.2/24"))
			g.Expect(a.count()).To(Equal(1))
		})
	}
}
