// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package page tests the page in a headless Chromium. It does so against a real agent behind
// "cadastre page", and against an agent's API over a ledger with 250 000 leases. It also does
// so against a real operator with an API server, an etcd and 1000 nodes. The steps in the
// browser are in web/e2e. "make ci SUITE=e2e-page" installs what it needs and runs it.
package page

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// chromium is Debian's.
const chromium = "/usr/bin/chromium"

func TestPage(t *testing.T) {
	g := NewWithT(t)
	root, err := filepath.Abs("../../..")
	g.Expect(err).NotTo(HaveOccurred())
	node := need(t, root)
	bin := t.TempDir()
	g.Expect(stage.Build(t.Context(), root, bin, stage.OurPrograms)).To(Succeed())
	t.Run("access to the agent's page", func(t *testing.T) { testAgentAccess(t, root, bin) })
	agent := launchAgent(t, g, root, bin, filepath.Join(root, "conf/contiv.conf"))
	cmd := exec.CommandContext(t.Context(), node, "--test", "--test-reporter=spec", filepath.Join(root, "web/e2e/page.test.mjs"))
	cmd.Env = os.Environ()
	p, operator := startPlane(t, g, agent.Bin), ""
	if p != nil {
		operator = p.pageOfOperator(t, g)
		cmd.Env = append(cmd.Env, "CADASTRE_KUBECTL="+filepath.Join(p.assets, "kubectl"), "CADASTRE_KUBECONFIG="+p.kubeconfig)
	}
	cmd.Env = append(cmd.Env,
		"CADASTRE_OPERATOR="+operator,
		"CADASTRE_PAGE="+servePage(t, g, agent),
		"CADASTRE_LARGE="+serveLarge(t, g),
		"CADASTRE_BIN="+agent.Bin,
		"CADASTRE_SOCKET="+agent.Socket(),
		"CADASTRE_CHROMIUM="+chromium,
		"CADASTRE_PROFILE="+t.TempDir(),
	)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	g.Expect(cmd.Run()).To(Succeed())
	if p != nil {
		t.Run("access to the operator's page", func(t *testing.T) { testOperatorAccess(t, p) })
	}
}

// need skips the test if a browser or a tool is missing, and returns the path of Node.js.
func need(t *testing.T, root string) (node string) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("NOT RUN: Node.js is missing: the page is not tested in a browser")
	}
	for what, path := range map[string]string{
		"Chromium (apt-get install chromium)": chromium,
		"playwright-core (npm ci in web)":     filepath.Join(root, "web/node_modules/playwright-core"),
	} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("NOT RUN: %s is missing; make ci SUITE=e2e-page installs it", what)
		}
	}
	return node
}

// launchAgent runs a real agent without a data plane.
func launchAgent(t *testing.T, g Gomega, root, bin, config string) stage.Agent {
	dir, err := os.MkdirTemp("", "page")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := stage.Agent{Place: stage.Place{Root: root, Bin: bin, Dir: dir}, Config: config, Node: "node-a"}
	p, err := a.Launch(func(f func() error) error { return f() })
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(p.Halt(10 * time.Second)).To(Succeed()) })
	g.Expect(a.Await(t.Context(), p)).To(Succeed())
	return a
}

// servePage runs "cadastre page" and returns the address that it prints.
func servePage(t *testing.T, g Gomega, a stage.Agent) string {
	cmd := exec.Command(a.Program("cadastre"), "--socket", a.Socket(), "page")
	out, err := cmd.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		g.Expect(cmd.Process.Signal(os.Interrupt)).To(Succeed())
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	g.Expect(lines.Scan()).To(BeTrue(), "no address is printed")
	return lines.Text()
}

// about describes the agent of the large ledger.
type about struct{}

func (about) Status() localapi.Status {
	return localapi.Status{NodeName: "large", Ready: true, Live: true}
}

// quiet is an event loop without events.
type quiet struct{}

func (quiet) Events(uint64) ([]controller.Record, <-chan struct{}) { return nil, nil }

func (quiet) Query(controller.HistoryQuery) ([]controller.Record, error) { return nil, nil }

