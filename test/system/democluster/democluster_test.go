// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/internal/testkit/stage/stagetest"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

func TestCluster(t *testing.T) {
	effort.Need(t, "an end-to-end test, which make demo CLUSTER=1 runs once")
	b := stagetest.BuildAll(t)
	with := withNamespaces(t)
	for _, w := range []stage.Way{with, stage.WayNone} {
		t.Run(string(w), func(t *testing.T) { testWay(t, b, w) })
	}
	t.Run("interrupted/"+string(with), func(t *testing.T) { testInterrupted(t, b, with, 8) })
	for _, step := range []int{4, 12} {
		t.Run(fmt.Sprint("interrupted/none/", step), func(t *testing.T) { testInterrupted(t, b, stage.WayNone, step) })
	}
	t.Run("failing", func(t *testing.T) { testFailing(t, b) })
}

// withNamespaces is the way that needs the least; make demo CLUSTER=1 takes the other.
func withNamespaces(t *testing.T) stage.Way {
	t.Helper()
	if stage.TryUser(t.Context()) == nil {
		return stage.WayUser
	}
	return stage.WayRoot
}

func testWay(t *testing.T, b stagetest.Built, w stage.Way) {
	g := NewWithT(t)
	stagetest.NeedWay(t, w)
	stagetest.Scratch(t)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), b.Args("--namespaces="+string(w)), &stdout, &stderr)
	g.Expect(code).To(BeZero(), "%s%s", &stdout, &stderr)
	g.Expect(stderr.Len()).To(BeZero(), "%s", &stderr)
	told := stdout.String()
	prefix := "/32; " // the agents make the interfaces, which route everything to the gateway
	if w == stage.WayNone {
		prefix = "/24; "
	}
	for _, text := range []string{
		"was given 10.11.1.2" + prefix + "its gateway is 10.11.1.1", "from its mirror of the store", "All agents follow it again",
		"node-4: pod-4b was given 10.11.4.3" + prefix, "No node has had a doubt about its node ID", "4 blocks drain, 10 leases stay",
		"was given 10.12.4.2" + prefix + "its gateway is 10.12.4.1", "refused: nothing was changed", "stop it and wait 3s", "released node ID 4 of node-4",
		"node-5: pod-5a was given 10.12.4.2" + prefix, "says in its [status log events metrics]: node ID 1: ", "the node ID is taken: node ID 1 is of node node-6",
		"allocates no new address: node ID 1", "released node ID 1 of node-6", "was given 10.12.1.3" + prefix, "all 11 pods pass CHECK",
		"node-5: no pod holds an address", "\n22. Stop the agents", "nothing is left of it",
	} {
		g.Expect(told).To(ContainSubstring(text))
	}
	for _, text := range []string{
		" via 192.168.30.2, node-", "Each of the 6 pods has reached", "Each of the 9 pods has reached", "Each of the 13 pods has reached",
		"Each of the 11 pods has reached", "No packet was lost",
	} {
		g.Expect(strings.Contains(told, text)).To(Equal(w != stage.WayNone), text)
	}
}

