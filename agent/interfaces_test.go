// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// vm is an agent on a machine of a simulated cloud, with a database file and its
// whole event loop.
type vm struct {
	t     *testing.T
	g     Gomega
	node  Node
	conf  string
	cloud *memcloud.Cloud
	store kvdb.Store // of the cluster; nil: that of the file
	away  atomic.Bool
	log   logbuffer.Buffer
	sink  *controller.MemorySink
	stop  context.CancelFunc
	ended chan error
}

// flaky is a cloud that can be away.
type flaky struct {
	cloud.Cloud
	m *vm
}

var errAway = errors.New("the cloud is away")

func (f flaky) ReadInstance(ctx context.Context, id string) (*cloud.Snapshot, error) {
	if f.m.away.Load() {
		return nil, errAway
	}
	return f.Cloud.ReadInstance(ctx, id)
}

func (f flaky) Assign(ctx context.Context, id, iface string, w cloud.Want) ([]cloud.Block, error) {
	if f.m.away.Load() {
		return nil, errAway
	}
	return f.Cloud.Assign(ctx, id, iface, w)
}

func newVM(t *testing.T, keys string) *vm {
	m := &vm{t: t, g: NewWithT(t), node: nodeIn(t), conf: fmt.Sprintf("cadastre: {instanceID: vm-1, podBlocks: interfaces, interfaces: {%s}}", keys)}
	m.cloud = memcloud.New(memcloud.Config{Interfaces: 2, PerInterface: 5, Subnets: map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("192.168.77.0/24")}})
	m.cloud.AddInstance("vm-1", "subnet-1")
	t.Cleanup(m.end)
	return m
}

func (m *vm) start() {
	conf, _, err := contivconf.Parse([]byte(m.conf))
	m.g.Expect(err).NotTo(HaveOccurred())
	m.sink = &controller.MemorySink{}
	options := []Option{
		WithNode(m.node),
		WithLog(slog.New(slog.NewTextHandler(&m.log, nil))),
		WithSouthbound(m.sink),
		WithCloud(CloudProvider{Name: "mem", Open: func(context.Context, CloudEnvironment) (OpenedCloud, error) {
			if m.away.Load() {
				return OpenedCloud{}, errAway
			}
			return OpenedCloud{Cloud: flaky{m.cloud, m}}, nil
		}}, CloudEnvironment{}),
	}
	if m.store != nil {
		options = append(options, WithStore(m.store))
	}
	a, err := New(conf, options...)
	m.g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	m.stop, m.ended = stop, make(chan error, 1)
	go func() { m.ended <- a.Run(ctx) }()
}

func (m *vm) end() {
	if m.stop != nil {
		m.stop()
		m.g.Expect(<-m.ended).To(Succeed())
		m.stop = nil
	}
}

func (m *vm) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(m.node.RunDir, socketName))
	}}}
}

func (m *vm) call(method, path string, body any) (int, string) {
	data, err := json.Marshal(body)
	m.g.Expect(err).NotTo(HaveOccurred())
	req, err := http.NewRequestWithContext(context.Background(), method, "http://agent"+path, bytes.NewReader(data))
	m.g.Expect(err).NotTo(HaveOccurred())
	reply, err := m.client().Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	m.g.Expect(err).NotTo(HaveOccurred())
	return reply.StatusCode, string(text)
}

func (m *vm) cni(command, container string) (cni.Reply, error) {
	return cniclient.Ask(context.Background(), m.client().Do, cni.Request{
		Command: command, Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: "default", Name: container},
	})
}

// add adds a pod, and tries again as a runtime does.
func (m *vm) add(container string) netip.Addr {
	var got netip.Addr
	m.g.EventuallyWithOffset(1, func() error {
		reply, err := m.cni("ADD", container)
		if err != nil {
			return err
		}
		address, err := netip.ParsePrefix(reply.IPs[0].Address)
		m.g.Expect(err).NotTo(HaveOccurred())
		m.g.Expect(address.IsSingleIP()).To(BeTrue(), "%s", address)
		got = address.Addr()
		return nil
	}, soon, 20*time.Millisecond).Should(Succeed(), m.log.String())
	return got
}

func (m *vm) del(container string) {
	_, err := m.cni("DEL", container)
	m.g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
}

