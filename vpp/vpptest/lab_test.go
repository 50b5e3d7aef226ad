// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/safchain/ethtool"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// patience bounds what a slow machine may take, pace is the time between two looks.
const patience, pace = time.Minute, 10 * time.Millisecond

const programsEnv = "VPP_TEST_PROGRAMS" // the folder of the programs of Cadastre

func TestMain(m *testing.M) { os.Exit(build(m)) }

// build builds the programs, if a test can use them, and runs the tests.
func build(m *testing.M) int {
	if os.Getenv(BinEnv) == "" || os.Getenv(programsEnv) != "" || netlab.Try() != nil {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "vpptest-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Setenv(programsEnv, dir)
	}
	if err == nil {
		err = stage.Build(context.Background(), "../..", dir, "./cmd/cadastre-cni", "./cmd/cadastre")
	}
	if err == nil {
		err = stage.Build(context.Background(), "..", dir, "./cmd/cadastre-agent-vpp")
	}
	if err == nil {
		// package stage starts the agent under its usual name
		err = os.Rename(filepath.Join(dir, "cadastre-agent-vpp"), filepath.Join(dir, "cadastre-agent"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// layout is a way to build a cluster.
type layout struct {
	plane     string // "vpp" or "linux"
	transport string // "": vxlan
	v6        bool   // besides IPv4
	nodes     int
	more      string // further keys of the section cadastre
}

// families returns true for IPv4, and false for IPv6 if the layout has it.
func (l layout) families() []bool {
	if l.v6 {
		return []bool{true, false}
	}
	return []bool{true}
}

// pick joins the texts of the families that the layout has.
func (l layout) pick(v4, v6 string) string {
	if l.v6 {
		return v4 + "," + v6
	}
	return v4
}

// cluster is a set of nodes around a router.
type cluster struct {
	*WithT
	layout
	t      testing.TB
	dir    string
	router *netlab.Namespace
	nodes  []*node
}

// node is a machine of the cluster: a namespace with a VPP and an agent.
type node struct {
	*cluster
	stage.Agent
	id      int
	ns      *netlab.Namespace
	vpp     *Process // nil with the Linux data plane
	process *stage.Process
}

// The addresses of the router: that of the store on the management network, that of the
// segment of the nodes, and those of a host outside.
const (
	storeAddress       = "172.20.0.254"
	router4, router6   = "192.168.16.254", "fd00:3::fe"
	outside4, outside6 = "203.0.113.1", "2001:db8:1::1"
)

// newCluster makes the namespaces and starts the VPPs and agents.
func newCluster(t testing.TB, l layout) *cluster {
	t.Helper()
	c := emptyCluster(t, l)
	for _, n := range c.nodes {
		n.startVPP()
		n.launch()
	}
	for _, n := range c.nodes {
		n.await()
	}
	return c
}

// emptyCluster makes the namespaces, and starts no program of the nodes.
func emptyCluster(t testing.TB, l layout) *cluster {
	t.Helper()
	if os.Getenv(BinEnv) == "" {
		t.Skipf("NOT RUN: %s is not set: want the path of the program vpp 25.10", BinEnv)
	}
	if why := netlab.Why(); why != "" {
		t.Skip("NOT RUN: ", why)
	}
	if l.transport == "" {
		l.transport = "vxlan"
	}
	c := &cluster{WithT: NewWithT(t), t: t, layout: l}
	dir, err := os.MkdirTemp("/tmp", "cadvpp-") // sockets have short paths
	c.must(err)
	c.dir = dir
	t.Cleanup(func() { c.must(os.RemoveAll(dir)) })
	c.router = c.namespace()
	c.ip(c.router,
		"address add "+outside4+"/32 dev lo", "address add "+outside6+"/128 dev lo",
		"link add management type bridge", "address add "+storeAddress+"/24 dev management", "link set management up",
		"link add segment type bridge", "address add "+router4+"/24 dev segment",
		"address add "+router6+"/64 dev segment nodad", "link set segment up")
	c.serveStore(etcdtest.Start(t).Address())
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
	c.t.Cleanup(func() { _ = ns.Close() })
	return ns
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

// serveStore passes connections to the store's address on to etcd.
func (c *cluster) serveStore(etcd string) {
	_, stop, err := c.router.Relay(storeAddress+":2379", etcd)
	c.must(err)
	c.t.Cleanup(stop)
}

// addNode makes a node and its links to both networks. The main interface of VPP has no
// address in the kernel.
func (c *cluster) addNode(id int) {
	dir := filepath.Join(c.dir, fmt.Sprint(id))
	n := &node{cluster: c, id: id, ns: c.namespace(), Agent: stage.Agent{
		Place:  stage.Place{Root: c.dir, Bin: os.Getenv(programsEnv), Dir: dir},
		Config: filepath.Join(dir, "contiv.conf"),
		Node:   fmt.Sprint("node-", id),
	}}
	c.must(os.Mkdir(dir, 0o700))
	for port, bridge := range map[string]string{"mgmt": "management", "eth1": "segment"} {
		other := fmt.Sprint(port, "-", id)
		c.ip(c.router, fmt.Sprintf("link add %s type veth peer name %s netns %s", other, port, n.ns.Path()),
			"link set "+other+" master "+bridge+" up")
		c.ip(n.ns, "link set "+port+" up")
	}
	c.ip(n.ns, fmt.Sprintf("address add 172.20.0.%d/24 dev mgmt", id))
	c.computeChecksums(fmt.Sprint("eth1-", id))
	if c.plane == "linux" {
		c.ip(n.ns, fmt.Sprintf("address add 192.168.16.%d/24 dev eth1", id), fmt.Sprintf("address add fd00:3::%d/64 dev eth1 nodad", id),
			"route add default via "+router4)
	} else {
		n.vpp = New(c.t, n.ns, filepath.Join(dir, "vpp"))
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

// computeChecksums makes the router compute the checksums of what it sends through a link, as
// a NIC would: VPP reads packets as the kernel passes them to packet sockets. The node's own
// end keeps its offloads.
func (c *cluster) computeChecksums(link string) {
	c.t.Helper()
	c.must(c.router.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change(link, map[string]bool{"tx-checksum-ip-generic": false})
	}))
}

// configuration returns contiv.conf of a node.
func (n *node) configuration() string {
	vpp := ""
	if n.vpp != nil {
		vpp = fmt.Sprintf("  vpp: {socket: %s}\n", n.vpp.Socket())
	}
	return fmt.Sprintf(`
natExternalTraffic: %t
ipamConfig: {podSubnetCIDR: "%s", vppHostSubnetCIDR: "%s", nodeInterconnectCIDR: "%s", vxlanCIDR: "%s", serviceCIDR: "%s", defaultGateway: "%s"}
nodeConfig: [{nodeName: %s, mainVPPInterface: {interfaceName: eth1}}]
cadastre:
  nodeID: %d
  dataplane: %s
  transport: %s
  coolDown: 0s
  cni: {confDir: %s, binDir: %s}
  nodeIDs: {quarantine: 0s}
  controller: {remoteDBProbingInterval: 200ms}
  witnesses: {runtime: none, engine: none}
  kvdb: {type: etcd, endpoints: ["http://%s:2379"]}
%s%s`,
		n.transport == "vxlan", // VPP cannot except the pods of others from translation
		n.pick("10.1.0.0/16", "fd00:1::/48"), n.pick("172.30.0.0/16", "fd00:2::/48"), n.pick("192.168.16.0/24", "fd00:3::/64"),
		n.pick("192.168.30.0/24", "fd00:4::/64"), n.pick("10.96.0.0/12", "fd00:5::/108"), router4,
		n.Node, n.id, n.plane, n.transport, filepath.Join(n.Dir, "net.d"), n.Bin, storeAddress, vpp, n.more)
}

// startVPP starts the node's VPP.
func (n *node) startVPP() {
	n.t.Helper()
	if n.vpp == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	n.must(n.vpp.Start(ctx))
}

// cli runs a command of VPP.
func (n *node) cli(command string) string {
	n.t.Helper()
	out, err := n.vpp.CLI(n.t.Context(), command)
	n.must(err)
	return out
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
		_, ready := n.Get(n.t.Context(), localapi.PathReadyz)
		_, listed := os.Stat(n.listPath())
		return errors.Join(ready, listed)
	}, patience, pace).Should(Succeed())
}

// kill ends the agent with SIGKILL.
func (n *node) kill() {
	n.t.Helper()
	n.must(n.process.Kill())
	n.process = nil
}

func (n *node) listPath() string { return filepath.Join(n.Dir, "net.d", "10-cadastre.conflist") }

// host returns the node itself as an end, by the address of its end of the VPP-host link, or
// of its interface with the Linux data plane.
func (n *node) host() netlab.Place {
	p := netlab.Place{Name: n.Node, Net: n.ns}
	text := fmt.Sprintf("172.30.%d.2", n.id)
	if n.plane == "linux" {
		text = fmt.Sprintf("192.168.16.%d", n.id)
	}
	p.Addresses = append(p.Addresses, netip.MustParseAddr(text))
	return p
}

// outside returns a host beyond the router.
func (c *cluster) outside() netlab.Place {
	return netlab.Place{Name: "outside", Net: c.router, Addresses: []netip.Addr{netip.MustParseAddr(outside4), netip.MustParseAddr(outside6)}}
}
