// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// crashEnv holds a crashOrder as JSON. The test's program then is the process that ends.
const crashEnv = "CADASTRE_TEST_CRASH"

// crashOrder tells a process what to do until it ends.
type crashOrder struct {
	Host string
	Pods []string // paths of namespaces
	Seed uint64
	Step int  // of all calls of descriptors; 0: it survives, and prints their number
	Late bool // it ends after the step, not before
}

// transactions returns random transactions over values of every kind, and what is wanted
// after them.
func (o crashOrder) transactions() (all []controller.Transaction, final []controller.Value) {
	rnd := rand.New(rand.NewPCG(o.Seed, 15))
	wanted := map[string]proto.Message{}
	for range 5 {
		txn := controller.Transaction{Method: controller.Update, RevertOnFailure: rnd.IntN(4) == 0}
		some := 4
		if len(all) == 0 || rnd.IntN(4) == 0 {
			txn.Method, some, wanted = controller.FullResync, 8, map[string]proto.Message{}
		}
		choices, before := o.choices(), maps.Clone(wanted)
		if txn.Method != controller.Update {
			txn.RevertOnFailure = false
		}
		for _, key := range slices.Sorted(maps.Keys(choices)) {
			if rnd.IntN(10) >= some {
				continue
			}
			m := choices[key][rnd.IntN(len(choices[key]))]
			if m == nil && txn.Method != controller.Update {
				continue
			}
			txn.Values = append(txn.Values, controller.Value{Key: key, Message: m})
			if wanted[key] = m; m == nil {
				delete(wanted, key)
			}
		}
		pending := func(v controller.Value) bool { return v.Message != nil && !ready(wanted, v.Key) }
		if txn.RevertOnFailure && slices.ContainsFunc(txn.Values, pending) {
			wanted = before // it fails, and is undone
		}
		all = append(all, txn)
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		final = append(final, controller.Value{Key: key, Message: wanted[key]})
	}
	return all, final
}

// ready reports whether a value and those that it depends on are wanted.
func ready(wanted map[string]proto.Message, key string) bool {
	switch m := wanted[key].(type) {
	case nil:
		return false
	case *kv.NodeRoute:
		return m.Transport == kv.Transport_DIRECT || ready(wanted, kv.SinkTunnelKey(m.NodeId, m.Network))
	case *kv.NodeTunnel:
		if m.Network != "" {
			return ready(wanted, kv.SinkLinkPrefix+m.Network)
		}
		return ready(wanted, kv.SinkNode)
	case *kv.NetworkLink:
		return ready(wanted, kv.SinkNetworkPrefix+m.Network)
	case *kv.UplinkAddress:
		return ready(wanted, kv.SinkUplinkPrefix+m.Interface)
	case *kv.PodNetwork:
		return m.GetWire().GetTable() == 0 || ready(wanted, kv.SinkNetworkPrefix+"blue")
	}
	return true
}

const blueTable, blueVNI = 1007, 12

