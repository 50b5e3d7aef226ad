// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package network tests the network of the pods from outside: real agents, each in a
// network namespace that plays its node, real pods, and cadastre-cni as a runtime runs it.
//
// A router stands between the nodes. With vxlan and wireguard each node has a network of
// its own behind the router; with hostgw and nodeip all nodes are on one segment.
package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// patience bounds what a slow machine may take, pace is the time between two looks.
const patience, pace = time.Minute, 5 * time.Millisecond

const (
	binEnv  = "CADASTRE_TEST_NETWORK_BIN" // the folder of the programs
	pageEnv = "CADASTRE_TEST_NETWORK_DOC" // the page of the figures; empty: none, and a quick run
)

// wide reports whether the run is about all transports and families, and measures.
func wide() bool { return os.Getenv(pageEnv) != "" }

func TestMain(m *testing.M) { os.Exit(build(m)) }

// build builds the programs and runs the tests.
func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "network-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		if err = os.Setenv(binEnv, dir); err == nil && netlab.Try() == nil {
			err = stage.Build(context.Background(), "../../..", dir, "./cmd/cadastre-agent", "./cmd/cadastre-cni", "./cmd/cadastre")
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if path := os.Getenv(pageEnv); path != "" && code == 0 {
		if err := writePage(path, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// layout is a way to build a cluster.
type layout struct {
	transport string
	v4, v6    bool
	nodes     int
	more      string // further keys of the section cadastre
}

// isTunnel reports whether nodes wrap the packets between pods.
func (l layout) isTunnel() bool { return l.transport == "vxlan" || l.transport == "wireguard" }

// families returns true for IPv4 and false for IPv6, if the layout has them.
func (l layout) families() (all []bool) {
	if l.v4 {
		all = append(all, true)
	}
	if l.v6 {
		all = append(all, false)
	}
	return all
}

// pick joins the texts of the families that the layout has.
func (l layout) pick(v4, v6 string) string {
	var all []string
	if l.v4 {
		all = append(all, v4)
	}
	if l.v6 {
		all = append(all, v6)
	}
	return strings.Join(all, ",")
}

func (l layout) String() string {
	return l.transport + "/" + strings.ReplaceAll(l.pick("ipv4", "ipv6"), ",", "+")
}

// cluster is a set of nodes around a router.
type cluster struct {
	*WithT
	layout
	t      *testing.T
	dir    string
	router *netlab.Namespace
	nodes  []*node
	strays *strays
	rested bool
}

// node is a machine of the cluster.
type node struct {
	*cluster
	stage.Agent
	id      int
	ns      *netlab.Namespace
	process *stage.Process
	bin     string
	keys    string // of the section cadastre, on this node alone
}

// The addresses of the router that all nodes reach by their default routes: that of the
// store, and one that plays the outside.
const (
	store4, store6     = "198.18.0.254", "fd18::254"
	outside4, outside6 = "203.0.113.1", "2001:db8:1::1"
)

// newCluster makes the namespaces and starts the agents.
func newCluster(t *testing.T, l layout) *cluster {
	t.Helper()
	c := emptyCluster(t, l)
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.await()
	}
	return c
}

// emptyCluster makes the namespaces, and starts no agent.
func emptyCluster(t *testing.T, l layout) *cluster {
	t.Helper()
	if why := netlab.Why(); why != "" {
		t.Skip("NOT RUN: ", why)
	}
	c := &cluster{WithT: NewWithT(t), t: t, layout: l}
	dir, err := os.MkdirTemp("/tmp", "cadnet-") // sockets have short paths
	c.must(err)
	c.dir = dir
	t.Cleanup(func() { c.must(os.RemoveAll(dir)) })
	c.router = c.namespace()
	c.ip(c.router,
		"address add "+store4+"/32 dev lo", "address add "+store6+"/128 dev lo",
		"address add "+outside4+"/32 dev lo", "address add "+outside6+"/128 dev lo")
	c.must(c.router.Forward())
	if !l.isTunnel() {
		c.ip(c.router, "link add segment type bridge", "address add 172.20.0.1/16 dev segment",
			"address add fd20::1/64 dev segment nodad", "address add 192.168.16.254/24 dev segment",
			"address add fd00:3::fe/64 dev segment nodad", "link set segment up")
	}
	c.serveStore(etcdtest.Start(t).Address())
	c.strays = c.watchStrays()
	for id := 1; id <= l.nodes; id++ {
		c.addNode(id)
	}
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	c.Expect(err).NotTo(HaveOccurred())
}

func (c *cluster) namespace() *netlab.Namespace {
	c.t.Helper()
	ns, err := netlab.New()
	c.must(err)
	c.t.Cleanup(func() {
		c.rest()
		_ = ns.Close()
	})
	return ns
}

// rest waits at the end of a test, before its first namespace goes, until the agents are at
// rest.
func (c *cluster) rest() {
	if c.rested || c.t.Failed() || c.t.Skipped() {
		return
	}
	c.rested = true
	for _, n := range c.nodes {
		if n.process != nil {
			c.must(n.AwaitRest(context.Background(), n.process, n.ns.Do))
		}
	}
}

// ip runs commands of ip in a namespace, with one process.
func (c *cluster) ip(ns *netlab.Namespace, commands ...string) {
	c.t.Helper()
	c.must(ns.IP(commands...))
}

// show returns the output of ip.
func (c *cluster) show(ns *netlab.Namespace, args string) string {
	c.t.Helper()
	out, err := ns.Show(args)
	c.must(err)
	return out
}

// run runs a program of the machine in a namespace.
func (c *cluster) run(ns *netlab.Namespace, args ...string) string {
	c.t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		c.t.Skipf("NOT RUN: there is no %s here (Debian: iptables)", args[0])
	}
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	})
	c.Expect(err).NotTo(HaveOccurred(), "%q: %s", args, out)
	return string(out)
}

