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

// serveAPI serves the agent's real API for p.
func serveAPI(t *testing.T, p *pods) (socket string) {
	t.Helper()
	g := NewWithT(t)
	socket = filepath.Join(runDir(t), "agent.sock")
	l, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: restapi.NewPlugin(restapi.Deps{Pods: p}).Handler()}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		g.Expect(s.Close()).To(Succeed())
		g.Expect(<-ended).To(MatchError(http.ErrServerClosed))
	})
	return socket
}

// expected returns the request of a call, nil if it comes to none, and what the plugin prints
// for the agent's outcome; nil: for an agent that is away.
func expected(inv cni.Invocation, stdin, socket string, outcome func() (cni.Reply, error)) (req *cni.Request, printed result) {
	r, conf, cerr := cni.Prepare(inv, []byte(stdin))
	if cerr != nil {
		return nil, failed(cerr, conf)
	}
	away := "does not answer at " + socket + " (connect: no such file or directory): start cadastre-agent, or name its socket in ipam.socket or CADASTRE_SOCKET"
	reply, err := cni.Reply{}, podmanager.ErrAway
	if outcome != nil {
		reply, err = outcome()
		away = "at " + socket + " does not serve yet: " + podmanager.ErrAway.Error()
	}
	var out []byte
	switch {
	case err == nil:
		out, cerr = cni.Output(r, reply, conf)
	case errors.As(err, &cerr):
	case !errors.Is(err, podmanager.ErrAway):
		cerr = cni.Errorf(cni.CodeTryAgain, "the agent refuses: status 500: {\"error\":%q}", err)
	case r.Command == "STATUS":
		cerr = cni.Errorf(cni.CodeNotAvailable, "STATUS: the Cadastre agent %s", away)
	case r.Command != "DEL":
		cerr = cni.Errorf(cni.CodeTryAgain, "%s: the Cadastre agent %s", r.Command, away)
	}
	if cerr != nil {
		return &r, failed(cerr, conf)
	}
	return &r, result{out, 0}
}

// The agent gets the request of the call, and the runtime the output and the exit code of its
// outcome. What is wrong with a call is told in the same words without an agent, and only a DEL
// that finds no agent waits for it.
func TestTheOutcomesOfACall(t *testing.T) {
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
						by := func(socket string, outcome func() (cni.Reply, error)) *cni.Request {
							stdin := strings.ReplaceAll(strings.ReplaceAll(config, "\\u002fSOCKET", "\\u002f"+socket[1:]), "SOCKET", socket)
							getenv := env(command, append(changes, "CADASTRE_SOCKET="+socket)...)
							var req *cni.Request
							var want result
							inv, cerr := cni.FromEnv(getenv)
							switch {
							case cerr != nil:
								want = failed(cerr, nil)
							case command == "VERSION":
								versions, err := cni.PrintVersions()
								g.Expect(err).NotTo(HaveOccurred())
								want = result{append(versions, '\n'), 0}
							default:
								req, want = expected(inv, stdin, socket, outcome)
							}
							var printed bytes.Buffer
							g.Expect(run(getenv, strings.NewReader(stdin), &printed)).To(Equal(want.exit))
							g.Expect(printed.String()).To(Equal(string(want.out)))
							var waits []cni.Intent
							if away := outcome == nil || errors.Is(answer.err, podmanager.ErrAway); away && req != nil && command == "DEL" {
								waits = []cni.Intent{{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName}}
							}
							left := waiting(g, socket)
							for i := range left {
								left[i].Began = cni.Began{}
							}
							g.Expect(left).To(Equal(waits))
							return req
						}
						p := &pods{reply: answer.reply, err: answer.err}
						var asked []cni.Request
						if req := by(serveAPI(t, p), func() (cni.Reply, error) { return answer.reply, answer.err }); req != nil {
							asked = append(asked, *req)
						}
						g.Expect(p.requests()).To(Equal(asked))
						called += len(asked)
						by(filepath.Join(runDir(t), "agent.sock"), nil)
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
	socket := serveAPI(t, p)
	o := call(g, env("ADD"), conf(socket, ""))
	g.Expect(o.exit).To(BeZero())
	g.Expect(o.out).To(ContainSubstring("10.1.5.2/24"))
	g.Eventually(func() []error {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.delivered
	}).Should(Equal([]error{nil}))
	g.Expect(p.requests()).To(HaveLen(1))
}
