// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Settings of the agents of worlds.
const (
	worldInterval = 100 * time.Millisecond
	worldGrace    = 600 * time.Millisecond
	worldUndo     = 2 * time.Second
)

const worldConf = `
ipamConfig: {podSubnetCIDR: %s, podSubnetOneNodePrefixLen: 27}
cadastre:
  coolDown: 300ms
  witnesses: {netns: [%q], runtime: %q, engine: none, interval: %s}
  reclaim: {grace: %s, undo: %s}
`

// machine is a node with network namespaces, a container runtime behind a socket, and an
// agent. It holds the truth about its pods.
type machine struct {
	*node
	t      *testing.T
	g      Gomega
	random *rand.Rand
	home   *netlab.Namespace // the host's
	block  netip.Prefix
	cri    *critest.Server
	away   bool            // the runtime does not run
	hidden map[string]bool // sandboxes that the runtime does not list
	agent  *agent          // nil: it does not run
	boot   int
	made   int // pods and strays so far
	pods   []*worldPod
	copied *copiedDB
	ahead  func(time.Duration) // sets the clock; nil: the clock cannot be set
	events []string
}

// worldPod is a pod, or an address that was put into a namespace by hand.
type worldPod struct {
	key     Key
	addr    netip.Addr
	ns      *netlab.Namespace // nil: it is gone
	sandbox bool
	leased  bool // the ledger must have its lease
	stray   bool
}

// alive reports whether the address of a pod may be in use.
func (p *worldPod) alive() bool { return p.sandbox || p.ns != nil }

// copiedDB is a copy of the database, with the leases in it.
type copiedDB struct {
	data []byte
	boot int
	has  map[Key]netip.Addr
}

// newMachine makes the number-th machine of a test with an agent that runs.
func newMachine(t *testing.T, random *rand.Rand, number int) *machine {
	t.Helper()
	g := NewWithT(t)
	m := &machine{t: t, g: g, random: random, hidden: map[string]bool{}, boot: 1}
	subnet := netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/20", 112+os.Getpid()%128, number%16*16))
	m.node = newNode(t, "")
	g.Expect(os.MkdirAll(m.namespaces(), 0o700)).To(Succeed())
	g.Expect(os.MkdirAll(m.results(), 0o700)).To(Succeed())
	text := fmt.Sprintf(worldConf, subnet, m.namespaces(), m.runtime(), worldInterval, worldGrace, worldUndo)
	g.Expect(os.WriteFile(m.conf, []byte(text), 0o600)).To(Succeed())
	m.block = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, subnet.Addr().As4()[1], subnet.Addr().As4()[2], 32}), 27)
	m.hardware(t, 1, "boot-1")
	m.cri = critest.New(strings.TrimPrefix(m.runtime(), "unix://"))
	g.Expect(m.cri.Start()).To(Succeed())
	t.Cleanup(m.cri.Stop)
	var err error
	m.home, err = netlab.New()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(m.close)
	return m
}

func (m *machine) namespaces() string      { return filepath.Join(m.dir, "ns") }
func (m *machine) results() string         { return filepath.Join(m.dir, "results") }
func (m *machine) runtime() string         { return "unix://" + filepath.Join(m.dir, "cri.sock") }
func (m *machine) file(p *worldPod) string { return filepath.Join(m.namespaces(), p.key.ContainerID) }
func (m *machine) result(p *worldPod) string {
	return filepath.Join(m.results(), p.key.Network+"-"+p.key.ContainerID+"-"+p.key.IfName)
}

func (m *machine) close() {
	if m.t.Failed() {
		events := m.events[max(0, len(m.events)-60):]
		m.t.Logf("%s", strings.Join(events, "\n"))
		if m.agent != nil {
			m.t.Logf("%s", m.agent.log())
		}
	}
	if m.agent != nil {
		m.agent.kill()
	}
	for _, p := range m.pods {
		_ = m.endNamespace(p)
	}
	_ = m.home.Close()
}