// serveLarge serves the API over a ledger with 1000 blocks, 250 leases in each, and a pool
// "states" with addresses in every state. It returns the address of its page.
func serveLarge(t *testing.T, g Gomega) string {
	book, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	fillLarge(g, book)
	fillStates(t.Context(), g, book)
	p := restapi.NewPlugin(restapi.Deps{Agent: about{}, Ledger: book, Loop: quiet{}, Metrics: prometheus.NewRegistry()})
	server := httptest.NewServer(p.ReadOnlyHandler())
	t.Cleanup(func() {
		server.CloseClientConnections() // the browser's event streams
		server.Close()
	})
	return server.URL + "/page/"
}

// fillLarge makes 1000 blocks of 512 addresses. Two neighbours have 500 leases together.
func fillLarge(g Gomega, book *ledger.Ledger) {
	st := book.Begin()
	var blocks []netip.Prefix
	for i := range 1000 {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 128), byte(2 * i), 0}), 23))
	}
	g.Expect(st.SetPool(ledger.Pool{Name: "large", ReserveEdges: true})).To(Succeed())
	g.Expect(st.SetBlocks("large", blocks)).To(Succeed())
	n := 0
	for i, block := range blocks {
		leases := 250 + (i/2*83)%241
		if i%2 == 1 {
			leases = 250 - (i/2*83)%241
		}
		for range leases {
			_, _, err := st.Claim(ledger.Request{
				Pool:   "large",
				Key:    ledger.Key{Network: "pods", ContainerID: fmt.Sprintf("%064x", n), IfName: "eth0"},
				Pod:    ledger.Pod{Namespace: "shop", Name: fmt.Sprintf("web-5d7c8b9f4-%06d", n)},
				Within: []netip.Prefix{block}, Families: []ledger.Family{ledger.IPv4},
			})
			g.Expect(err).NotTo(HaveOccurred())
			n++
		}
	}
	g.Expect(n).To(Equal(250_000))
	g.Expect(st.Commit(context.Background())).To(Succeed())
}

func fillStates(ctx context.Context, g Gomega, book *ledger.Ledger) {
	st := book.Begin()
	g.Expect(st.SetPool(ledger.Pool{
		Name: "states", CoolDown: time.Hour, ReserveEdges: true, Exclude: []netip.Prefix{netip.MustParsePrefix("172.16.3.64/29")},
	})).To(Succeed())
	block, old := netip.MustParsePrefix("172.16.3.0/24"), netip.MustParsePrefix("172.16.4.0/28")
	g.Expect(st.SetBlocks("states", []netip.Prefix{block, old})).To(Succeed())
	claim := func(name string, purpose ledger.Purpose, a netip.Addr) {
		_, _, err := st.Claim(ledger.Request{
			Pool: "states", Key: ledger.Key{Network: "pods", ContainerID: name, IfName: "eth0"}, Purpose: purpose,
			Pod: ledger.Pod{Namespace: "shop", Name: name}, Wanted: []netip.Addr{a},
		})
		g.Expect(err).NotTo(HaveOccurred())
	}
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{172, 16, 3, byte(n)}) }
	claim("gateway", ledger.ForInfra, at(1))
	for i := 2; i < 40; i++ {
		claim(fmt.Sprint("web-", i), ledger.ForPod, at(i))
	}
	claim("old", ledger.ForPod, netip.MustParseAddr("172.16.4.3"))
	g.Expect(st.Commit(ctx)).To(Succeed())
	for i := 20; i < 30; i++ {
		_, err := book.Release(ctx, ledger.Selector{Key: ledger.Key{Network: "pods", ContainerID: fmt.Sprint("web-", i), IfName: "eth0"}})
		g.Expect(err).NotTo(HaveOccurred())
	}
	for i := 100; i < 104; i++ {
		key := ledger.Key{Network: ledger.WitnessNetwork, ContainerID: fmt.Sprint(i), IfName: "eth0"}
		_, err := book.Quarantine(ctx, "states", at(i), key, "a host answers at this address")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(book.Exclude(ctx, ledger.Exclusion{Pool: "states", Addr: at(i + 20), Owner: "admin", Reason: "a printer"})).To(Succeed())
	}
	g.Expect(st.SetBlocks("states", []netip.Prefix{block})).To(Succeed())
	g.Expect(st.Commit(ctx)).To(Succeed())
}
