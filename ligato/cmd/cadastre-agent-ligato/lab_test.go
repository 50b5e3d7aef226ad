// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// asProgram makes this test binary the program that it tests.
const asProgram = "CADASTRE_TEST_LIGATO_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const (
	within = 30 * time.Second // bounds a wait; no test measures it
	again  = 20 * time.Millisecond

	tailSize = 16 << 10 // of the log of a test that failed
)

// lab is a network namespace that plays the node, with the agent's process in it.
type lab struct {
	Gomega
	t     testing.TB
	host  *netlab.Namespace
	agent stage.Agent
	run   *stage.Process
	etcd  *etcdtest.Server
	store kvdb.Store // of the test; nil without etcd
}

// newLab makes the node, and lets a test run beside others. conf is contiv.conf.
func newLab(t testing.TB, conf string) *lab {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel() // most of the time is the kernel's, which looks for duplicates of IPv6 addresses
	}
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	dir, err := os.MkdirTemp("", "lig") // a short path: a socket is in it
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{Gomega: NewWithT(t), t: t}
	l.SetDefaultEventuallyTimeout(within)
	l.SetDefaultEventuallyPollingInterval(again)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l.agent = stage.Agent{Place: stage.Place{Dir: dir}, Config: filepath.Join(dir, "contiv.conf"), Node: "node-a"}
	l.host = l.namespace()
	if strings.Contains(conf, "ETCD") {
		conf = strings.ReplaceAll(conf, "ETCD", l.startEtcd())
	}
	l.must(os.WriteFile(l.agent.Config, []byte(conf), 0o600))
	t.Cleanup(func() {
		if l.run != nil {
			_ = l.run.Halt(within)
		}
		if log, err := os.ReadFile(l.agent.Log()); err == nil && t.Failed() {
			t.Logf("the agent's log:\n%s", log[max(0, len(log)-tailSize):])
		}
	})
	return l
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) namespace() *netlab.Namespace {
	l.t.Helper()
	ns, err := netlab.New()
	l.must(err)
	l.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// startEtcd runs etcd outside of the node, and returns an endpoint inside.
func (l *lab) startEtcd() string {
	l.etcd = etcdtest.Start(l.t)
	var err error
	l.store, err = etcd.Open(etcd.Config{Endpoints: []string{l.etcd.Endpoint()}, Prefix: "/cadastre/"})
	l.must(err)
	l.t.Cleanup(func() { _ = l.store.Close() })
	address, stop, err := l.host.Relay("127.0.0.1:0", l.etcd.Address())
	l.must(err)
	l.t.Cleanup(stop)
	return "http://" + address
}

// start starts the agent and waits until it serves.
func (l *lab) start() {
	l.t.Helper()
	l.launch()
	l.must(l.agent.Await(context.Background(), l.run))
}

func (l *lab) launch() {
	l.t.Helper()
	self, err := os.Executable()
	l.must(err)
	log, err := os.OpenFile(l.agent.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	l.must(err)
	defer log.Close()
	cmd := exec.Command(self, "-contiv-config", l.agent.Config, "-microservice-label", l.agent.Node,
		"-cadastre-state-dir", l.agent.State(), "-cadastre-run-dir", filepath.Dir(l.agent.Socket()))
	cmd.Dir, cmd.Env = l.agent.Dir, append(os.Environ(), asProgram+"=1")
	cmd.Stdout, cmd.Stderr = log, log
	l.run, err = stage.Start(cmd, l.host.Do)
	l.must(err)
}

// kill ends the agent as SIGKILL does.
func (l *lab) kill() {
	l.t.Helper()
	l.must(l.run.Kill())
	l.run = nil
}

// put writes a message into etcd, as the reflector or another node does.
func (l *lab) put(key string, m proto.Message) {
	l.t.Helper()
	value, err := proto.Marshal(m)
	l.must(err)
	_, err = l.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	l.must(err)
}

// pod is a network namespace with an attachment.
type pod struct {
	*netlab.Namespace
	name      string
	addresses []netip.Prefix
	gateways  []netip.Addr
}

func (l *lab) newPod(name string) *pod { return &pod{Namespace: l.namespace(), name: name} }

func (p *pod) request(command, netns string) cni.Request {
	return cni.Request{
		Command:     command,
		Network:     "cadastre",
		ContainerID: "container-" + p.name,
		IfName:      "eth0",
		Netns:       netns,
		Main:        true,
		Pod:         cni.Pod{Namespace: "default", Name: p.name},
	}
}

func (l *lab) client() *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.agent.Socket())
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: within}
}

