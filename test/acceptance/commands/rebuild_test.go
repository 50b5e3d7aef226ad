// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/internal/testkit/stage/nodescript"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// patience bounds the wait for another process; it decides no result.
const patience = time.Minute

// rebuildConfig has networks that no other test of this machine has: the kernel also
// shows the namespaces of the host's links.
const rebuildConfig = `
ipamConfig:
  podSubnetCIDR: 10.213.0.0/16
  podSubnetOneNodePrefixLen: 24
  vppHostSubnetCIDR: 172.29.0.0/16
  vppHostSubnetOneNodePrefixLen: 24
  nodeInterconnectCIDR: 192.168.116.0/24
  vxlanCIDR: 192.168.130.0/24
`

// lostNode is a node in a network namespace of its own, with pods that the bridge plugin
// and libcni have made.
type lostNode struct {
	stage.Agent
	t       *testing.T
	host    *netlab.Namespace
	network *stage.Network
	process *stage.Process
	flags   []string // of rebuild
}

func newLostNode(t *testing.T) *lostNode {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	dir, err := os.MkdirTemp("", "reb")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin := nodescript.Bin()
	must(t, stage.Build(t.Context(), "../../..", bin, stage.BridgePlugin))
	n := &lostNode{t: t, Agent: stage.Agent{
		Place: stage.Place{Root: dir, Bin: bin, Dir: dir}, Config: filepath.Join(dir, "contiv.conf"), Node: "node-1",
	}}
	must(t, os.WriteFile(n.Config, []byte(rebuildConfig), 0o600))
	n.host, err = netlab.New()
	must(t, err)
	t.Cleanup(func() { _ = n.host.Close() })
	n.network, err = stage.NewNetwork(n.Agent, stage.WayRoot, "cad0")
	must(t, err)
	n.flags = []string{
		"--config", n.Config, "--node-id", "1", "--state-dir", n.State(), "--run-dir", filepath.Dir(n.Socket()),
		"--netns", filepath.Join(dir, "netns"), "--cni-results", filepath.Join(dir, "cni", "results"), "--processes=false", "--engine", "none",
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start starts the agent and waits until it serves. An agent that is not ready, because
// its database is in doubt, also serves.
func (n *lostNode) start(ready bool) {
	n.t.Helper()
	var err error
	n.process, err = n.Launch(n.host.Do)
	must(n.t, err)
	n.t.Cleanup(func() { _ = n.process.Stop(patience) })
	if ready {
		must(n.t, n.Await(n.t.Context(), n.process))
		return
	}
	NewWithT(n.t).Eventually(func() error {
		_, err := n.Get(n.t.Context(), localapi.PathHealthz)
		return err
	}, patience).Should(Succeed())
}

func (n *lostNode) add(name string) (*stage.Pod, error) {
	n.t.Helper()
	p, err := stage.NewPod(name, stage.WayRoot, n.Dir)
	must(n.t, err)
	n.t.Cleanup(func() { _ = p.Close() })
	return p, n.host.Do(func() error { return n.network.Add(n.t.Context(), p) })
}

// rebuild runs cadastre rebuild on the node.
func (n *lostNode) rebuild(more ...string) (out string, err error) {
	args := append(append([]string{"rebuild"}, n.flags...), more...)
	_ = n.host.Do(func() error {
		out, err = n.CLI(context.WithoutCancel(n.t.Context()), args...)
		return nil
	})
	return out, err
}

// lose ends the agent and removes files of its state directory.
func (n *lostNode) lose(files ...string) {
	n.t.Helper()
	must(n.t, n.process.Stop(patience))
	for _, f := range files {
		must(n.t, os.Remove(filepath.Join(n.State(), f)))
	}
}

// The database is gone while pods run. The rebuilt one has their leases under their own
// keys: no new pod gets one of their addresses, and the DEL of each frees its address.
func TestRebuild(t *testing.T) {
	results := func(*lostNode, []localapi.Lease, []*stage.Pod) []string { return []string{"--runtime", "none"} }
	runtime := func(n *lostNode, leases []localapi.Lease, pods []*stage.Pod) []string {
		must(n.t, os.RemoveAll(filepath.Join(n.Dir, "cni", "results")))
		socket := filepath.Join(n.Dir, "cri")
		server := critest.New(socket)
		var all []critest.Sandbox
		for _, p := range pods {
			for _, l := range leases {
				if l.IP == p.Address.Addr().String() {
					all = append(all, critest.Sandbox{ID: l.ContainerID, Namespace: l.PodNamespace, Name: l.PodName, NetNS: p.NetNS()})
				}
			}
		}
		server.Set(all...)
		must(n.t, server.Start())
		n.t.Cleanup(server.Stop)
		return []string{"--runtime", "unix://" + socket, "--network", "demo"}
	}
	emptyResult := func(n *lostNode, _ []localapi.Lease, _ []*stage.Pod) []string { // as after a crash of the machine
		must(n.t, os.WriteFile(filepath.Join(n.Dir, "cni", "results", "demo-crashed-eth0"), nil, 0o600))
		return []string{"--runtime", "none"}
	}
	noRuntime := func(n *lostNode, _ []localapi.Lease, _ []*stage.Pod) []string {
		return []string{"--runtime", "unix://" + filepath.Join(n.Dir, "no-runtime")}
	}
	for name, c := range map[string]struct {
		lost    []string
		flags   func(*lostNode, []localapi.Lease, []*stage.Pod) []string
		trusted bool
	}{
		"from CNI results":             {[]string{"cadastre.db"}, results, true},
		"from CNI results, no note":    {[]string{"cadastre.db", "cadastre.db.note"}, results, true},
		"from sandboxes":               {[]string{"cadastre.db"}, runtime, true},
		"the runtime does not answer":  {[]string{"cadastre.db"}, noRuntime, false},
		"one CNI result is empty":      {[]string{"cadastre.db"}, emptyResult, false},
		"no runtime, no notes":         {[]string{"cadastre.db", "cadastre.db.note", "../run/db.note"}, noRuntime, false},
		"from CNI results, both notes": {[]string{"cadastre.db", "cadastre.db.note", "../run/db.note"}, results, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newLostNode(t)
			n.start(true)
			var pods []*stage.Pod
			for _, name := range []string{"a", "b", "c"} {
				p, err := n.add(name)
				g.Expect(err).NotTo(HaveOccurred())
				pods = append(pods, p)
			}
			leases, _, err := n.Leases(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			_, err = n.rebuild("--runtime", "none")
			g.Expect(err).To(MatchError(ContainSubstring("there is a database")))
			must(t, os.Rename(filepath.Join(n.State(), "cadastre.db"), filepath.Join(n.State(), "away")))
			_, err = n.rebuild("--runtime", "none")
			g.Expect(err).To(MatchError(ContainSubstring("the agent runs")))
			must(t, os.Rename(filepath.Join(n.State(), "away"), filepath.Join(n.State(), "cadastre.db")))
			n.lose(c.lost...)
			flags := c.flags(n, leases, pods)

			out, err := n.rebuild(flags...)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("3 leases, 0 addresses quarantined"))
			for _, p := range pods {
				g.Expect(out).To(MatchRegexp(p.Address.Addr().String() + "  pool default  key demo/[0-9a-f]{64}/eth0  pod demo/" + p.Name))
			}
			g.Expect(filepath.Join(n.State(), "cadastre.db")).NotTo(BeAnExistingFile(), "nothing is written without --write")
			out, err = n.rebuild(append(flags, "--write")...)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(strings.Contains(out, "cadastre accept")).To(Equal(!c.trusted))
			_, err = n.rebuild(append(flags, "--write")...)
			g.Expect(err).To(MatchError(ContainSubstring("there is a database")))

			n.start(c.trusted)
			n.held(pods)
			late, err := n.add("late")
			if !c.trusted {
				g.Expect(err).To(HaveOccurred(), "evidence was missing, and a new address was allocated")
				n.held(pods)
				_, err = n.CLI(t.Context(), "accept", "--yes")
				g.Expect(err).NotTo(HaveOccurred())
				late, err = n.add("late")
			}
			g.Expect(err).NotTo(HaveOccurred())
			for _, p := range pods {
				g.Expect(late.Address).NotTo(Equal(p.Address))
				g.Expect(p.VerifyInside()).To(Succeed())
			}
			g.Expect(n.host.Do(func() error { return n.network.Del(t.Context(), pods[0]) })).To(Succeed())
			n.held(append(pods[1:], late))
		})
	}
}

// held fails unless exactly the pods hold leases.
func (n *lostNode) held(pods []*stage.Pod) {
	n.t.Helper()
	leases, text, err := n.Leases(n.t.Context())
	if err == nil {
		err = stage.VerifyHeld(leases, pods, true)
	}
	if err != nil {
		n.t.Fatalf("%v\n%s", err, text)
	}
}
