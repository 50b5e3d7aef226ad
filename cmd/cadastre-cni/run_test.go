// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// agent is a fake agent: it answers connections one after the other, each with
// the next of its answers (the last one again and again).
type agent struct {
	g      Gomega
	socket string
	l      net.Listener
	ended  sync.WaitGroup

	mu       sync.Mutex
	answers  []func(net.Conn)
	requests []*http.Request
	bodies   [][]byte
}

// newAgent listens in a directory whose name is short enough for a socket.
func newAgent(t *testing.T, answers ...func(net.Conn)) *agent {
	t.Helper()
	a := &agent{g: NewWithT(t), socket: filepath.Join(runDir(t), "agent.sock"), answers: answers}
	var err error
	a.l, err = net.Listen("unix", a.socket)
	a.g.Expect(err).NotTo(HaveOccurred())
	a.ended.Go(func() {
		for {
			c, err := a.l.Accept()
			if err != nil {
				return
			}
			a.serve(c)
		}
	})
	t.Cleanup(func() {
		a.l.Close()
		a.ended.Wait()
	})
	return a
}

// runDir is a short directory, empty but for what an agent puts there when it starts.
func runDir(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "cni")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { os.RemoveAll(dir) })
	g.Expect(os.Mkdir(filepath.Join(dir, "del"), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, cni.LockFile), nil, 0o600)).To(Succeed())
	return dir
}

// waiting returns the DELs that wait for the agent of a socket.
func waiting(g Gomega, socket string) []cni.Intent {
	all, refused, err := cni.ReadIntents(cni.IntentDir(socket), os.Geteuid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(refused).To(BeEmpty())
	return all
}

func (a *agent) serve(c net.Conn) {
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.requests, a.bodies = append(a.requests, r), append(a.bodies, body)
	answer := a.answers[0]
	if len(a.answers) > 1 {
		a.answers = a.answers[1:]
	}
	a.mu.Unlock()
	answer(c)
}

// asked is the only request that came.
func (a *agent) asked() (*http.Request, cni.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.g.Expect(a.requests).To(HaveLen(1))
	c, err := cni.ParseCall(a.bodies[0])
	a.g.Expect(err).NotTo(HaveOccurred())
	r, _, cerr := c.Request()
	a.g.Expect(cerr).To(BeNil())
	return a.requests[0], r
}

// count is the number of requests that came.
func (a *agent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

// raw answers with a text as it is.
func raw(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = c.Write([]byte(text)) }
}

// status answers with a status and a body, but not as the plugin.
func status(code int, body string) func(net.Conn) {
	return raw(fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", code, http.StatusText(code), len(body), body))
}

// output answers with an exit code and an output of the plugin.
func output(exit, body string) func(net.Conn) {
	return raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nCni-Exit: %s\r\nContent-Length: %d\r\n\r\n%s", exit, len(body), body))
}

func ok(body string) func(net.Conn) { return output("0", body) }

const lease = `{"cniVersion": "1.1.0", "ips": [{"address": "10.1.5.2/24", "gateway": "10.1.5.1"}], "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.5.1"}], "dns": {}}`

// env returns the environment that a runtime sets for a command.
func env(command string, more ...string) func(string) string {
	all := map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": "4f1c", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u-1",
	}
	for _, m := range more {
		k, v, _ := strings.Cut(m, "=")
		all[k] = v
	}
	return func(name string) string { return all[name] }
}

// conf is a network configuration that names a socket.
func conf(socket, more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": %q}%s}`, socket, more)
}

// outcome holds the result of a call for a runtime.
type outcome struct {
	exit int
	out  string
	err  cni.Error
}

// call runs the program.
func call(g Gomega, getenv func(string) string, stdin string) outcome {
	var out bytes.Buffer
	o := outcome{exit: run(getenv, strings.NewReader(stdin), &out)}
	o.out = out.String()
	if o.exit != 0 {
		g.Expect(json.Unmarshal(out.Bytes(), &o.err)).To(Succeed(), o.out)
		g.Expect(o.err.Msg).NotTo(BeEmpty())
	}
	return o
}

func TestEachCommand(t *testing.T) {
	for command, out := range map[string]string{"ADD": lease, "DEL": "", "CHECK": "", "GC": "", "STATUS": ""} {
		t.Run(command, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, ok(out))
			o := call(g, env(command), conf(a.socket, `, "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "b"}], "prevResult": {"ips": [{"address": "10.1.5.2/24"}]}`))
			g.Expect(o.exit).To(BeZero(), o.out)
			g.Expect(o.out).To(Equal(out))
			http, asked := a.asked()
			g.Expect([]string{http.Method, http.URL.Path, http.Header.Get("Content-Type")}).To(Equal([]string{"POST", cni.Path, "application/octet-stream"}))
			g.Expect(asked).To(Equal(cni.Request{
				Command: command, Network: "pods", ContainerID: "4f1c", IfName: "eth0", Netns: "/run/netns/x", Pool: "default",
				Pod: cni.Pod{Namespace: "ns", Name: "web-0", UID: "u-1"}, Previous: []string{"10.1.5.2/24"},
				Attachments: []cni.Attachment{{ContainerID: "a", IfName: "b"}},
			}))
			g.Expect(waiting(g, a.socket)).To(BeEmpty(), "nothing was written down")
		})
	}
}

