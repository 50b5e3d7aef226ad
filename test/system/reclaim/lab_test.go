// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package reclaim tests from outside that leases end whose owners are gone, and no others.
// It uses a real agent process, real network namespaces, and a container runtime over a
// real socket. The runtime says what a test lets it say. The package has tests only.
package reclaim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// binEnv names the directory of the programs.
const binEnv = "RECLAIM_BIN"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "reclaim-bin-")
	if err == nil {
		err = errors.Join(
			stage.Build(context.Background(), "../../..", dir, "./cmd/cadastre-agent", "./cmd/cadastre"),
			os.Setenv(binEnv, dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reclaim:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// lab is a node: an agent in a network namespace of its own, and a container runtime.
type lab struct {
	t     testing.TB
	g     Gomega
	agent stage.Agent
	proc  *stage.Process
	home  *netlab.Namespace
	cri   *critest.Server
	pods  map[string]*netlab.Namespace
}

// settings are those of a lab.
type settings struct {
	grace, undo, interval string
	coolDown              string
	noRuntime             bool
	wired                 bool // the agent makes the interfaces of pods
	further               int  // of several labs in one test: the number of this one
}

func newLab(t testing.TB, s settings) *lab {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("this machine makes no network namespaces: %v", err)
	}
	if err := stage.LookAtSources("../../.."); err != nil {
		t.Fatal(err)
	}
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "rl") // a test's own folder is too long for a socket
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := &lab{t: t, g: g, pods: map[string]*netlab.Namespace{}}
	l.agent = stage.Agent{
		Place:  stage.Place{Root: dir, Bin: os.Getenv(binEnv), Dir: dir},
		Config: filepath.Join(dir, "contiv.conf"),
		Node:   "node-1",
	}
	l.cri = critest.New(filepath.Join(dir, "cri.sock"))
	runtime := "none"
	if !s.noRuntime {
		g.Expect(l.cri.Start()).To(Succeed())
		t.Cleanup(l.cri.Stop)
		runtime = "unix://" + filepath.Join(dir, "cri.sock")
	}
	conf := fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.%d.0.0/16}
cadastre:
  coolDown: %s
  controller: {enableVerification: true}
  dataplane: %s
  witnesses: {netns: [], runtime: %q, engine: none, interval: %s}
  reclaim: {grace: %s, undo: %s}
`, 112+(os.Getpid()+s.further)%128, or(s.coolDown, "1s"), map[bool]string{false: "none", true: "linux"}[s.wired], runtime, or(s.interval, "100ms"), or(s.grace, "300ms"), or(s.undo, "1h"))
	g.Expect(os.WriteFile(l.agent.Config, []byte(conf), 0o600)).To(Succeed())
	l.home, err = netlab.New()
	g.Expect(err).NotTo(HaveOccurred())
	l.start()
	t.Cleanup(l.close)
	t.Cleanup(l.rest)
	return l
}

func or(given, otherwise string) string {
	if given == "" {
		return otherwise
	}
	return given
}

func (l *lab) start() {
	l.t.Helper()
	var err error
	l.proc, err = l.agent.Launch(l.home.Do)
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Expect(l.agent.Await(l.t.Context(), l.proc)).To(Succeed())
}

// kill ends the agent as a crash does, and starts it again.
func (l *lab) kill() {
	l.t.Helper()
	l.g.Expect(l.proc.Kill()).To(Succeed())
	l.start()
}

// rest waits at the end of a test until the agent is at rest.
func (l *lab) rest() {
	if !l.t.Failed() {
		l.g.Expect(l.agent.AwaitRest(context.Background(), l.proc, l.home.Do)).To(Succeed())
	}
}

func (l *lab) close() {
	_ = l.proc.Stop(10 * time.Second)
	for _, ns := range l.pods {
		_ = ns.Close()
	}
	_ = l.home.Close()
	if l.t.Failed() {
		log, _ := os.ReadFile(l.agent.Log())
		l.t.Logf("%s", log)
	}
}

// request sends a CNI request to the agent.
func (l *lab) request(req cni.Request) (reply cni.Reply, failure *cni.Error) {
	l.t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.agent.Socket())
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	reply, err := cniclient.Ask(context.Background(), client.Do, req)
	if !errors.As(err, &failure) {
		l.g.Expect(err).NotTo(HaveOccurred())
	}
	return reply, failure
}

func (l *lab) requestFor(command, name string) cni.Request {
	req := cni.Request{
		Command: command, Network: "pods", ContainerID: name, IfName: "eth0", Netns: "/run/netns/" + name,
		Pod: cni.Pod{Namespace: "shop", Name: name, UID: "uid-" + name},
	}
	if ns := l.pods[name]; ns != nil {
		req.Netns = ns.Path()
	}
	return req
}

// add makes a pod: its namespace, its sandbox, its lease and its link.
func (l *lab) add(name string) netip.Addr {
	l.t.Helper()
	ns, err := netlab.New()
	l.g.Expect(err).NotTo(HaveOccurred())
	l.pods[name] = ns
	l.sandboxes()
	a := l.addAgain(name)
	l.g.Expect(ns.Do(func() error { return setAddress("eth0", a) })).To(Succeed())
	return a
}

// addAgain repeats the ADD of a pod.
func (l *lab) addAgain(name string) netip.Addr {
	l.t.Helper()
	reply, failure := l.request(l.requestFor("ADD", name))
	l.g.Expect(failure).To(BeNil())
	prefix, err := netip.ParsePrefix(reply.IPs[0].Address)
	l.g.Expect(err).NotTo(HaveOccurred())
	return prefix.Addr()
}

// setAddress makes a link with an address in the namespace that the thread is in.
func setAddress(link string, a netip.Addr) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: link + "-peer"}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add %s: %w", link, err)
	}
	address, err := netlink.ParseAddr(netip.PrefixFrom(a, 32).String())
	if err != nil {
		return err
	}
	return netlink.AddrAdd(veth, address)
}

// sandboxes lets the runtime have the sandboxes of all pods that have a namespace.
func (l *lab) sandboxes(more ...string) {
	var all []critest.Sandbox
	for _, name := range append(slices.Collect(keys(l.pods)), more...) {
		all = append(all, critest.Sandbox{ID: name, Namespace: "shop", Name: name})
	}
	l.cri.Set(all...)
}

func keys(m map[string]*netlab.Namespace) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// vanish ends the namespace of a pod. Its sandbox is gone with the next call of sandboxes.
func (l *lab) vanish(name string) {
	l.t.Helper()
	l.g.Expect(l.pods[name].Close()).To(Succeed())
	delete(l.pods, name)
}

// lease returns the lease of a pod, the zero one if it has none.
func (l *lab) lease(name string) localapi.Lease {
	l.t.Helper()
	leases, _, err := l.agent.Leases(l.t.Context())
	l.g.Expect(err).NotTo(HaveOccurred())
	for _, x := range leases {
		if x.ContainerID == name && x.State != "cooling" {
			return x
		}
	}
	return localapi.Lease{}
}

// state returns the state of the lease of a pod, "" if it has none.
func (l *lab) state(name string) string { return l.lease(name).State }

// becomes waits until the lease of a pod has a state.
func (l *lab) becomes(name, state string) {
	l.t.Helper()
	l.g.Eventually(func() string { return l.state(name) }).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).
		Should(Equal(state))
}

// rounds waits until the agent has read the witnesses some times more.
func (l *lab) rounds(n int) {
	l.t.Helper()
	count := func() int {
		text, err := l.agent.Get(l.t.Context(), localapi.PathMetrics)
		l.g.Expect(err).NotTo(HaveOccurred())
		m := regexp.MustCompile(`(?m)^cadastre_witness_rounds_total (\d+)`).FindStringSubmatch(text)
		l.g.Expect(m).NotTo(BeNil())
		rounds, err := strconv.Atoi(m[1])
		l.g.Expect(err).NotTo(HaveOccurred())
		return rounds
	}
	until := count() + n
	l.g.Eventually(count).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).Should(BeNumerically(">=", until))
}

// cli runs cadastre.
func (l *lab) cli(args ...string) string {
	l.t.Helper()
	out, err := l.agent.CLI(l.t.Context(), args...)
	l.g.Expect(err).NotTo(HaveOccurred())
	return out
}

// witness returns the line of status about a witness.
func (l *lab) witness(name string) string {
	l.t.Helper()
	for line := range strings.Lines(l.cli("status")) {
		if strings.Contains(line, name+" is ") {
			return line
		}
	}
	return ""
}

// changeAddress removes an address of a link and adds another one; the zero Addr: none.
func changeAddress(link string, from, to netip.Addr) error {
	x, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	parse := func(a netip.Addr) *netlink.Addr {
		parsed, _ := netlink.ParseAddr(netip.PrefixFrom(a, 32).String())
		return parsed
	}
	if to.IsValid() {
		err = netlink.AddrAdd(x, parse(to))
	}
	if from.IsValid() {
		err = errors.Join(err, netlink.AddrDel(x, parse(from)))
	}
	return err
}

func removeLink(link string) error {
	x, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkDel(x)
}
