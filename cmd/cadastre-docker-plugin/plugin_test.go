// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stand is a machine: the plugin as a program, and an agent's Docker part.
type stand struct {
	Gomega
	t   *testing.T
	dir string
	log *bytes.Buffer

	engine string // the address of its API
}

func newStand(t *testing.T) *stand {
	dir, err := os.MkdirTemp("", "plugin-") // a test's own is too long for a socket
	s := &stand{Gomega: NewWithT(t), t: t, dir: dir, log: new(bytes.Buffer), engine: "none"}
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(os.Mkdir(s.path("data"), 0o700)).To(Succeed())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return s
}

func (s *stand) path(name string) string { return filepath.Join(s.dir, name) }

// start runs the plugin until the function that it gives is called.
func (s *stand) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		env := func(key string) string {
			return map[string]string{"AGENT_SOCKET": s.path("agent.sock"), "ENGINE": s.engine}[key]
		}
		ended <- run(ctx, []string{"--socket", s.path("docker.sock"), "--data", s.path("data")}, env, io.Discard, s.log, func(int) { panic("the database was changed") })
	}()
	s.Eventually(s.path("docker.sock"), "20s").Should(BeAnExistingFile())
	s.Eventually(s.path("data/agent.sock"), "20s").Should(BeAnExistingFile())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		s.Expect(<-ended).To(BeZero(), "%s", s.log)
	}
	s.t.Cleanup(stop)
	return stop
}

// startAgent runs an agent's driver on a ledger, as far as the engine sees it.
func (s *stand) startAgent(l *ledger.Ledger, records ipamapi.Records) (stop func()) {
	p := dockeripam.NewPlugin(dockeripam.Deps{Socket: s.path("agent.sock"), NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
		return ipamapi.New(ctx, ipamapi.Deps{Ledger: l, Records: records})
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- p.Run(ctx) }()
	go func() { ended <- p.Serve(ctx) }()
	s.Eventually(s.path("agent.sock"), "20s").Should(BeAnExistingFile())
	return func() {
		cancel()
		s.Expect(<-ended).To(Succeed())
		s.Expect(<-ended).To(Succeed())
	}
}

func (s *stand) ledger() *ledger.Ledger {
	l, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	s.Expect(err).NotTo(HaveOccurred())
	return l
}

// post is one request to a socket.
func (s *stand) post(socket, method, path, body string) (int, map[string]any) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.path(socket))
	}}}
	req, err := http.NewRequest(method, "http://plugin.moby.localhost"+path, strings.NewReader(body))
	s.Expect(err).NotTo(HaveOccurred())
	resp, err := client.Do(req)
	s.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	s.Expect(err).NotTo(HaveOccurred())
	var v map[string]any
	s.Expect(json.Unmarshal(answer, &v)).To(Succeed(), "%s: %q", path, answer)
	return resp.StatusCode, v
}

// ask asks the proxy; the answer is a field of what it says, or its error.
func (s *stand) ask(method, body, field string) string {
	status, v := s.post("docker.sock", http.MethodPost, "/"+method, body)
	if status != http.StatusOK {
		s.Expect(v["Err"]).To(Equal(v["Error"]))
		return fmt.Sprint(status, " ", v["Err"])
	}
	return fmt.Sprint(v[field])
}

func (s *stand) spaces() string {
	return s.ask("IpamDriver.GetDefaultAddressSpaces", "", "LocalDefaultAddressSpace")
}

// pool requests a pool as the engine does: in the space that it was told.
func (s *stand) pool(prefix string) string {
	return s.ask("IpamDriver.RequestPool", fmt.Sprintf(`{"AddressSpace":%q,"Pool":%q}`, s.spaces(), prefix), "PoolID")
}

func (s *stand) address(pool string) string {
	return s.ask("IpamDriver.RequestAddress", fmt.Sprintf(`{"PoolID":%q,"Address":""}`, pool), "Address")
}

func (s *stand) release(pool string) string {
	return s.ask("IpamDriver.ReleasePool", fmt.Sprintf(`{"PoolID":%q}`, pool), "none")
}

func (s *stand) note() string {
	_, v := s.post("data/agent.sock", http.MethodGet, localapi.PathStatus, "")
	return fmt.Sprint(v["notes"])
}

// Without an agent the plugin has a ledger of its own, and its status says so.
func TestWithoutAgent(t *testing.T) {
	s := newStand(t)
	stop := s.start()
	s.Expect(s.ask("Plugin.Activate", "", "Implements")).To(Equal("[IpamDriver]"))
	s.Expect(s.ask("IpamDriver.GetCapabilities", "", "RequiresMACAddress")).To(Equal("true"))
	s.Expect(s.spaces()).To(Equal(ownLocal))
	id := s.pool("198.18.0.0/16")
	s.Expect(id).To(Equal("PluginLocal/198.18.0.0/16"))
	s.Expect(s.address(id)).To(Equal("198.18.0.1/16"))
	s.Expect(s.note()).To(ContainSubstring("does not share the pods' plan"))
	for _, body := range []string{"", "null", "[]", "{"} {
		s.Expect(s.ask("IpamDriver.RequestAddress", body, "Address")).To(HavePrefix("400 "), body)
	}
	s.Expect(s.ask("IpamDriver.Nothing", "{}", "")).To(HavePrefix("404 "))
	_, v := s.post("data/agent.sock", http.MethodGet, localapi.PathStatus, "")
	s.Expect(fmt.Sprint(v["blocks"])).To(ContainSubstring("docker/PluginLocal/198.18.0.0/16"))
	stop()

	s.start()
	s.Expect(s.address(id)).To(Equal("198.18.0.2/16"), "it was written down")
	s.Expect(s.release(id)).To(Equal("<nil>"))
	s.Expect(s.pool("198.18.0.0/16")).To(Equal(id))
	s.Expect(s.address(id)).To(Equal("198.18.0.1/16"))
}