// choices returns values of every kind by key; nil is none.
func (o crashOrder) choices() map[string][]proto.Message {
	all := map[string][]proto.Message{
		kv.SinkNetworkPrefix + "default": {&kv.Network{Name: "default", Subnets: []string{"10.1.0.0/16"}}},
		kv.SinkNetworkPrefix + "blue":    {nil, &kv.Network{Name: "blue", Table: blueTable, Vni: 12, Subnets: []string{"10.5.0.0/16"}}},
		kv.SinkEgress: {nil, &kv.Egress{Sources: []string{"10.1.5.0/24", "fd01::/64"}, Direct: []string{"10.1.0.0/16", "fd01::/48"}},
			&kv.Egress{Sources: []string{"10.1.5.0/24"}, Direct: []string{"10.1.0.0/16", "10.96.0.0/12"}}},
	}
	for _, x := range []struct{ vni, mtu uint32 }{{10, 1450}, {10, 1400}, {11, 1450}} {
		all[kv.SinkNode] = append(all[kv.SinkNode], &kv.NodeNetwork{
			Id: 5, PodSubnets: []string{"10.1.5.0/24", "fd01::/64"}, PodGateways: []string{"10.1.5.1", "fd01::1"}, VxlanIps: []string{"192.168.30.5/24", "fd30::5/64"},
			Transport: kv.Transport_VXLAN, Underlay: []string{"10.99.1.2"}, Mtu: x.mtu, VxlanMac: "02:00:c0:a8:1e:05", Vni: x.vni,
		})
	}
	all[kv.SinkLinkPrefix+"blue"] = []proto.Message{nil}
	for _, x := range []struct {
		mtu      uint32
		underlay []string
	}{{1450, []string{"10.99.1.2"}}, {1400, []string{"10.99.1.2"}}, {1450, []string{"10.99.1.3"}}, {1450, []string{"fd99:1::2"}}} {
		all[kv.SinkLinkPrefix+"blue"] = append(all[kv.SinkLinkPrefix+"blue"], &kv.NetworkLink{
			Network: "blue", Vni: blueVNI, Table: blueTable, Underlay: x.underlay, Mac: "02:00:c0:a8:1e:05", Mtu: x.mtu,
		})
	}
	for id := uint32(7); id <= 8; id++ {
		blue := kv.SinkTunnelKey(id, "blue")
		all[blue] = []proto.Message{nil}
		for _, underlay := range []string{"10.99.2.2", "10.99.3.2"} {
			all[blue] = append(all[blue], &kv.NodeTunnel{
				NodeId: id, Transport: kv.Transport_VXLAN, Underlay: []string{underlay, "fd99:2::2"}, VxlanIps: []string{fmt.Sprint("192.168.30.", id), fmt.Sprint("fe80::", id)},
				Mac: fmt.Sprintf("02:00:c0:a8:1e:%02x", id), Network: "blue", Vni: blueVNI,
			})
		}
		for dst, gateway := range map[string]string{fmt.Sprintf("10.5.%d.0/24", id): fmt.Sprint("192.168.30.", id), fmt.Sprintf("fd05:%d::/64", id): fmt.Sprint("fe80::", id)} {
			all[kv.SinkRouteKey(dst, blueTable)] = []proto.Message{nil, &kv.NodeRoute{
				Dst: dst, Gateway: gateway, NodeId: id, Transport: kv.Transport_VXLAN, Table: blueTable, Network: "blue", Vni: blueVNI,
			}}
		}
		key := fmt.Sprint(kv.SinkTunnelPrefix, id)
		all[key] = []proto.Message{nil}
		for _, underlay := range []string{"10.99.2.2", "10.99.3.2"} {
			all[key] = append(all[key], &kv.NodeTunnel{
				NodeId: id, Transport: kv.Transport_VXLAN, Underlay: []string{underlay}, VxlanIps: []string{fmt.Sprint("192.168.30.", id), fmt.Sprint("fd30::", id)},
				Mac: fmt.Sprintf("02:00:c0:a8:1e:%02x", id), Subnets: []string{fmt.Sprintf("10.1.%d.0/24", id)},
			})
		}
		for _, r := range []struct {
			dst, vxlan, direct string
			table              uint32
		}{
			{fmt.Sprintf("10.1.%d.0/24", id), fmt.Sprint("192.168.30.", id), "10.99.1.1", 0},
			{fmt.Sprintf("fd01:%d::/64", id), fmt.Sprint("fd30::", id), "fd99:1::1", 0},
			{fmt.Sprintf("10.1.%d.0/24", id), fmt.Sprint("192.168.30.", id), "", blueTable},
		} {
			route := func(transport kv.Transport, gateway string) proto.Message {
				return &kv.NodeRoute{Dst: r.dst, Gateway: gateway, NodeId: id, Transport: transport, Table: r.table}
			}
			all[kv.SinkRouteKey(r.dst, r.table)] = []proto.Message{
				nil, route(kv.Transport_VXLAN, r.vxlan), route(kv.Transport_VXLAN, r.vxlan), route(kv.Transport_DIRECT, r.direct), route(kv.Transport_DIRECT, ""),
			}
		}
	}
	for i := range 2 {
		eni := fmt.Sprint("eni-", i)
		uplink := func(mac int, table uint32, gateway string) proto.Message {
			return &kv.Uplink{
				Interface: eni, Mac: crashMAC(mac), Table: kv.UplinkTables + table,
				Ranges: []*kv.SubnetRange{{Cidr: fmt.Sprintf("10.78.%d.0/24", i), Gateway: gateway}, {Cidr: fmt.Sprintf("fd78:%d::/64", i+1), Gateway: "fe80::1"}},
			}
		}
		table := uint32(1 + i)
		all[kv.SinkUplinkPrefix+eni] = []proto.Message{
			nil, uplink(i, table, fmt.Sprintf("10.78.%d.1", i)), uplink(i, table, ""), uplink(1-i, table, fmt.Sprintf("10.78.%d.2", i)), uplink(i, 10+table, ""),
		}
		for _, text := range []string{fmt.Sprintf("10.78.%d.9", i), fmt.Sprintf("fd78:%d::9", i+1)} {
			address := func(eni string, table uint32) proto.Message {
				return &kv.UplinkAddress{Address: text, Interface: eni, Table: kv.UplinkTables + table}
			}
			all[kv.SinkSourcePrefix+text] = []proto.Message{nil, address(eni, table), address(eni, 10+table), address(fmt.Sprint("eni-", 1-i), 2-table+1)}
		}
	}
	for i, path := range o.Pods {
		key := fmt.Sprintf("%sk8s/c%d/eth0", kv.SinkPodPrefix, i)
		pod := func(change func(*kv.PodNetwork)) proto.Message {
			four, six := fmt.Sprintf("10.1.5.%d", 10+i), fmt.Sprintf("fd01::%d", 10+i)
			p := &kv.PodNetwork{
				Namespace: "default", Name: fmt.Sprint("web-", i), Network: "k8s", IfName: "eth0",
				Addresses: []string{four + "/24", six + "/64"}, Gateways: []string{"10.1.5.1", "fd01::1"},
				Routes: []*kv.Route{{Dst: "0.0.0.0/0", Gateway: "10.1.5.1"}, {Dst: "::/0", Gateway: "fd01::1"}},
				Wire: &kv.Wire{
					Netns: path, Namespace: namespaceAt(path), HostIfName: fmt.Sprintf("cad%012x", i), Mtu: 1450, HostMac: macOf("host " + key), PodMac: macOf("pod " + key), Pool: "default",
				},
			}
			change(p)
			return p
		}
		all[key] = []proto.Message{
			nil,
			pod(func(*kv.PodNetwork) {}),
			pod(func(p *kv.PodNetwork) { p.Wire.Mtu = 1400 }),
			pod(func(p *kv.PodNetwork) { p.Wire.Pool, p.Wire.Table = "blue", blueTable }),
			pod(func(p *kv.PodNetwork) { p.Wire = nil }),
		}
	}
	return all
}