func TestVersionNeedsNoAgent(t *testing.T) {
	g := NewWithT(t)
	o := call(g, func(name string) string { return map[string]string{"CNI_COMMAND": "VERSION"}[name] }, `{"cniVersion": "1.1.0"}`)
	g.Expect(o.exit).To(BeZero())
	g.Expect(o.out).To(MatchJSON(`{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}`))
}

// What the agent refuses is printed as it is.
func TestTheAgentRefuses(t *testing.T) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		t.Run(command, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, output("1", `{"cniVersion": "1.1.0", "code": 101, "msg": "no", "details": "never"}`))
			o := call(g, env(command), conf(a.socket, ""))
			g.Expect(o.exit).To(Equal(1))
			g.Expect(o.err).To(Equal(cni.Error{CNIVersion: "1.1.0", Code: 101, Msg: "no", Details: "never"}))
			g.Expect(waiting(g, a.socket)).To(BeEmpty())
		})
	}
}

// waysToBeAway are the ways in which an agent may be away.
func waysToBeAway() map[string]func(net.Conn) {
	return map[string]func(net.Conn){
		"it stops":                        status(503, `{"error": "the agent is stopping"}`),
		"a proxy has no agent":            status(502, "bad gateway"),
		"a proxy has no answer":           status(504, "gateway timeout"),
		"it hangs up":                     raw(""),
		"its answer is cut off":           raw("HTTP/1.1 200 OK\r\nCni-Exit: 0\r\nContent-Length: 100\r\n\r\n{\"ips\": []}"),
		"its head is cut off":             raw("HTTP/1.1 200 OK\r\nContent-Le"),
		"its answer is longer":            raw("HTTP/1.1 200 OK\r\nCni-Exit: 0\r\nContent-Length: 2\r\n\r\n{}{}"),
		"its answer has no length":        raw("HTTP/1.1 200 OK\r\nCni-Exit: 0\r\n\r\n{}"),
		"its answer has a bad length":     raw("HTTP/1.1 200 OK\r\nCni-Exit: 0\r\nContent-Length: x\r\n\r\n{}"),
		"its answer has no exit code":     status(200, lease),
		"its answer has an odd exit code": output("2", lease),
		"another server answers":          raw("220 mail.example ESMTP\r\n\r\n"),
		"another server answers shortly":  raw("\r\n\r\n"),
	}
}

