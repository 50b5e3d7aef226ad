// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/southbound"
)

// memPlane is a data plane in memory, which agents come to and leave.
type memPlane struct {
	mu     sync.Mutex
	values map[string]proto.Message
	away   error // of each call
	broken string
	closed int
	env    DataplaneEnvironment
}

func newMemPlane() *memPlane { return &memPlane{values: map[string]proto.Message{}} }

func (p *memPlane) plane() Dataplane { return Dataplane{Name: "vpp", Open: p.open} }

func (p *memPlane) open(_ context.Context, env DataplaneEnvironment) ([]*southbound.Descriptor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = env
	pods := p.kind(kv.SinkPodPrefix)
	pods.Close = func() error { p.set(func() { p.closed++ }); return nil }
	all := []*southbound.Descriptor{pods.Descriptor()}
	for _, prefix := range []string{
		kv.SinkNode, kv.SinkEgress, kv.SinkRoutePrefix, kv.SinkTunnelPrefix, kv.SinkNetworkPrefix, kv.SinkLinkPrefix,
	} {
		all = append(all, p.kind(prefix).Descriptor())
	}
	return all, nil
}

func (p *memPlane) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// pods returns the containers that have a wire.
func (p *memPlane) pods() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.values {
		if pod, ok := m.(*kv.PodNetwork); ok && pod.Wire != nil {
			all = append(all, pod.ContainerId)
		}
	}
	return all
}

func (p *memPlane) node() *kv.NodeNetwork {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, _ := p.values[kv.SinkNode].(*kv.NodeNetwork)
	return m
}

// kind makes all values of a prefix.
func (p *memPlane) kind(prefix string) southbound.Kind[proto.Message] {
	return southbound.Kind[proto.Message]{
		Name:   "mem",
		Prefix: prefix,
		Read:   func(_ string, m proto.Message) (proto.Message, error) { return m, nil },
		Create: p.create,
		Delete: p.remove,
		Retrieve: func(context.Context, []southbound.Wanted[proto.Message]) ([]controller.Value, error) {
			return p.retrieve(prefix)
		},
	}
}

func (p *memPlane) create(_ context.Context, key string, m proto.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away != nil {
		return p.away
	}
	if p.broken != "" && strings.HasPrefix(key, p.broken) {
		return errors.New("retval -2")
	}
	p.values[key] = m
	return nil
}

func (p *memPlane) remove(_ context.Context, key string, _ southbound.Made[proto.Message]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away == nil {
		delete(p.values, key)
	}
	return p.away
}

func (p *memPlane) retrieve(prefix string) (all []controller.Value, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away != nil {
		return nil, p.away
	}
	for _, key := range slices.Sorted(maps.Keys(p.values)) {
		if strings.HasPrefix(key, prefix) {
			all = append(all, controller.Value{Key: key, Message: p.values[key]})
		}
	}
	return all, nil
}

// switched is a node whose agent has a data plane in memory.
type switched struct {
	*vm
	plane *memPlane
	store *mem.Store
	dir   string // of the CNI list
}

func newSwitched(t *testing.T, more string) *switched {
	s := &switched{vm: &vm{t: t, g: NewWithT(t), node: nodeIn(t)}, plane: newMemPlane(), dir: filepath.Join(t.TempDir(), "net.d")}
	s.conf = "cadastre: {dataplane: vpp, vpp: {interface: eth1}, cni: {confDir: " + s.dir + ", binDir: " + s.dir + "}" + more + "}"
	t.Cleanup(s.end)
	return s
}

func (s *switched) start() {
	conf, _, err := contivconf.Parse([]byte(s.conf))
	s.g.Expect(err).NotTo(HaveOccurred())
	s.store = mem.New()
	a, err := New(conf, WithNode(s.node), WithLog(slog.New(slog.NewTextHandler(&s.log, nil))), WithStore(s.store), WithDataplane(s.plane.plane()))
	s.g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	s.stop, s.ended = stop, make(chan error, 1)
	go func() { s.ended <- a.Run(ctx) }()
}