// say notes what happens.
func (m *machine) say(format string, args ...any) {
	m.events = append(m.events, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// startAgent starts the agent in the host's namespace and waits until it serves.
func (m *machine) startAgent() {
	m.t.Helper()
	m.g.Expect(m.home.Do(func() error {
		m.agent = m.launch(m.t)
		return nil
	})).To(Succeed())
	m.g.Expect(m.agent.awaitServing()).To(Succeed())
	m.g.Expect(m.agent.awaitDELs()).To(Succeed())
	m.eventually(func() error {
		s, err := m.status()
		if err == nil && !s.Ready && s.Suspended == "" {
			err = fmt.Errorf("the agent is not ready: %s", s.ReadyError)
		}
		return err
	})
}

// killAgent ends the agent as a crash does. An agent that has ended before has crashed.
func (m *machine) killAgent() {
	m.t.Helper()
	m.g.Expect(m.agent.hasEnded()).To(BeFalse(), "the agent has ended by itself:\n%s", m.agent.log())
	m.agent.kill()
	m.agent = nil
}

// eventually waits until f succeeds.
func (m *machine) eventually(f func() error) {
	m.t.Helper()
	m.g.Eventually(f).WithTimeout(patience).WithPolling(worldInterval / 4).Should(Succeed())
}

// rounds waits until the agent has read its witnesses n times more.
func (m *machine) rounds(n int) {
	m.t.Helper()
	count := func() (int, error) {
		status, text, err := exchange(m.socket(), "GET", localapi.PathMetrics, nil, leaving{})
		if err != nil || status != 200 {
			return 0, fmt.Errorf("read the metrics: status %d: %w", status, err)
		}
		x := regexp.MustCompile(`(?m)^cadastre_witness_rounds_total (\d+)`).FindSubmatch(text)
		if x == nil {
			return 0, errors.New("the metrics have no rounds")
		}
		return strconv.Atoi(string(x[1]))
	}
	before, err := count()
	m.g.Expect(err).NotTo(HaveOccurred())
	m.eventually(func() error {
		now, err := count()
		if err == nil && now < before+n {
			err = fmt.Errorf("there were %d rounds of %d", now-before, n)
		}
		return err
	})
}

// publish makes the runtime list the sandboxes that it has, without the hidden ones.
func (m *machine) publish() { m.cri.Set(m.sandboxes()...) }

func (m *machine) sandboxes() (all []critest.Sandbox) {
	for _, p := range m.pods {
		if !p.sandbox || m.hidden[p.key.ContainerID] {
			continue
		}
		s := critest.Sandbox{
			ID: p.key.ContainerID, Namespace: "chaos", Name: "pod-" + p.key.ContainerID, NetNS: m.file(p), Created: time.Now(),
		}
		if p.addr.IsValid() {
			s.Addrs = []netip.Addr{p.addr}
		}
		all = append(all, s)
	}
	return all
}

// makeNamespace makes the network namespace of a pod with a file, as a runtime does.
func (m *machine) makeNamespace(p *worldPod) {
	m.t.Helper()
	ns, err := netlab.New()
	m.g.Expect(err).NotTo(HaveOccurred())
	m.g.Expect(os.WriteFile(m.file(p), nil, 0o600)).To(Succeed())
	m.g.Expect(unix.Mount(ns.Path(), m.file(p), "", unix.MS_BIND, "")).To(Succeed())
	p.ns = ns
}

// endNamespace ends the network namespace of a pod.
func (m *machine) endNamespace(p *worldPod) error {
	if p.ns == nil {
		return nil
	}
	ns := p.ns
	p.ns = nil
	return errors.Join(unix.Unmount(m.file(p), unix.MNT_DETACH), os.Remove(m.file(p)), ns.Close())
}

// connect lays a pair of links to a pod and a route of the host for its address, which is on the
// pod's end or on lo.
func (m *machine) connect(p *worldPod) {
	m.t.Helper()
	link := "lo"
	if m.random.IntN(2) == 0 {
		link = "eth0"
	}
	address := &net.IPNet{IP: p.addr.AsSlice(), Mask: net.CIDRMask(p.addr.BitLen(), p.addr.BitLen())}
	m.g.Expect(m.home.Do(func() error {
		file, err := os.Open(m.file(p))
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: p.key.ContainerID}, PeerName: "eth0", PeerNamespace: netlink.NsFd(file.Fd()),
		}
		if err := errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth)); err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: address, Scope: netlink.SCOPE_LINK})
	})).To(Succeed())
	m.g.Expect(p.ns.Do(func() error {
		found, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(found, &netlink.Addr{IPNet: address})
	})).To(Succeed())
}