// Without an agent: what can be tried again is, and a DEL is written down.
func TestTheAgentIsAway(t *testing.T) {
	ways := waysToBeAway()
	ways["there is no socket"] = nil
	for name, answer := range ways {
		for command, code := range map[string]uint{
			"ADD": cni.CodeTryAgain, "CHECK": cni.CodeTryAgain, "GC": cni.CodeTryAgain, "STATUS": cni.CodeNotAvailable, "DEL": 0,
		} {
			t.Run(name+" "+command, func(t *testing.T) {
				g := NewWithT(t)
				socket := filepath.Join(runDir(t), "agent.sock")
				if answer != nil {
					socket = newAgent(t, answer).socket
				}
				o := call(g, env(command), conf(socket, ""))
				if command == "DEL" {
					g.Expect(o).To(Equal(outcome{}), "it succeeds and says nothing")
					left := waiting(g, socket)
					g.Expect(left).To(HaveLen(1))
					g.Expect(left[0].Began).NotTo(BeZero(), "a later ADD keeps its lease")
					left[0].Began = cni.Began{}
					g.Expect(left).To(Equal([]cni.Intent{{Network: "pods", ContainerID: "4f1c", IfName: "eth0"}}))
					return
				}
				g.Expect(o.exit).To(Equal(1))
				g.Expect(o.err.Code).To(Equal(code))
				g.Expect(o.err.CNIVersion).To(Equal("1.1.0"))
				if g.Expect(o.err.Msg).To(ContainSubstring(socket)); name == "it stops" {
					g.Expect(o.err.Msg).To(HaveSuffix("does not serve yet: the agent is stopping"))
				} else {
					g.Expect(o.err.Msg).To(And(ContainSubstring("cadastre-agent"), ContainSubstring("CADASTRE_SOCKET")))
				}
				g.Expect(o.err.Msg).NotTo(ContainSubstring("\n"))
				g.Expect(waiting(g, socket)).To(BeEmpty())
			})
		}
	}
}

// A socket without a listener counts as none.
func TestTheAgentDied(t *testing.T) {
	g := NewWithT(t)
	socket := filepath.Join(runDir(t), "agent.sock")
	l, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	g.Expect(call(g, env("ADD"), conf(socket, "")).err.Code).To(BeNumerically("==", cni.CodeTryAgain))
	g.Expect(call(g, env("DEL"), conf(socket, "")).exit).To(BeZero())
	g.Expect(call(g, env("DEL"), conf(socket, "")).exit).To(BeZero(), "as often as one likes")
	g.Expect(waiting(g, socket)).To(HaveLen(1))
}

// A refusal that is not a CNI error: the agent is there, but ADD is not served.
func TestAnAnswerThatIsNone(t *testing.T) {
	for _, code := range []int{400, 403, 404, 405, 409, 500} {
		g := NewWithT(t)
		a := newAgent(t, status(code, `{"error": "for a reason"}`))
		o := call(g, env("ADD"), conf(a.socket, ""))
		g.Expect(o.exit).To(Equal(1))
		g.Expect(o.err.Code).To(BeNumerically("==", cni.CodeTryAgain))
		g.Expect(o.err.Msg).To(And(ContainSubstring(fmt.Sprint(code)), ContainSubstring("for a reason")))
		g.Expect(call(g, env("DEL"), conf(a.socket, "")).err.Code).To(BeNumerically("==", cni.CodeTryAgain))
		g.Expect(waiting(g, a.socket)).To(BeEmpty(), "it is there, so nothing waits for it")
	}
	g := NewWithT(t)
	a := newAgent(t, ok("not JSON"))
	g.Expect(call(g, env("ADD"), conf(a.socket, "")).err.Code).To(BeNumerically("==", cni.CodeDecode))
}

// A runtime would start a pod without an address, if an answer without one were a success.
func TestAnAnswerWithoutAddresses(t *testing.T) {
	for _, text := range []string{"", "{}", `{"ips": []}`, `{"ips": null, "interfaces": [{"name": "eth0"}]}`} {
		t.Run(text, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, ok(text))
			o := call(g, env("ADD"), conf(a.socket, ""))
			g.Expect(o.exit).To(Equal(1), o.out)
			g.Expect(o.err.Code).To(BeNumerically("==", cni.CodeDecode))
			g.Expect(o.err.Msg).To(ContainSubstring("the agent's answer has"))
			g.Expect(call(g, env("DEL"), conf(a.socket, "")).exit).To(BeZero(), "a DEL has no addresses")
		})
	}
}