// Pools of the own ledger stay there; all others are the agent's, even while it is
// away and after a restart.
func TestAgentStartsLater(t *testing.T) {
	s := newStand(t)
	stop := s.start()
	before := s.pool("198.18.0.0/16")
	l, records := s.ledger(), ipamapi.NewMemoryRecords()
	stopAgent := s.startAgent(l, records)
	s.Expect(s.note()).To(ContainSubstring("does not share"), "the engine has not asked yet")
	s.Expect(s.spaces()).To(Equal("LocalDefault"))
	s.Expect(s.note()).To(ContainSubstring("forwarded to the agent"))
	id := s.pool("198.19.0.0/16")
	s.Expect(id).To(Equal("LocalDefault/198.19.0.0/16"))
	s.Expect(s.address(id)).To(Equal("198.19.0.1/16"))
	s.Expect(l.Leases()).To(HaveLen(1))
	s.Expect(s.address(before)).To(Equal("198.18.0.1/16"))
	s.Expect(s.ask("IpamDriver.RequestPool", `{"AddressSpace":"LocalDefault","Pool":"198.19.0.0/17"}`, "PoolID")).To(HavePrefix("403 "), "its errors are passed on")
	s.Expect(s.ask("IpamDriver.ReleaseAddress", `{"PoolID":"LocalDefault/198.19.0.0/16","Address":"198.19.0.1"}`, "none")).To(Equal("<nil>"))
	s.Expect(l.Leases()).To(BeEmpty())

	away := And(HavePrefix("503 the agent at "+s.path("agent.sock")), ContainSubstring("does not answer"))
	stopAgent()
	for range 2 {
		s.Expect(s.spaces()).To(away, "the own ledger does not replace the agent")
		s.Expect(s.ask("IpamDriver.RequestPool", `{"AddressSpace":"LocalDefault"}`, "PoolID")).To(away)
		s.Expect(s.address(id)).To(away)
		s.Expect(s.release(id)).To(away, "or its pool would leak unheard")
		s.Expect(s.address(before)).To(HavePrefix("198.18.0."))
		stop()
		stop = s.start()
	}
	defer s.startAgent(l, records)()
	s.Expect(s.address(id)).To(Equal("198.19.0.1/16"))
	s.Expect(s.release(id)).To(Equal("<nil>"))
	s.Expect(s.release(before)).To(Equal("<nil>"))
	s.Expect(s.pool("")).To(HavePrefix("LocalDefault/"))
	s.Expect(s.ask("IpamDriver.RequestAddress", "", "Address")).To(HavePrefix("400 "))
}

// An agent that has not started its driver counts as an agent.
func TestAgentWithoutResync(t *testing.T) {
	s := newStand(t)
	p := dockeripam.NewPlugin(dockeripam.Deps{Socket: s.path("agent.sock"), Patience: time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx) }()
	s.Eventually(s.path("agent.sock"), "20s").Should(BeAnExistingFile())
	s.start()
	s.Expect(s.spaces()).To(HavePrefix("503 the agent has had no first resync yet"))
	cancel()
	s.Expect(<-ended).To(Succeed())
	s.Expect(s.spaces()).To(ContainSubstring("does not answer"), "pods may have addresses that the own ledger does not know")
}

// The plugin does not answer with an agent that it cannot record.
func TestAgentThatCannotBeRecorded(t *testing.T) {
	s := newStand(t)
	defer s.startAgent(s.ledger(), ipamapi.NewMemoryRecords())()
	d := newProxy(slog.New(slog.DiscardHandler), s.path("agent.sock"), false, func() error { return os.ErrPermission })
	p := dockeripam.NewPlugin(dockeripam.Deps{PluginDeps: controller.PluginDeps{}, Socket: s.path("docker.sock"), Around: d.around})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx) }()
	s.Eventually(s.path("docker.sock"), "20s").Should(BeAnExistingFile())
	s.Expect(s.spaces()).To(HavePrefix("503 record that an agent has answered"))
	s.Expect(d.seen.Load()).To(BeFalse())
	cancel()
	s.Expect(<-ended).To(Succeed())
}

func TestCommandLine(t *testing.T) {
	g := NewWithT(t)
	env := func(string) string { return "" }
	for _, args := range []string{"", "--agent /a --socket /a", "--agent /a more", "--no-such-flag"} {
		var stderr bytes.Buffer
		g.Expect(run(t.Context(), strings.Fields(args), env, io.Discard, &stderr, nil)).To(Equal(2), args)
		g.Expect(stderr.Len()).NotTo(BeZero(), args)
	}
	g.Expect(run(t.Context(), []string{"--help"}, env, io.Discard, io.Discard, nil)).To(BeZero())
	var stderr bytes.Buffer
	g.Expect(run(t.Context(), []string{"--agent", "/a", "--data", "/dev/null/x"}, env, io.Discard, &stderr, nil)).To(Equal(1))
	g.Expect(stderr.String()).To(ContainSubstring("open database /dev/null/x/cadastre.db"))
}