func (s *switched) ask(command, container string) (cni.Reply, error) {
	return cniclient.Ask(context.Background(), s.client().Do, cni.Request{
		Command: command, Network: "pods", ContainerID: container, IfName: "eth0", Main: true, Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: "default", Name: container},
	})
}

func (s *switched) main(command, container string) error {
	_, err := s.ask(command, container)
	return err
}

// connected adds a pod, and tries again as a runtime does.
func (s *switched) connected(container string) {
	s.g.EventuallyWithOffset(1, func() ([]cni.Interface, error) {
		reply, err := s.ask("ADD", container)
		return reply.Interfaces, err
	}, soon, 50*time.Millisecond).Should(ContainElement(HaveField("Sandbox", "/run/netns/"+container)), s.log.String())
}

func (s *switched) record() *kv.NodeRecord {
	x, found, err := s.store.Get(context.Background(), kv.NodeRecordKey(1))
	r := &kv.NodeRecord{}
	if err == nil && found {
		err = proto.Unmarshal(x.Value, r)
	}
	s.g.Expect(err).NotTo(HaveOccurred())
	return r
}

// While the data plane is away, an agent answers for the leases that exist and
// releases them, and connects no pod. Then it connects pods, and wires of released leases go.
func TestPodsWaitForTheDataPlane(t *testing.T) {
	s := newSwitched(t, "")
	s.start()
	s.connected("one")
	s.connected("two")
	s.g.Expect(s.plane.pods()).To(ConsistOf("one", "two"))
	s.end()
	s.g.Expect(s.plane.closed).To(Equal(1))
	s.g.Expect(os.RemoveAll(s.dir)).To(Succeed())

	s.plane.set(func() {
		s.plane.away = fmt.Errorf("%w: dial /run/vpp/api.sock: connection refused", southbound.ErrAway)
	})
	s.start()
	problem := ContainSubstring("the data plane is away: dial /run/vpp/api.sock: connection refused")
	s.g.Eventually(func() []string { return s.status().Notes }, soon, 20*time.Millisecond).Should(ContainElement(problem))
	s.g.Eventually(func() error { return s.main("ADD", "three") }, soon, 20*time.Millisecond).Should(MatchError(problem))
	s.g.Eventually(func() error { return s.main("STATUS", "") }, soon, 20*time.Millisecond).Should(MatchError(problem))
	s.g.Eventually(func() error { return s.main("CHECK", "two") }, soon, 20*time.Millisecond).Should(MatchError(problem))
	_, leases := s.call("GET", localapi.PathLeases, nil)
	s.g.Expect(leases).To(And(ContainSubstring(`"one"`), ContainSubstring(`"two"`), Not(ContainSubstring(`"three"`))))
	s.g.Expect(s.main("DEL", "one")).To(Succeed())
	s.g.Expect(s.plane.pods()).To(ConsistOf("one", "two"), "nothing was touched")
	status := s.status()
	s.g.Expect(status.Dataplane).To(Equal("vpp"))
	s.g.Expect(status.Southbound.Made).To(BeZero())
	s.g.Expect(status.Southbound.Pending).To(BeNumerically(">", 1))
	s.g.Expect(status.Southbound.Values[0].WaitsFor).To(ConsistOf(problem))
	_, metrics := s.call("GET", localapi.PathMetrics, nil)
	s.g.Expect(metrics).To(ContainSubstring(`cadastre_dataplane_info{dataplane="vpp",transport="vxlan"} 1`))
	s.g.Expect(s.dir).NotTo(BeADirectory(), "the runtime finds no plugin")

	s.plane.set(func() { s.plane.away = nil })
	s.connected("three")
	s.g.Eventually(s.plane.pods, soon, 20*time.Millisecond).Should(ConsistOf("two", "three"))
	s.g.Eventually(filepath.Join(s.dir, "10-cadastre.conflist"), soon, 20*time.Millisecond).Should(BeAnExistingFile())
	s.g.Expect(s.main("CHECK", "two")).To(Succeed())
	s.plane.set(func() { clear(s.plane.values) })
	s.g.Expect(s.main("CHECK", "two")).To(MatchError(ContainSubstring("missing")))
	s.g.Expect(s.main("GC", "")).To(Succeed())
	s.g.Expect(s.status().Notes).NotTo(ContainElement(problem))
}