// serveStore passes connections to the store's address on to etcd.
func (c *cluster) serveStore(etcd string) {
	_, stop, err := c.router.Relay(":2379", etcd)
	c.must(err)
	c.t.Cleanup(stop)
}

// underlay returns the address of a node in the network between the nodes.
func (c *cluster) underlay(id int, is4 bool) netip.Prefix {
	switch {
	case is4 && c.isTunnel():
		return netip.MustParsePrefix(fmt.Sprintf("172.20.%d.2/24", id))
	case is4:
		return netip.MustParsePrefix(fmt.Sprintf("172.20.%d.2/16", id))
	case c.isTunnel():
		return netip.MustParsePrefix(fmt.Sprintf("fd20:%d::2/64", id))
	}
	return netip.MustParsePrefix(fmt.Sprintf("fd20::%d:2/64", id))
}

// addNode makes a node and its way to the router.
func (c *cluster) addNode(id int) {
	n := &node{cluster: c, id: id, ns: c.namespace(), bin: os.Getenv(binEnv)}
	dir := filepath.Join(c.dir, fmt.Sprint(id))
	c.must(os.Mkdir(dir, 0o700))
	n.Agent = stage.Agent{
		Place: stage.Place{Root: c.dir, Bin: n.bin, Dir: dir}, Config: filepath.Join(dir, "contiv.conf"), Node: fmt.Sprint("node-", id),
	}
	port := fmt.Sprint("node", id)
	c.ip(c.router, fmt.Sprintf("link add %s type veth peer name eth0 netns %s", port, n.ns.Path()), "link set "+port+" up")
	c.ip(n.ns, "link set eth0 up")
	gateways := map[bool]string{true: "172.20.0.1", false: "fd20::1"}
	if c.isTunnel() {
		gateways = map[bool]string{true: fmt.Sprintf("172.20.%d.1", id), false: fmt.Sprintf("fd20:%d::1", id)}
		c.ip(c.router, "address add "+gateways[true]+"/24 dev "+port, "address add "+gateways[false]+"/64 dev "+port+" nodad")
	} else {
		c.ip(c.router, "link set "+port+" master segment")
	}
	for _, is4 := range c.families() {
		family, nodad := "-4", ""
		if !is4 {
			family, nodad = "-6", " nodad"
		}
		c.ip(n.ns, "address add "+c.underlay(id, is4).String()+" dev eth0"+nodad)
		c.run(n.ns, "ip", family, "route", "add", "default", "via", gateways[is4])
		if c.transport == "hostgw" {
			c.ip(n.ns, "address add "+map[bool]string{true: fmt.Sprintf("192.168.16.%d/24", id), false: fmt.Sprintf("fd00:3::%d/64 nodad preferred_lft 0", id)}[is4]+" dev eth0") // not the source of the node's packets
		}
	}
	c.nodes = append(c.nodes, n)
	c.t.Cleanup(func() {
		if n.process != nil {
			_ = n.process.Kill() // it may have ended
		}
		if text, err := os.ReadFile(n.Log()); err == nil && c.t.Failed() {
			c.t.Logf("%s:\n%s", n.Node, text)
		}
	})
}

// configuration returns contiv.conf of a node.
func (n *node) configuration() string {
	store := store4
	if !n.v4 {
		store = "[" + store6 + "]"
	}
	return fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: "%s", vppHostSubnetCIDR: "%s", nodeInterconnectCIDR: "%s", vxlanCIDR: "%s", serviceCIDR: "%s"}
cadastre: {nodeID: %d, dataplane: linux, transport: %s, coolDown: 0s, cni: {confDir: %s, binDir: %s}, nodeIDs: {quarantine: 0s}, controller: {remoteDBProbingInterval: 200ms, enableVerification: true},
  witnesses: {runtime: none, engine: none}, kvdb: {type: etcd, endpoints: ["http://%s:2379"]}%s%s}
`,
		n.pick("10.1.0.0/16", "fd00:1::/48"), n.pick("172.30.0.0/16", "fd00:2::/48"), n.pick("192.168.16.0/24", "fd00:3::/64"),
		n.pick("192.168.30.0/24", "fd00:4::/64"), n.pick("10.96.0.0/12", "fd00:5::/108"),
		n.id, n.transport, filepath.Join(n.Dir, "net.d"), n.bin, store, n.more, n.keys)
}

// launch starts the agent and does not wait.
func (n *node) launch() {
	n.t.Helper()
	n.must(os.WriteFile(n.Config, []byte(n.configuration()), 0o600))
	process, err := n.Launch(n.ns.Do)
	n.must(err)
	n.process = process
}

// await waits until the agent serves.
func (n *node) await() {
	n.t.Helper()
	n.Eventually(func() error {
		select {
		case <-n.process.Done():
			return StopTrying(n.process.Ended().Error())
		default:
		}
		if _, err := n.Get(n.t.Context(), localapi.PathReadyz); err != nil {
			return err
		}
		_, err := os.Stat(n.listPath())
		return err
	}, patience, pace).Should(Succeed())
}

// kill ends the agent with SIGKILL.
func (n *node) kill() {
	n.t.Helper()
	n.must(n.process.Kill())
	n.process = nil
}

func (n *node) listPath() string { return filepath.Join(n.Dir, "net.d", "10-cadastre.conflist") }