// crashMAC returns the MAC of a link that a cloud has attached to the node.
func crashMAC(n int) string { return fmt.Sprintf("02:78:00:00:00:%02x", n) }

// steps calls step before and after each change by a kind: their spans tell of them.
type steps struct {
	sdktrace.SpanProcessor
	step func(late bool)
}

func (s steps) OnStart(_ context.Context, span sdktrace.ReadWriteSpan) { s.changes(span, false) }

func (s steps) OnEnd(span sdktrace.ReadOnlySpan) { s.changes(span, true) }

func (s steps) changes(span sdktrace.ReadOnlySpan, late bool) {
	switch operation, _, _ := strings.Cut(span.Name(), " "); operation {
	case "create", "update", "delete":
		s.step(late)
	}
}

func (steps) Shutdown(context.Context) error { return nil }

// crash runs an order in this process. It returns the number of steps if it survives.
func (o crashOrder) crash() (taken int, err error) {
	descriptors, err := Descriptors(Options{Namespace: o.Host})
	if err != nil {
		return 0, err
	}
	step := func(late bool) {
		if !late {
			taken++
		}
		if taken == o.Step && late == o.Late {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
	}
	spans := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(steps{step: step}))
	ctx, span := spans.Tracer("crash").Start(context.Background(), "crash")
	defer span.End()
	s := southbound.New(southbound.Options{}, descriptors...)
	all, _ := o.transactions()
	for i, txn := range all {
		if err := s.Commit(ctx, txn); err != nil && (!txn.RevertOnFailure || !errors.Is(err, southbound.ErrPending)) {
			return taken, fmt.Errorf("transaction %d: %w", i, err)
		}
		for _, d := range descriptors {
			for more := true; more; {
				step(false)
				more, err = d.Sweep(ctx)
				step(true)
				if err != nil {
					return taken, err
				}
			}
		}
	}
	return taken, s.Close()
}

// crashed runs an order in a process of its own.
func (o crashOrder) crashed(t *testing.T) (steps int) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	if o.Step == 0 {
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", o.Seed, err, out)
		}
		steps, err = strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			t.Fatal(err)
		}
		return steps
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("seed %d: the process was not killed at step %d: %v\n%s", o.Seed, o.Step, err, out)
	}
	return 0
}