// The node's address in nodeInterconnectCIDR is its underlay, not an address of the kernel.
func TestTheUnderlayOfAnotherDataPlane(t *testing.T) {
	for more, want := range map[string]uint32{"": 1450, ", transport: hostgw": 1450, ", mtu: 8950": 8950} {
		s := newSwitched(t, more)
		s.start()
		s.g.Eventually(func() []string { return s.plane.node().GetUnderlay() }, soon, 20*time.Millisecond).Should(Equal([]string{"192.168.16.1"}))
		s.g.Eventually(func() []string { return s.record().Underlay }, soon, 20*time.Millisecond).Should(Equal([]string{"192.168.16.1"}))
		node := s.plane.node()
		s.g.Expect(node.Mtu).To(Equal(want))
		s.g.Expect(node.HostDestinations).To(ContainElement("10.96.0.0/12"))
		s.g.Expect(s.plane.env.Node).To(Equal("a"))
		s.g.Expect(s.plane.env.Conf.VPPNode("a").Main).To(Equal("eth1"))
		s.g.Expect(s.status().Notes).To(BeEmpty())
		s.end()
	}
}

// A value that fails when the data plane comes back is made again without a restart.
func TestAFailureWhenTheDataPlaneComesBackHeals(t *testing.T) {
	s := newSwitched(t, ", controller: {enableRetry: false, delayAfterErrorHealing: 200ms}")
	s.plane.away = fmt.Errorf("%w: no socket", southbound.ErrAway)
	s.start()
	s.g.Eventually(func() int { return s.status().Southbound.Pending }, soon, 20*time.Millisecond).Should(BeNumerically(">", 0))
	s.plane.set(func() { s.plane.away, s.plane.broken = nil, kv.SinkNode })
	failed := func() []localapi.SouthboundValue { return s.status().Southbound.Values }
	s.g.Eventually(failed, soon, 20*time.Millisecond).Should(ContainElement(HaveField("Error", ContainSubstring("retval -2"))))
	s.plane.set(func() { s.plane.broken = "" })
	s.g.Eventually(s.plane.node, soon, 20*time.Millisecond).ShouldNot(BeNil())
	s.connected("one")
}

// A program without the data plane of its configuration names the one that has it.
func TestAProgramWithoutTheDataPlane(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "contiv.conf")
	g.Expect(os.WriteFile(path, []byte("cadastre: {dataplane: vpp}"), 0o600)).To(Succeed())
	for _, plane := range []*Dataplane{nil, {Name: "ovs"}} {
		var text bytes.Buffer
		code := Main(context.Background(), Program{
			Name: "cadastre-agent", Args: []string{"--config", path, "--node-name", "a"}, Stderr: &text, Dataplane: plane,
		})
		g.Expect(code).To(Equal(1))
		g.Expect(text.String()).To(And(ContainSubstring(`cadastre.dataplane \"vpp\"`), ContainSubstring("run cadastre-agent-vpp of module vpp/"),
			ContainSubstring(`dataplane: linux`)))
	}
}

func TestAProgramHasTheFlagsOfItsDataPlane(t *testing.T) {
	g := NewWithT(t)
	namespace := ""
	p := Dataplane{Name: "vpp", Flags: func(fs *pflag.FlagSet) { fs.StringVar(&namespace, "vpp-namespace", "", "the namespace of VPP") }}
	var text bytes.Buffer
	run := func(args ...string) int {
		return Main(context.Background(), Program{Name: "cadastre-agent-vpp", Args: args, Stderr: &text, Dataplane: &p})
	}
	g.Expect(run("--help")).To(BeZero())
	g.Expect(text.String()).To(ContainSubstring("vpp-namespace"))
	g.Expect(run("--vpp-namespace=blue", "--config", "/nowhere")).To(Equal(1))
	g.Expect(namespace).To(Equal("blue"))
}