// intent returns the DEL of the pod as cadastre-cni leaves it for an agent that is away.
func (p *pod) intent(l *lab) cni.Intent {
	req := p.request("DEL", "")
	return cni.Intent{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName}
}

func (l *lab) intents() string { return cni.IntentDir(l.agent.Socket()) }

// ask sends a CNI request to the agent, as cadastre-cni does.
func (l *lab) ask(req cni.Request) (cni.Reply, error) {
	return cniclient.Ask(context.Background(), l.client().Do, req)
}

// add attaches the pod.
func (l *lab) add(p *pod) {
	l.t.Helper()
	reply, err := l.ask(p.request("ADD", p.Path()))
	l.must(err)
	p.addresses, p.gateways = nil, nil
	for _, ip := range reply.IPs {
		p.addresses = append(p.addresses, netip.MustParsePrefix(ip.Address))
		p.gateways = append(p.gateways, netip.MustParseAddr(ip.Gateway))
	}
}

func (l *lab) del(p *pod) {
	l.t.Helper()
	_, err := l.ask(p.request("DEL", p.Path()))
	l.must(err)
}

// answers waits until the pod answers pings of the node on each of its addresses. An IPv6
// address answers when the kernel has looked for duplicates of it.
func (l *lab) answers(p *pod) {
	l.t.Helper()
	for _, a := range p.addresses {
		l.Eventually(func() error { return l.ping(l.host, a.Addr()) }).Should(Succeed(), "ping of %s from the node", a)
	}
}

func (l *lab) ping(from *netlab.Namespace, to netip.Addr) error {
	return from.Do(func() error {
		out, err := exec.Command("ping", "-n", "-c", "1", "-W", "1", to.String()).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// leases returns the addresses that pods hold.
func (l *lab) leases() (all []string) {
	l.t.Helper()
	text, err := l.agent.Get(context.Background(), localapi.PathLeases)
	l.must(err)
	var leases []localapi.Lease
	l.must(json.Unmarshal([]byte(text), &leases))
	for _, x := range leases {
		if x.Purpose == "pod" && x.State == "held" {
			all = append(all, x.IP)
		}
	}
	return all
}

// snapshot returns what the kernel has in a namespace: links, addresses, routes and
// permanent neighbours, in the order of the kernel.
func (l *lab) snapshot(ns *netlab.Namespace) (all []string) {
	l.t.Helper()
	l.must(ns.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			name := link.Attrs().Name
			if name == "lo" {
				continue
			}
			all = append(all, "link "+name)
			addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if a.Scope != unix.RT_SCOPE_LINK {
					all = append(all, "address "+a.IPNet.String()+" on "+name)
				}
			}
			neighbours, err := netlink.NeighList(link.Attrs().Index, 0)
			if err != nil {
				return err
			}
			for _, n := range neighbours {
				if n.State == netlink.NUD_PERMANENT && !n.IP.IsMulticast() {
					all = append(all, "neighbour "+n.IP.String()+" "+n.HardwareAddr.String()+" on "+name)
				}
			}
			routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
					all = append(all, fmt.Sprintf("route %s via %s on %s", r.Dst, r.Gw, name))
				}
			}
		}
		return nil
	}))
	return all
}

// node writes this node's Node object with a podCIDR.
func (l *lab) node(podCIDRs ...string) {
	l.t.Helper()
	l.put(kv.NodeKey(l.agent.Node), &kv.Node{Name: l.agent.Node, PodCidrs: podCIDRs})
}
