// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// namespaceAt returns the identity of the network namespace that a path names, nil if there is none.
func namespaceAt(path string) *kv.NetworkNamespace {
	ns, err := rtnl.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = ns.Close() }()
	s, err := ns.Dial()
	if err != nil {
		return nil
	}
	defer func() { _ = s.Close() }()
	w := &wires{opt: Options{}.withDefaults()}
	return w.identify(ns, s).Message()
}

// wireLab is a network namespace that plays the node, with a descriptor of wires.
type wireLab struct {
	Gomega
	t     testing.TB
	host  *netlab.Namespace
	wires openWires
	made  int
}

func newWireLab(t testing.TB, opt Options) *wireLab {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	l := &wireLab{Gomega: NewWithT(t), t: t}
	l.host = l.namespace()
	l.wires = l.open(opt)
	l.must(l.host.Do(func() error {
		for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			if err := writeSetting(name, "1"); err != nil {
				return err
			}
		}
		return nil
	}))
	return l
}

func (l *wireLab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *wireLab) namespace() *netlab.Namespace {
	l.t.Helper()
	ns, err := netlab.New()
	l.must(err)
	l.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// openWires is the kind of wires, with what makes them.
type openWires struct {
	*southbound.Descriptor
	*wires
}

// open opens another kind of the same node.
func (l *wireLab) open(opt Options) openWires {
	l.t.Helper()
	opt.Namespace = l.host.Path()
	w, err := newWires(opt)
	l.must(err)
	l.t.Cleanup(func() { _ = w.close() })
	return openWires{w.kind().Descriptor(), w}
}

// labPod is a pod with its value.
type labPod struct {
	*netlab.Namespace
	key   string
	value *kv.PodNetwork
	ip    []netip.Addr
}

func macOf(what string) string {
	sum := sha256.Sum256([]byte(what))
	sum[0] = 0x0a
	return net.HardwareAddr(sum[:6]).String()
}

// pod returns a pod whose wire is not made yet.
func (l *wireLab) pod() *labPod { return l.podIn(l.namespace()) }

func (l *wireLab) podIn(ns *netlab.Namespace) *labPod {
	l.made++
	return l.podWith(ns, fmt.Sprintf("pod/k8s/c%d/eth0", l.made), l.made)
}

// podWith returns a pod with the addresses of number n.
func (l *wireLab) podWith(ns *netlab.Namespace, key string, n int) *labPod {
	four, six := fmt.Sprintf("10.1.%d.%d", 8+n/200, 2+n%200), fmt.Sprintf("fd01::%x", n+1)
	p := &labPod{Namespace: ns, key: key, ip: []netip.Addr{netip.MustParseAddr(four), netip.MustParseAddr(six)}}
	p.value = &kv.PodNetwork{
		Namespace: "default", Name: fmt.Sprintf("web-%d", n), Network: "k8s", IfName: "eth0",
		Addresses: []string{four + "/24", six + "/64"},
		Gateways:  []string{"10.1.5.1", "fd01::1"},
		Routes:    []*kv.Route{{Dst: "0.0.0.0/0", Gateway: "10.1.5.1"}, {Dst: "::/0", Gateway: "fd01::1"}},
		Wire: &kv.Wire{
			HostIfName: fmt.Sprintf("cad%x", sha256.Sum256([]byte(key)))[:15], Mtu: 1450,
			HostMac: macOf("host " + key), PodMac: macOf("pod " + key), Pool: "default",
		},
	}
	if ns != nil {
		p.value.Wire.Netns, p.value.Wire.Namespace = ns.Path(), namespaceAt(ns.Path())
	}
	return p
}

func (l *wireLab) create(p *labPod) {
	l.t.Helper()
	l.must(l.wires.Create(context.Background(), p.key, p.value))
}

func (l *wireLab) delete(p *labPod) {
	l.t.Helper()
	l.must(l.wires.Delete(context.Background(), p.key, p.value))
}

// done stands for a value that is complete.
const done = "complete"

// retrieved returns the values that are made, by key, as text.
func (l *wireLab) retrieved(pods ...*labPod) map[string]string {
	l.t.Helper()
	found := map[string]string{}
	for key, m := range l.messages(pods...) {
		found[key] = fmt.Sprint(m)
		for _, p := range pods {
			if p.key == key && proto.Equal(p.value, m) {
				found[key] = done
			}
		}
	}
	return found
}

// messages returns the values that are made, by key.
func (l *wireLab) messages(pods ...*labPod) map[string]proto.Message {
	l.t.Helper()
	var wanted []controller.Value
	for _, p := range pods {
		wanted = append(wanted, controller.Value{Key: p.key, Message: p.value})
	}
	all, err := l.wires.Retrieve(context.Background(), wanted)
	l.must(err)
	found := map[string]proto.Message{}
	for _, v := range all {
		found[v.Key] = v.Message
	}
	return found
}

// complete expects that the wires of pods, and no others, are there and complete.
func (l *wireLab) complete(pods ...*labPod) {
	l.t.Helper()
	want := map[string]string{}
	for _, p := range pods {
		want[p.key] = done
	}
	l.Expect(l.retrieved(pods...)).To(Equal(want))
}

// ownSocket opens a socket in the namespace of the calling thread.
func ownSocket() (*rtnl.Socket, error) { return rtnl.Dial(unix.NETLINK_ROUTE) }

func oneRequest(r *rtnl.Request) []*rtnl.Request { return []*rtnl.Request{r} }