func (m *vm) status() (s localapi.Status) {
	m.g.Eventually(func() error {
		_, text := m.call("GET", localapi.PathStatus, nil)
		return json.Unmarshal([]byte(text), &s)
	}, soon, 20*time.Millisecond).Should(Succeed())
	return s
}

func (m *vm) units() (all []netip.Addr) {
	for _, u := range m.cloud.Units("vm-1") {
		all = append(all, u.Addr())
	}
	return all
}

// The Node object says that the node is cordoned: pods use the free addresses, and the cloud
// is not asked for more.
func TestAnAgentOfACordonedNodeAsksForNoAddresses(t *testing.T) {
	m := newVM(t, "warmIPs: 2, coolDown: 0s")
	store := mem.New()
	m.store = store
	cordon := func(unschedulable bool) {
		value, err := proto.Marshal(&kv.Node{Name: m.node.Name, Unschedulable: unschedulable})
		m.g.Expect(err).NotTo(HaveOccurred())
		_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeKey(m.node.Name), value)})
		m.g.Expect(err).NotTo(HaveOccurred())
	}
	cordon(true)
	m.start()
	m.add("a") // of the first addresses
	m.g.Eventually(func() string { return m.status().Interfaces.Shortage }, soon, 20*time.Millisecond).Should(ContainSubstring("unschedulable"))
	m.g.Expect(m.units()).To(HaveLen(2))
	m.add("b")
	m.g.Expect(m.units()).To(HaveLen(2))
	cordon(false)
	m.g.Eventually(func() int { return len(m.units()) }, soon, 20*time.Millisecond).Should(Equal(4))
}

// An administrator moves the address of a pod to an interface of another program: cadastre
// check names it.
func TestAnAgentReportsAnAddressOnAnotherInterface(t *testing.T) {
	m := newVM(t, "warmIPs: 7, coolDown: 0s")
	m.start()
	moved := m.add("a")
	m.g.Eventually(func() int { return len(m.units()) }, soon, 20*time.Millisecond).Should(Equal(8))
	found := func() (all []localapi.Finding) {
		_, text := m.call("GET", localapi.PathCheck, nil)
		report := localapi.CheckReport{}
		if json.Unmarshal([]byte(text), &report) != nil {
			return []localapi.Finding{{Text: "the agent does not answer: " + text}}
		}
		for _, f := range report.Findings {
			if f.Number == "C407" || f.Number == "C408" {
				all = append(all, f)
			}
		}
		return all
	}
	m.g.Expect(found()).To(BeEmpty())
	m.end()
	all := m.cloud.Interfaces("vm-1")
	m.g.Expect(all).To(HaveLen(2))
	is := func(b cloud.Block) bool { return b.Prefix.Addr() == moved }
	from, to := all[0].ID, all[1].ID
	m.cloud.Change("vm-1", from, func(i *cloud.Interface) { i.Blocks = slices.DeleteFunc(slices.Clone(i.Blocks), is) })
	m.cloud.Change("vm-1", to, func(i *cloud.Interface) {
		i.Exclude, i.Blocks = true, append(slices.Clone(i.Blocks), cloud.Block{Prefix: netip.PrefixFrom(moved, 32), Subnet: "subnet-1"})
	})
	m.start()
	m.g.Eventually(found, soon, 20*time.Millisecond).Should(HaveExactElements(And(
		HaveField("Number", "C408"),
		HaveField("Text", fmt.Sprintf("block %s/32 of interface %s is on interface %s in the cloud", moved, from, to)),
	)))
}