// A DEL whose socket is not where an agent is, or has been since the machine was
// booted, fails and names the directory: no agent would ever read it there.
func TestADelWithAWrongSocket(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"a directory of something else": func(dir string) error { return os.Remove(filepath.Join(dir, cni.LockFile)) },
		"no directory":                  os.RemoveAll,
		"a directory of all users":      func(dir string) error { return os.Chmod(dir, 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := runDir(t)
			g.Expect(spoil(dir)).To(Succeed())
			socket := filepath.Join(dir, "agent.sock")
			o := call(g, env("DEL"), conf(socket, ""))
			g.Expect(o.exit).To(Equal(1))
			g.Expect(o.err.Code).To(BeNumerically("==", cni.CodeTryAgain))
			g.Expect(o.err.Msg).To(And(ContainSubstring(cni.IntentDir(socket)), ContainSubstring("CADASTRE_SOCKET")))
			g.Expect(o.err.Msg).NotTo(ContainSubstring("\n"))
			entries, _ := os.ReadDir(filepath.Join(dir, "del"))
			g.Expect(entries).To(BeEmpty())
		})
	}
}

func TestTooManyDelsWait(t *testing.T) {
	g := NewWithT(t)
	socket := filepath.Join(runDir(t), "agent.sock")
	dir := cni.IntentDir(socket)
	for i := range cni.MaxIntents {
		g.Expect(os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".json")), []byte("{}"), 0o600)).To(Succeed())
	}
	o := call(g, env("DEL"), conf(socket, ""))
	g.Expect(o.exit).To(Equal(1))
	g.Expect(o.err.Code).To(BeNumerically("==", cni.CodeTryAgain))
	g.Expect(o.err.Msg).To(And(ContainSubstring(socket), ContainSubstring("1024")))
}

// The configuration names the socket, else the environment, else it is the usual one.
func TestWhichSocket(t *testing.T) {
	g := NewWithT(t)
	named, set := newAgent(t, ok("{}")), newAgent(t, ok("{}"))
	const without = `{"cniVersion": "1.1.0", "name": "pods", "ipam": {"type": "cadastre-cni"}}`
	g.Expect(call(g, env("CHECK", "CADASTRE_SOCKET="+set.socket), conf(named.socket, "")).exit).To(BeZero())
	g.Expect([]int{named.count(), set.count()}).To(Equal([]int{1, 0}))
	g.Expect(call(g, env("CHECK", "CADASTRE_SOCKET="+set.socket), without).exit).To(BeZero())
	g.Expect([]int{named.count(), set.count()}).To(Equal([]int{1, 1}))
	if _, err := os.Stat(defaultSocket); err == nil {
		t.Skip("an agent runs on this machine: it is not asked")
	}
	o := call(g, env("CHECK"), without)
	g.Expect(o.err.Msg).To(ContainSubstring("/run/cadastre/agent.sock"))
}

// A DEL with an ipam section that went bad must still go to the agent that the section
// names: at another one it would succeed, and free nothing.
func TestTheSocketOfAConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ conf, want string }{
		"as usual":               {conf("/run/a.sock", ""), "/run/a.sock"},
		"escaped":                {`{"ipam": {"socket": "\u002frun/a.sock"}}`, "/run/a.sock"},
		"beside another one":     {conf("/run/a.sock", `, "args": {"socket": "/run/b.sock"}`), "/run/a.sock"},
		"an unknown key":         {`{"ipam": {"gateway": "10.1.5.1", "socket": "/run/a.sock"}}`, "/run/a.sock"},
		"a pool of another type": {`{"ipam": {"pool": 5, "socket": "/run/a.sock"}}`, "/run/a.sock"},
		"bad routes":             {`{"ipam": {"routes": "x", "socket": "/run/a.sock"}}`, "/run/a.sock"},
		"a bad name":             {`{"name": 5, "ipam": {"socket": "/run/a.sock"}}`, "/run/a.sock"},
		"a number":               {`{"ipam": {"socket": 5}}`, "/run/env.sock"},
		"another place":          {`{"socket": "/run/a.sock"}`, "/run/env.sock"},
		"no section":             {`{"ipam": null}`, "/run/env.sock"},
		"no JSON":                {`{"ipam": {"socket": "/run/a.sock"}`, "/run/env.sock"},
	} {
		NewWithT(t).Expect(socketOf([]byte(c.conf), env("DEL", "CADASTRE_SOCKET=/run/env.sock"))).To(Equal(c.want), name)
	}
}