// crashIfAsked is called by TestMain.
func crashIfAsked() {
	text := os.Getenv(crashEnv)
	if text == "" {
		return
	}
	var o crashOrder
	err := json.Unmarshal([]byte(text), &o)
	steps := 0
	if err == nil {
		steps, err = o.crash()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(steps)
	os.Exit(0)
}

// crashLab is a node with an uplink, and the namespaces of pods.
type crashLab struct {
	Gomega
	t     *testing.T
	host  *netlab.Namespace
	pods  []*netlab.Namespace
	order crashOrder
}

func newCrashLab(t *testing.T) *crashLab {
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	l := &crashLab{Gomega: NewWithT(t), t: t, host: newNamespace(t)}
	l.Expect(l.host.Do(func() error {
		return errors.Join(wire("uplink", "router"), address("uplink", "10.99.1.2/24", "fd99:1::2/64"))
	})).To(Succeed())
	for i := range 2 {
		command(t, l.host.Path(), strings.Fields(fmt.Sprintf("ip link add ens%d address %s type veth peer name port%d address 02:78:00:00:01:%02x", i, crashMAC(i), i, i))...)
		command(t, l.host.Path(), "ip", "link", "set", fmt.Sprint("port", i), "up")
		command(t, l.host.Path(), "ip", "link", "set", fmt.Sprint("ens", i), "up")
		command(t, l.host.Path(), "ip", "address", "add", fmt.Sprintf("10.78.%d.10/24", i), "dev", fmt.Sprint("ens", i))
	}
	l.order.Host = l.host.Path()
	for range 4 {
		ns := newNamespace(t)
		l.pods = append(l.pods, ns)
		l.order.Pods = append(l.order.Pods, ns.Path())
	}
	return l
}

// resync is a new process that resyncs values and sweeps.
func (l *crashLab) resync(values []controller.Value) {
	l.t.Helper()
	descriptors, err := Descriptors(Options{Namespace: l.host.Path()})
	l.Expect(err).NotTo(HaveOccurred())
	s := southbound.New(southbound.Options{}, descriptors...)
	defer func() { l.Expect(s.Close()).To(Succeed()) }()
	l.Expect(s.Commit(l.t.Context(), controller.Transaction{Method: controller.FullResync, Values: values})).To(Succeed())
	for _, d := range descriptors {
		for more := true; more; {
			more, err = d.Sweep(l.t.Context())
			l.Expect(err).NotTo(HaveOccurred())
		}
	}
}

// state returns all objects of the kernel that matter.
func (l *crashLab) state() []string {
	l.t.Helper()
	var all []string
	for i, ns := range append([]*netlab.Namespace{l.host}, l.pods...) {
		l.Expect(ns.Do(func() error {
			lines, err := kernelState()
			for _, line := range lines {
				all = append(all, fmt.Sprintf("%d: %s", i, line))
			}
			return err
		})).To(Succeed())
	}
	return all
}

// ends compares the kernel after a new process's resync with want, and cleans it.
func (l *crashLab) ends(empty, want []string, final []controller.Value, what string) {
	l.t.Helper()
	l.resync(final)
	l.Expect(differences(want, l.state())).To(BeEmpty(), "%s: as after one resync", what)
	l.resync(nil)
	l.Expect(differences(empty, l.state())).To(BeEmpty(), "%s: nothing is left", what)
}

// once returns the kernel's state after one resync on a clean node, and cleans it.
func (l *crashLab) once(final []controller.Value) []string {
	l.t.Helper()
	l.resync(final)
	defer l.resync(nil)
	return l.state()
}

// TestTransactionsInTheKernelEndAsOneResync compares the kernel after random transactions
// over values of every kind with one fresh resync of what is wanted at their end.
func TestTransactionsInTheKernelEndAsOneResync(t *testing.T) {
	t.Parallel()
	l := newCrashLab(t)
	l.resync(nil)
	empty := l.state()
	first, count := effort.Seeds(t, 30)
	for seed := first; seed < first+count; seed++ {
		o := l.order
		o.Seed = seed
		_, final := o.transactions()
		want := l.once(final)
		_, err := o.crash()
		l.Expect(err).NotTo(HaveOccurred(), "seed %d", seed)
		l.Expect(differences(want, l.state())).To(BeEmpty(), "seed %d: as after one resync", seed)
		l.ends(empty, want, final, fmt.Sprint("seed ", seed))
	}
}

// TestProcessesThatAreKilled kills a process before and after each step of random
// transactions. A new process then ends where one fresh resync ends.
func TestProcessesThatAreKilled(t *testing.T) {
	t.Parallel()
	l := newCrashLab(t)
	l.resync(nil)
	empty := l.state()
	first, count := effort.Seeds(t, 3)
	for seed := first; seed < first+count; seed++ {
		o := l.order
		o.Seed = seed
		_, final := o.transactions()
		want := l.once(final)
		steps := o.crashed(t)
		l.ends(empty, want, final, fmt.Sprintf("seed %d, survives", seed))
		stride := 1
		if effort.Level(t) < effort.Nightly {
			stride = max(1, steps/4)
		}
		for step := 1; step <= steps; step += stride {
			for _, late := range []bool{false, true} {
				o.Step, o.Late = step, late
				o.crashed(t)
				l.ends(empty, want, final, fmt.Sprintf("seed %d, step %d, late %v", seed, step, late))
			}
		}
	}
}
