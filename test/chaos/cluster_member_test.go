// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// prefixOf returns the prefix of a cluster's keys in an etcd. No other cluster has it.
// This matters because agents that a test has left behind, or those of another test,
// may come to an etcd by the port that one of theirs has had.
func prefixOf(endpoint string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(endpoint, "http://"), ":")
	return fmt.Sprintf("/cadastre-%d-%s/", os.Getpid(), port)
}

// clusterConf is a configuration with short times; each node has 28 addresses
// for pods, which are allocated again at once.
func clusterConf(endpoints []string, prefix string) string {
	return fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 27}
cadastre:
  coolDown: 0s
  reclaim: {enabled: false}
  kvdb: {type: etcd, endpoints: ["%s"], prefix: %s}
  nodeIDs: {refresh: 300ms, fresh: 2s, expire: 1h, quarantine: 0s}
  controller: {delayLocalResync: 300ms, remoteDBProbingInterval: 300ms, delayAfterErrorHealing: 100ms, startupResyncDeadline: 1h}
`, strings.Join(endpoints, `", "`), prefix)
}

// The times of clusterConf that tests wait for.
const (
	refresh = 300 * time.Millisecond
	fresh   = 2 * time.Second
)

// healing ends the wait for a cluster to be well again: several tries of five
// seconds, with growing pauses, on a machine of any speed.
const healing = 3 * time.Minute

// member is a node of a cluster, its network to etcd, and its agent.
type member struct {
	*node
	ways  []*etcdtest.Proxy // one to each server
	agent *agent            // nil: it was never started
}

// newMember makes a node whose agent is not started.
func newMember(t *testing.T, name string, servers ...*etcdtest.Server) *member {
	t.Helper()
	m := &member{}
	var endpoints []string
	for _, s := range servers {
		p := newProxy(t, s.Address())
		m.ways = append(m.ways, p)
		endpoints = append(endpoints, "http://"+p.Address())
	}
	m.node = newNode(t, clusterConf(endpoints, prefixOf(servers[0].Endpoint())))
	m.name = name
	t.Cleanup(func() {
		if t.Failed() && m.agent != nil {
			t.Logf("log of %s, which is in %s:\n%s", m.name, m.logPath(), m.saying())
		}
	})
	return m
}

// saying is the end of the log without the leases.
func (m *member) saying() string {
	data, err := os.ReadFile(m.logPath())
	if err != nil {
		return err.Error()
	}
	lines := slices.DeleteFunc(strings.Split(string(data), "\n"), func(line string) bool {
		return strings.Contains(line, "msg=leased") || strings.Contains(line, "msg=released")
	})
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// untilFree calls do again as long as another process has the port that it
// needs: an etcd that has just ended lets go of its own a little later.
func untilFree(do func() error) error {
	for limit := time.Now().Add(patience); ; pause(10 * time.Millisecond) {
		if err := do(); !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(limit) {
			return err
		}
	}
}

// newProxy is etcdtest.StartProxy, at any port that is free.
func newProxy(t *testing.T, target string) (p *etcdtest.Proxy) {
	t.Helper()
	err := untilFree(func() (err error) {
		p, err = etcdtest.NewProxy(target)
		return err
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// newMembers makes members and has them join one after the other, so that the
// first has ID 1.
func newMembers(t *testing.T, names string, servers ...*etcdtest.Server) (all []*member) {
	t.Helper()
	for _, name := range strings.Fields(names) {
		m := newMember(t, name, servers...)
		m.join(t)
		all = append(all, m)
	}
	return all
}

// change changes the configuration for the next start.
func (m *member) change(t *testing.T, from, to string) {
	t.Helper()
	g := NewWithT(t)
	conf, err := os.ReadFile(m.conf)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(conf)).To(ContainSubstring(from))
	g.Expect(os.WriteFile(m.conf, []byte(strings.ReplaceAll(string(conf), from, to)), 0o600)).To(Succeed())
}

// waitForStore has the next start wait for the store, and not begin with the
// mirror: only then can a node that has lost its ID get another one.
func (m *member) waitForStore(t *testing.T) {
	t.Helper()
	m.change(t, "delayLocalResync: 300ms", "delayLocalResync: 1m")
}

// run starts the agent and waits for nothing.
func (m *member) run(t *testing.T) {
	t.Helper()
	m.agent = m.launch(t)
}

// join starts the agent and waits until it follows the cluster and allocates.
func (m *member) join(t *testing.T) {
	t.Helper()
	m.run(t)
	m.awaitFollowing(t)
}

func (m *member) awaitFollowing(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(m.follows, healing, 20*time.Millisecond).Should(Succeed())
}

func (m *member) kill() { m.agent.kill() }

func (m *member) running() bool { return m.agent != nil && !m.agent.hasEnded() }

func (m *member) network(change func(*etcdtest.Proxy)) {
	for _, p := range m.ways {
		change(p)
	}
}

func (m *member) cut()  { m.network((*etcdtest.Proxy).Cut) }
func (m *member) pass() { m.network((*etcdtest.Proxy).Pass) }

// looksForFound reports whether tests also look for the known failures that
// docs/reliability.md lists.
func looksForFound() bool { return os.Getenv("CHAOS_FOUND") != "" }

// status returns the agent's status.
func (n *node) status() (s localapi.Status, err error) {
	err = get(n.socket(), localapi.PathStatus, &s)
	if err == nil && !s.Live {
		err = fmt.Errorf("%s is not live: %s", n.name, s.LiveError)
	}
	return s, err
}

// mustStatus fails the test where there is none.
func (m *member) mustStatus(t *testing.T) localapi.Status {
	t.Helper()
	s, err := m.status()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", m.agent.log())
	return s
}

// follows is nil where the agent follows the store and allocates addresses.
func (m *member) follows() error {
	s, err := m.status()
	switch {
	case m.agent.hasEnded():
		return fmt.Errorf("%s has ended: %s", m.name, m.agent.cmd.ProcessState)
	case err != nil:
		return err
	case !s.KVDBConnected || s.StateFrom != "remote":
		return fmt.Errorf("%s is not connected: %s; its state is from %q", m.name, s.KVDBError, s.StateFrom)
	case !s.Ready || !s.Serving || s.NodeIDProblem != "":
		return fmt.Errorf("%s is not ready: %s; node ID: %s", m.name, s.ReadyError, s.NodeIDProblem)
	}
	return nil
}

// alone is nil where the agent knows that the store is away, and allocates.
func (m *member) alone() error {
	s, err := m.status()
	switch {
	case err != nil:
		return err
	case s.KVDBConnected:
		return fmt.Errorf("%s believes to be connected", m.name)
	case !s.Ready || !s.Serving:
		return fmt.Errorf("%s is not ready: %s", m.name, s.ReadyError)
	}
	return nil
}

// doubts is nil where the agent says that its ID is not its own.
func (m *member) doubts() error {
	s, err := m.status()
	if err == nil && (s.NodeIDProblem == "" || s.Ready || !strings.Contains(s.Suspended, "node ID")) {
		err = fmt.Errorf("%s has node ID problem %q, ready: %t, suspended: %q", m.name, s.NodeIDProblem, s.Ready, s.Suspended)
	}
	return err
}

// subnet is the node's pod subnet.
func (n *node) subnet() (string, error) {
	var plan localapi.ContivIPAM
	err := get(n.socket(), localapi.PathIPAM, &plan)
	return plan.PodSubnetThisNode.String(), err
}

// ask is one request about "net/<id>/eth0": an address, or the error's text.
func (m *member) ask(t *testing.T, v Verb, id string) string {
	t.Helper()
	r, f, err := ask(m.socket(), Key{"net", id, "eth0"}.request(v), leaving{})
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	switch {
	case f == Refused:
		return "refused: " + r.Error.Msg
	case f != Answered:
		return string(f)
	case len(r.IPs) > 0:
		return r.IPs[0].Address
	}
	return ""
}

// post sends a value to the local API. An answer that is not 200 is an error
// with its status.
func post(socket, path string, value, into any) (status int, err error) {
	body, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	status, answer, err := exchange(socket, http.MethodPost, path, body, leaving{})
	if err != nil {
		return 0, fmt.Errorf("POST %s: %w", path, err)
	}
	if status != http.StatusOK {
		return status, fmt.Errorf("POST %s: status %d: %s", path, status, answer)
	}
	return status, json.Unmarshal(answer, into)
}

// apply changes the pools of the cluster through the agent.
func (n *node) apply(pools string) (r localapi.ApplyResult, err error) {
	_, err = post(n.socket(), localapi.PathApply, localapi.ApplyRequest{File: pools}, &r)
	return r, err
}

// resync has the agent read the store anew, and waits for that.
func (n *node) resync() error {
	var said any
	_, err := post(n.socket(), localapi.PathResync, struct{}{}, &said)
	return err
}

// registry is the cluster store, read beside all agents and proxies.
type registry struct{ store kvdb.Store }

func newRegistry(t *testing.T, endpoints ...string) registry {
	t.Helper()
	s, err := etcd.Open(etcd.Config{Endpoints: endpoints, Prefix: prefixOf(endpoints[0])})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.Close() })
	return registry{s}
}

// list is every node record; it waits for a store that is about to come back.
func (r registry) list() ([]nodesync.Registered, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		all, err := nodesync.List(ctx, r.store)
		if err == nil || ctx.Err() != nil {
			return all, err
		}
	}
}

// holders returns the records that a node holds, by ID.
func (r registry) holders() (map[uint32]nodesync.Registered, error) {
	all, err := r.list()
	held := map[uint32]nodesync.Registered{}
	for _, x := range all {
		if x.Released == 0 {
			held[x.Id] = x
		}
	}
	return held, err
}

// mustHold waits until each member has the ID that it says it has, by the
// store's word too, and no other.
func (r registry) mustHold(t *testing.T, ids map[*member]uint32) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		held, err := r.holders()
		if err != nil {
			return err
		}
		var errs []error
		for m, id := range ids {
			s, err := m.status()
			errs = append(errs, err)
			if err == nil && (s.NodeID != id || s.NodeIDProblem != "") {
				errs = append(errs, fmt.Errorf("%s says that it has node ID %d, not %d %s", m.name, s.NodeID, id, s.NodeIDProblem))
			}
			if held[id].NodeRecord == nil || held[id].Instance != s.Instance {
				errs = append(errs, fmt.Errorf("node ID %d is not that of %s (instance %s): %v", id, m.name, s.Instance, held[id].NodeRecord))
			}
			for other, x := range held {
				if x.Instance == s.Instance && other != id {
					errs = append(errs, fmt.Errorf("%s has record %d too", m.name, other))
				}
			}
		}
		return errors.Join(errs...)
	}, healing, 50*time.Millisecond).Should(Succeed())
}

// cadastre runs the command line against the agent.
func (n *node) cadastre(args ...string) (out string, err error) {
	text, err := exec.Command(program("cadastre"), append([]string{"--socket", n.socket()}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cadastre %s on %s: %w: %s", strings.Join(args, " "), n.name, err, text)
	}
	return string(text), err
}