// Errors that are found before the agent is asked.
func TestBadInput(t *testing.T) {
	for _, c := range []struct {
		name    string
		getenv  func(string) string
		stdin   string
		code    uint
		version string
	}{
		{"no command", env(""), conf("/x", ""), cni.CodeEnvironment, ""},
		{"no container", env("ADD", "CNI_CONTAINERID="), conf("/x", ""), cni.CodeEnvironment, ""},
		{"bad arguments", env("ADD", "CNI_ARGS=x"), conf("/x", ""), cni.CodeEnvironment, "1.1.0"},
		{"nothing on stdin", env("ADD"), "", cni.CodeDecode, ""},
		{"no JSON", env("ADD"), "{", cni.CodeDecode, ""},
		{"an unknown version", env("ADD"), `{"cniVersion": "9.9.9", "name": "pods"}`, cni.CodeVersion, "9.9.9"},
		{"an unknown key", env("ADD"), `{"cniVersion": "1.0.0", "name": "pods", "ipam": {"subnet": "x"}}`, cni.CodeInvalidConfig, "1.0.0"},
		{"GC in an old version", env("GC"), `{"cniVersion": "1.0.0", "name": "pods"}`, cni.CodeVersion, "1.0.0"},
		{"a bad address", env("ADD"), conf("/x", `, "runtimeConfig": {"ips": ["x"]}`), cni.CodeInvalidConfig, "1.1.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			o := call(g, c.getenv, c.stdin)
			g.Expect(o.exit).To(Equal(1))
			g.Expect(o.err.Code).To(Equal(c.code), o.err.Msg)
			g.Expect(o.err.CNIVersion).To(Equal(c.version))
		})
	}
}

// broken is a stream that cannot be used.
type broken struct{}

func (broken) Read([]byte) (int, error)  { return 0, errors.New("broken") }
func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestBrokenStreams(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	g.Expect(run(env("ADD"), broken{}, &out)).To(Equal(1))
	g.Expect(out.String()).To(ContainSubstring(`"code": 5`))
	a := newAgent(t, ok(lease))
	g.Expect(run(env("ADD"), strings.NewReader(conf(a.socket, "")), broken{})).To(Equal(1), "an answer that the runtime does not get is none")
}

// Every call has an end, however silent the agent is. That of a whole command
// is a constant of up to a minute, so the exchange itself is measured here.
func TestAnAgentThatNeverAnswers(t *testing.T) {
	g := NewWithT(t)
	silent := make(chan struct{})
	a := newAgent(t, func(net.Conn) { <-silent })
	defer close(silent)
	_, err := send(a.socket, nil, &tracer{}, time.Now().Add(50*time.Millisecond))
	g.Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(BeTrue(), "%v", err)
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC"} {
		g.Expect(timeout(command)).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
	}
	g.Expect(timeout("STATUS")).To(BeNumerically("<=", 5*time.Second), "kubelet asks every few seconds")
}

// One that trickles its answer does not keep the caller longer either.
func TestAnAgentThatTrickles(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, func(c net.Conn) {
		for {
			if _, err := c.Write([]byte("H")); err != nil {
				return
			}
		}
	})
	_, err := send(a.socket, nil, &tracer{}, time.Now().Add(50*time.Millisecond))
	g.Expect(err).To(HaveOccurred())
}

// Whatever comes back: no panic, and an output only where its length is right.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"", "\r\n\r\n", "HTTP/1.1 200 OK\r\nCni-Exit: 1\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200\r\ncni-exit:0\r\ncontent-length:2\r\n\r\n{}",
		"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", "HTTP/1. 200\r\nContent-Length: -1\r\n\r\n", "HTTP/1.12\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := receive(bytes.NewReader(text))
		if err != nil {
			return
		}
		r, err := a.result("ADD")
		if err == nil && !bytes.HasSuffix(text, r.out) || err != nil && err.Error() == "" {
			t.Fatalf("%q: %q, %v", text, r.out, err)
		}
	})
}