// keepResult writes the CNI result of a pod where libcni keeps it.
func (m *machine) keepResult(p *worldPod) {
	m.t.Helper()
	conf := map[string]any{"cniVersion": "1.1.0", "name": p.key.Network, "type": "bridge", "ipam": map[string]any{"type": "cadastre-cni"}}
	config, err := json.Marshal(conf)
	m.g.Expect(err).NotTo(HaveOccurred())
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": p.key.ContainerID, "config": config, "ifName": p.key.IfName,
		"networkName": p.key.Network, "netns": m.file(p),
		"cniArgs": [][2]string{{"K8S_POD_NAMESPACE", "chaos"}, {"K8S_POD_NAME", "pod-" + p.key.ContainerID}},
		"result":  map[string]any{"cniVersion": "1.1.0", "ips": []map[string]string{{"address": p.addr.String() + "/27"}}},
	})
	m.g.Expect(err).NotTo(HaveOccurred())
	m.g.Expect(os.WriteFile(m.result(p), text, 0o600)).To(Succeed())
}

// request sends a CNI request for a pod, through cadastre-cni or through the socket.
func (m *machine) request(p *worldPod, v Verb, leave leaving) (reply, Fate) {
	m.t.Helper()
	var r reply
	var f Fate
	var err error
	if leave.after == 0 && (m.agent == nil || m.random.IntN(3) == 0) {
		r, f, err = runIn(m.socket(), p.key, v, m.file(p), nil)
	} else {
		req := p.key.request(v)
		req.Netns = m.file(p)
		r, f, err = ask(m.socket(), req, leave)
	}
	m.g.Expect(err).NotTo(HaveOccurred())
	return r, f
}

// gc sends a CNI GC that lists the pods with a sandbox.
func (m *machine) gc() Fate {
	m.t.Helper()
	var listed []cni.Attachment
	for _, p := range m.pods {
		if p.sandbox {
			listed = append(listed, cni.Attachment{ContainerID: p.key.ContainerID, IfName: p.key.IfName})
		}
	}
	_, f, err := run(m.socket(), Key{"net", "", ""}, GC, listed)
	m.g.Expect(err).NotTo(HaveOccurred())
	return f
}

// tool runs cadastre in the host's namespace, and returns its output and exit code.
func (m *machine) tool(args ...string) (out string, code int) {
	m.t.Helper()
	m.g.Expect(m.home.Do(func() error {
		data, err := exec.Command(program("cadastre"), args...).CombinedOutput()
		out = string(data)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			code, err = exit.ExitCode(), nil
		}
		return err
	})).To(Succeed())
	return out, code
}

// leases reads the leases of pods, of addresses in quarantine, and of what was released.
func (m *machine) leases() []localapi.Lease {
	m.t.Helper()
	var all []localapi.Lease
	m.g.Expect(get(m.socket(), localapi.PathLeases, &all)).To(Succeed())
	return slices.DeleteFunc(all, func(l localapi.Lease) bool { return l.Purpose == "infra" })
}

// reclaims counts the reclaims of the leases of a pod, pending or ended, since the agent has
// started.
func (m *machine) reclaims(p *worldPod) (n int) {
	m.t.Helper()
	var all localapi.Reclaims
	m.g.Expect(get(m.socket(), localapi.PathReclaims, &all)).To(Succeed())
	for _, r := range append(all.Pending, all.Ended...) {
		if r.ContainerID == p.key.ContainerID {
			n++
		}
	}
	return n
}

// find returns the pods that fit, in the order in which they were made.
func (m *machine) find(fits func(*worldPod) bool) (all []*worldPod) {
	for _, p := range m.pods {
		if fits(p) {
			all = append(all, p)
		}
	}
	return all
}

// any returns one of the pods that fit, nil if there is none.
func (m *machine) any(fits func(*worldPod) bool) *worldPod {
	all := m.find(fits)
	if len(all) == 0 {
		return nil
	}
	return all[m.random.IntN(len(all))]
}