func TestAnAgentServesPodsFromItsInterfaces(t *testing.T) {
	m := newVM(t, "warmIPs: 2, coolDown: 0s")
	m.start()
	a, b := m.add("a"), m.add("b")
	m.g.Expect(m.units()).To(ContainElements(a, b))
	m.g.Eventually(func() *localapi.Interfaces { return m.status().Interfaces }, soon, 20*time.Millisecond).Should(Equal(&localapi.Interfaces{
		Cloud: "mem", Instance: "vm-1", Interfaces: 1, MaxInterfaces: 2,
		Families: []localapi.InterfaceFamily{{Family: "ipv4", Total: 4, Assigned: 2, Free: 2}},
	}))
	for _, c := range []string{"c", "d", "e", "f"} { // a second interface is needed
		m.add(c)
	}
	m.g.Eventually(func() int { return m.status().Interfaces.Interfaces }, soon, 20*time.Millisecond).Should(Equal(2))
	for _, c := range []string{"g", "h", "i", "j"} {
		m.add(c)
	}
	m.g.Eventually(func() error { _, err := m.cni("ADD", "k"); return err }, soon, 20*time.Millisecond).Should(MatchError(And(
		ContainSubstring("no IP address is free"), ContainSubstring("the machine is full: it has 2 of 2 interfaces"))))
	m.g.Expect(m.status().Notes).To(ContainElement(ContainSubstring("the machine is full")))

	// The agent starts without the cloud.
	m.end()
	m.away.Store(true)
	m.start()
	m.g.Expect(m.add("a")).To(Equal(a), "the lease is there")
	m.del("b")
	m.g.Expect(m.add("l")).To(Equal(b), "a new pod from a block that the machine has")
	m.g.Eventually(func() string { return m.status().Interfaces.Shortage }, soon, 20*time.Millisecond).Should(ContainSubstring("the cloud is away"))
	m.away.Store(false)
	m.g.Eventually(func() string { return m.status().Interfaces.Cloud }, soon, 20*time.Millisecond).Should(Equal("mem"))
}

func TestAnAgentImportsTheCheckpointOfAWSsDaemon(t *testing.T) {
	dir := t.TempDir()
	m := newVM(t, fmt.Sprintf("warmIPs: 1, checkpoint: %q, export: %q", filepath.Join(dir, "ipam.json"), filepath.Join(dir, "export.json")))
	s, err := m.cloud.ReadInstance(t.Context(), "vm-1")
	m.g.Expect(err).NotTo(HaveOccurred())
	blocks, err := m.cloud.Assign(t.Context(), "vm-1", s.Instances["vm-1"].Interfaces[0].ID, cloud.Want{Count: 2})
	m.g.Expect(err).NotTo(HaveOccurred())
	old := blocks[0].Prefix.Addr()
	file := fmt.Sprintf(`{"version":"vpc-cni-ipam/1","allocations":[
		{"networkName":"pods","containerID":"old","ifName":"eth0","ipv4":%q},
		{"networkName":"pods","containerID":"elsewhere","ifName":"eth0","ipv4":"192.168.78.9"}]}`, old)
	m.g.Expect(os.WriteFile(filepath.Join(dir, "ipam.json"), []byte(file), 0o600)).To(Succeed())
	m.start()
	m.g.Expect(m.add("new")).To(Equal(blocks[1].Prefix.Addr()))
	m.g.Expect(m.add("old")).To(Equal(old), "the runtime repeats the ADD of a pod of the other program")
	m.g.Eventually(func() []string { return m.status().Notes }, soon, 20*time.Millisecond).Should(ContainElement(ContainSubstring("1 imported leases are of interfaces that this machine does not have")))
	m.end()
	text, err := os.ReadFile(filepath.Join(dir, "export.json"))
	m.g.Expect(err).NotTo(HaveOccurred())
	m.g.Expect(text).To(MatchRegexp(`^{"version":"vpc-cni-ipam/1","allocations":\[{"networkName":"pods","containerID":"old",`))
	m.g.Expect(strings.Count(string(text), `"ipv4":`)).To(Equal(2))

	// The file is read only once.
	m.start()
	m.g.Expect(m.add("old")).To(Equal(old))
	m.del("old")
	m.end()
	m.start()
	m.g.Eventually(func() bool { return m.status().Interfaces != nil && m.status().Interfaces.Cloud != "" }, soon, 20*time.Millisecond).Should(BeTrue())
	m.g.Expect(m.status().Interfaces.Families[0].Assigned).To(Equal(1))
}

func TestAnAgentRefusesADamagedCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipam.json")
	m := newVM(t, fmt.Sprintf("checkpoint: %q", path))
	m.g.Expect(os.WriteFile(path, []byte(`{"version":"vpc-cni-ipam/1","allocations":[`), 0o600)).To(Succeed())
	m.start()
	m.g.Expect(<-m.ended).To(MatchError(And(ContainSubstring("cadastre.interfaces.checkpoint"), ContainSubstring(path))))
	m.stop = nil
}