// testInterrupted presses Ctrl-C, as it were, in a step.
func testInterrupted(t *testing.T, b stagetest.Built, w stage.Way, step int) {
	g := NewWithT(t)
	stagetest.NeedWay(t, w)
	stagetest.Scratch(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout, stderr := stagetest.Watch(fmt.Sprintf("\n%2d. ", step), cancel), stagetest.Watch("", nil)
	code := run(ctx, b.Args("--namespaces="+string(w)), stdout, stderr)
	said := stdout.String() + stderr.String()
	g.Expect(code).To(Equal(1), said)
	g.Expect(said).To(ContainSubstring("Interrupted in step %d.", step))
	g.Expect(said).NotTo(ContainSubstring("FAILED"))
}

// testFailing has no cadastre-cni.
func testFailing(t *testing.T, b stagetest.Built) {
	g := NewWithT(t)
	b = b.Only(t, "cadastre", "cadastre-agent")
	stagetest.Scratch(t)
	var stdout, stderr bytes.Buffer
	g.Expect(run(t.Context(), b.Args("--namespaces=none"), &stdout, &stderr)).To(Equal(1))
	for _, text := range []string{
		"FAILED in step 6: ADD pod-1a: ", "failed to find plugin ", "node-1's log ends with:", "node-3's log ends with:", "Etcd's log ends with:",
	} {
		g.Expect(stdout.String()).To(ContainSubstring(text))
	}
}

func TestEtcdThatCannotServe(t *testing.T) {
	g := NewWithT(t)
	here := func(f func() error) error { return f() }
	// an address for documentation
	e := &etcd{dir: t.TempDir(), client: "http://192.0.2.1:1", peer: "http://192.0.2.1:2", within: here}
	g.Expect(e.start(t.Context())).To(MatchError(ContainSubstring("etcd does not serve")))
	g.Eventually(e.process.Done(), 10*time.Second).Should(BeClosed())
	g.Expect(e.end()).To(MatchError(ContainSubstring("ended by itself")))
	var stderr bytes.Buffer
	g.Expect(run(t.Context(), []string{etcdVerb, "--no-such-flag"}, &stderr, &stderr)).To(Equal(1))
}

func TestCompare(t *testing.T) {
	good := func() []localapi.Node {
		return []localapi.Node{
			{ID: 1, Name: "node-2", Addresses: []string{"192.168.16.1/24"}, PodCIDRs: []string{"10.11.1.0/24", "10.12.1.0/24"}},
			{ID: 2, Name: "node-1", Addresses: []string{"192.168.16.2/24"}, PodCIDRs: []string{"10.11.2.0/24"}},
			{ID: 3, Name: "node-9", Released: true, PodCIDRs: []string{"10.11.2.0/24"}},
		}
	}
	c := &cluster{}
	for id, name := range map[uint32]string{1: "node-2", 2: "node-1"} {
		c.nodes = append(c.nodes, &node{Agent: stage.Agent{Node: name}, id: id, address: netip.MustParsePrefix(fmt.Sprintf("192.168.16.%d/24", id))})
	}
	g := NewWithT(t)
	g.Expect(c.compare(good())).To(Succeed())
	for what, change := range map[string]func([]localapi.Node) []localapi.Node{
		"one is missing":  func(l []localapi.Node) []localapi.Node { return l[1:] },
		"one is released": func(l []localapi.Node) []localapi.Node { l[0].Released = true; return l },
		"one too many": func(l []localapi.Node) []localapi.Node {
			l[2].Released, l[2].PodCIDRs = false, []string{"10.11.3.0/24"}
			return l
		},
		"a shared ID":       func(l []localapi.Node) []localapi.Node { l[1].ID = 1; return l },
		"a shared subnet":   func(l []localapi.Node) []localapi.Node { l[1].PodCIDRs[0] = "10.12.1.0/24"; return l },
		"no subnet":         func(l []localapi.Node) []localapi.Node { l[1].PodCIDRs = nil; return l },
		"another's address": func(l []localapi.Node) []localapi.Node { l[1].Addresses = l[0].Addresses; return l },
		"no address":        func(l []localapi.Node) []localapi.Node { l[1].Addresses = nil; return l },
		"another's name":    func(l []localapi.Node) []localapi.Node { l[0].Name, l[1].Name = l[1].Name, l[0].Name; return l },
	} {
		g.Expect(c.compare(change(good()))).NotTo(Succeed(), what)
	}
}

// TestAgentThatEnds waits for one that does not come.
func TestAgentThatEnds(t *testing.T) {
	g := NewWithT(t)
	p, err := stage.Start(exec.Command("sh", "-c", "exit 7"), func(f func() error) error { return f() })
	g.Expect(err).NotTo(HaveOccurred())
	c := &cluster{nodes: []*node{{Agent: stage.Agent{Node: "node-1"}}, {Agent: stage.Agent{Node: "node-2"}, agent: p}}}
	err = c.eventually(t.Context(), "something happens", func() error { return errors.New("not yet") })
	g.Expect(err).To(MatchError(And(HavePrefix("something happens: node-2: "), ContainSubstring("exit status 7"))))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.nodes = nil
	g.Expect(c.eventually(ctx, "something happens", func() error { return errors.New("not yet") })).To(MatchError("something happens: not yet"))
}

// brokenTalk is one that has lost a packet.
type brokenTalk struct{}

func (brokenTalk) Exchanges() uint64 { return 7 }
func (brokenTalk) Err() error        { return errors.New("a packet does not arrive") }
func (brokenTalk) End() error        { return errors.New("a packet did not arrive") }

func TestPodsThatCeaseToTalk(t *testing.T) {
	g := NewWithT(t)
	c := &cluster{talks: []talk{brokenTalk{}}}
	err := c.eventually(t.Context(), "something happens", func() error { return errors.New("not yet") })
	g.Expect(err).To(MatchError("something happens: a packet does not arrive"))
	g.Expect(c.heard(t.Context())).To(MatchError("pods talk: a packet does not arrive"))
	g.Expect(c.silence()).To(MatchError("a packet did not arrive"))
	g.Expect(c.silence()).To(Succeed())
}
