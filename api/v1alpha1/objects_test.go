// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// fill gives every field of a message a value, or none, at random.
func fill(rnd *rand.Rand, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case rnd.IntN(4) == 0:
		case f.IsList():
			list := m.Mutable(f).List()
			for range rnd.IntN(3) {
				if f.Kind() == protoreflect.MessageKind {
					fill(rnd, list.AppendMutable().Message())
				} else {
					list.Append(value(rnd, f.Kind()))
				}
			}
		default:
			m.Set(f, value(rnd, f.Kind()))
		}
	}
}

// value is one of a kind, often an extreme one.
func value(rnd *rand.Rand, kind protoreflect.Kind) protoreflect.Value {
	switch n := []uint64{0, 1, rnd.Uint64(), math.MaxUint64, math.MaxInt64, math.MaxUint32, math.MaxInt32 + 1}[rnd.IntN(7)]; kind {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "a", "fd00::1/64", "ünïcode \"\n", fmt.Sprint(n)}[rnd.IntN(5)])
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 0)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	}
	panic("a field of a kind that no message has had: " + kind.String())
}

// stored is an object as it comes back from an API server.
func stored[O any](g Gomega, o *O) *O {
	text, err := json.Marshal(o)
	g.Expect(err).NotTo(HaveOccurred())
	content := map[string]any{}
	g.Expect(json.Unmarshal(text, &content)).To(Succeed())
	back := new(O)
	g.Expect(json.Unmarshal(text, back)).To(Succeed())
	plain, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	g.Expect(err).NotTo(HaveOccurred())
	other := new(O)
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(plain, other)).To(Succeed())
	g.Expect(other).To(Equal(back))
	return back
}

// Whatever agents write is what they read, to the last bit.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(2000) {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(seed, 1))
		record, beat, pool, name := &kv.NodeRecord{}, &kv.NodeBeat{}, &kv.Pool{}, &kv.NodeName{}
		for _, m := range []proto.Message{record, beat, pool, name} {
			fill(rnd, m.ProtoReflect())
		}
		record.Id, beat.Id = max(1, record.Id), max(1, beat.Id) // 0 is not a node ID
		same := func(back, m proto.Message, err error) {
			t.Helper()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(proto.Equal(back, m)).To(BeTrue(), "seed %d: %v became %v", seed, m, back)
		}
		backRecord, err := stored(g, v1alpha1.NodeIDFrom(record)).ToKV()
		same(backRecord, record, err)
		backBeat, err := stored(g, v1alpha1.NodeBeatFrom(beat)).ToKV()
		same(backBeat, beat, err)
		same(stored(g, v1alpha1.PoolFrom(pool)).ToKV(), pool, nil)
		n := stored(g, v1alpha1.NodeNameFrom("a", name))
		same(n.ToKV(), name, nil)
		g.Expect(n.Name).To(Equal("a"))

		check := &kv.ClusterCheck{}
		fill(rnd, check.ProtoReflect())
		backCheck, err := stored(g, v1alpha1.ClusterCheckFrom(check)).ToKV()
		same(backCheck, check, err)

		claim := &kv.PrefixClaim{}
		fill(rnd, claim.ProtoReflect())
		claim.Prefix = []string{"10.1.77.0/24", "192.168.16.2/32", "fd00:1::/64", "::1/128"}[rnd.IntN(4)]
		object, err := v1alpha1.PrefixClaimFrom(claim)
		g.Expect(err).NotTo(HaveOccurred())
		backClaim, err := stored(g, object).ToKV()
		same(backClaim, claim, err)
	}
}

// The name of a claim is that of an object: one of two claims never hides the other.
func TestNamesOfPrefixClaims(t *testing.T) {
	g := NewWithT(t)
	names := map[string]bool{}
	for _, network := range []string{kv.PodNetworkClaims, kv.NodeNetworkClaims} {
		for _, prefix := range []string{"10.1.77.0/24", "10.1.77.0/25", "10.1.7.0/24", "::/64", "fd00:1::/64", "fd00::1:0:0:0/64", "fd00:1::1/128"} {
			for _, node := range []string{"a", "b.example"} {
				name := kv.PrefixClaimName(network, netip.MustParsePrefix(prefix), node)
				g.Expect(validation.NameIsDNSSubdomain(name, false)).To(BeEmpty(), name)
				g.Expect(names).NotTo(HaveKey(name))
				names[name] = true
			}
		}
	}
	object, err := v1alpha1.PrefixClaimFrom(&kv.PrefixClaim{Network: "default", Prefix: "10.1.77.0/24", Node: "a"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(object.Name).To(Equal("default.10-1-77-0-24.a"))
	object.Spec.NodeName = "b"
	_, err = object.ToKV()
	g.Expect(err).To(MatchError(ContainSubstring("give the name default.10-1-77-0-24.b")))
}

// What people wrote by hand, and wrongly, is named.
func TestWhatCannotBeRead(t *testing.T) {
	for name, want := range map[string]string{
		"": `""`, "0": `"0"`, "01": `"01"`, "-1": `"-1"`, "x": `"x"`, "4294967296": `"4294967296"`, "+1": `"+1"`, "1 ": `"1 "`,
	} {
		g := NewWithT(t)
		id, beat := &v1alpha1.NodeID{}, &v1alpha1.NodeBeat{}
		id.Name, beat.Name = name, name
		_, err := id.ToKV()
		g.Expect(err).To(MatchError(And(ContainSubstring("NodeID "+want), ContainSubstring("number from 1 to 4294967295"))))
		_, err = beat.ToKV()
		g.Expect(err).To(MatchError(ContainSubstring("NodeBeat " + want)))
	}
	for _, text := range []string{"yesterday", "2026-01-01", "1700000000"} {
		g := NewWithT(t)
		id, beat := &v1alpha1.NodeID{Spec: v1alpha1.NodeIDSpec{Released: text}}, &v1alpha1.NodeBeat{Spec: v1alpha1.NodeBeatSpec{At: text}}
		id.Name, beat.Name = "7", "7"
		_, err := id.ToKV()
		g.Expect(err).To(MatchError(And(ContainSubstring("NodeID 7: spec.released"), ContainSubstring(text), ContainSubstring("2006-01-02T"))))
		_, err = beat.ToKV()
		g.Expect(err).To(MatchError(ContainSubstring("NodeBeat 7: spec.at")))
	}
}

func TestNodeToKV(t *testing.T) {
	named := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{}
		n.Name, n.UID = "a", "u"
		change(n)
		return n
	}
	for name, c := range map[string]struct {
		node *corev1.Node
		want *kv.Node
	}{
		"new": {named(func(*corev1.Node) {}), &kv.Node{Name: "a", Uid: "u"}},
		"cordoned": {
			named(func(n *corev1.Node) { n.Spec.ProviderID, n.Spec.Unschedulable = "aws:///a/i-1", true }),
			&kv.Node{Name: "a", Uid: "u", ProviderId: "aws:///a/i-1", Unschedulable: true},
		},
		"one family": {
			named(func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.1.1.0/24", []string{"10.1.1.0/24"} }),
			&kv.Node{Name: "a", Uid: "u", PodCidrs: []string{"10.1.1.0/24"}},
		},
		"two families": {
			named(func(n *corev1.Node) {
				n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.1.1.0/24", []string{"10.1.1.0/24", "fd00:1::/64"}
			}),
			&kv.Node{Name: "a", Uid: "u", PodCidrs: []string{"10.1.1.0/24", "fd00:1::/64"}},
		},
		"of an old API server": {
			named(func(n *corev1.Node) { n.Spec.PodCIDR = "10.1.1.0/24" }),
			&kv.Node{Name: "a", Uid: "u", PodCidrs: []string{"10.1.1.0/24"}},
		},
		"addresses": {
			named(func(n *corev1.Node) {
				n.Status.Addresses = []corev1.NodeAddress{
					{Type: corev1.NodeHostName, Address: "a"}, {Type: corev1.NodeInternalIP, Address: "192.168.16.1"}, {Type: corev1.NodeExternalDNS, Address: "a.example"},
					{Type: corev1.NodeInternalIP, Address: "fd00::1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
				}
			}),
			&kv.Node{Name: "a", Uid: "u", Addresses: []string{"192.168.16.1", "fd00::1", "203.0.113.1"}},
		},
	} {
		g := NewWithT(t)
		before := c.node.DeepCopy()
		got := v1alpha1.NodeToKV(c.node)
		g.Expect(proto.Equal(got, c.want)).To(BeTrue(), "%s: %v", name, got)
		if len(got.PodCidrs) > 0 {
			got.PodCidrs[0] = "changed"
		}
		g.Expect(c.node).To(Equal(before), "%s: an informer's object is shared", name)
	}
}

func TestPodToKV(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID = "ns", "p", "u"
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want *kv.Pod
	}{
		"on no node": {pod(func(*corev1.Pod) {}), &kv.Pod{Namespace: "ns", Name: "p", Uid: "u"}},
		"running": {
			pod(func(p *corev1.Pod) {
				p.Spec.NodeName, p.Status.Phase, p.Status.PodIP = "a", corev1.PodRunning, "10.1.1.2"
				p.Status.PodIPs = []corev1.PodIP{{IP: "10.1.1.2"}, {IP: "fd00:1::2"}}
			}),
			&kv.Pod{Namespace: "ns", Name: "p", Uid: "u", Node: "a", Phase: "Running", IpAddresses: []string{"10.1.1.2", "fd00:1::2"}},
		},
		"one address": {
			pod(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.PodIP = "a", "10.1.1.2" }),
			&kv.Pod{Namespace: "ns", Name: "p", Uid: "u", Node: "a", IpAddresses: []string{"10.1.1.2"}},
		},
		"of the host": {
			pod(func(p *corev1.Pod) { p.Spec.NodeName, p.Spec.HostNetwork = "a", true }),
			&kv.Pod{Namespace: "ns", Name: "p", Uid: "u", Node: "a", HostNetwork: true},
		},
	} {
		got := v1alpha1.PodToKV(c.pod)
		NewWithT(t).Expect(proto.Equal(got, c.want)).To(BeTrue(), "%s: %v", name, got)
	}
}

func TestWhatPeopleWrite(t *testing.T) {
	g := NewWithT(t)
	n := &v1alpha1.CustomNetwork{Spec: v1alpha1.CustomNetworkSpec{SubnetCIDR: "10.5.0.0/16,fd00:5::/48", SubnetOneNodePrefixLen: 24, SubnetOneNodePrefixLenIPv6: 64}}
	n.Name, n.UID = "blue", "u"
	g.Expect(proto.Equal(stored(g, n).ToKV(), &kv.CustomNetwork{
		Name: "blue", Uid: "u", SubnetCidr: "10.5.0.0/16,fd00:5::/48", SubnetOneNodePrefixLen: 24, SubnetOneNodePrefixLenIpv6: 64,
	})).To(BeTrue())
	c := &v1alpha1.NodeConfig{Spec: v1alpha1.NodeConfigSpec{MainVPPInterface: v1alpha1.InterfaceConfig{InterfaceName: "eth1", IP: "192.168.16.1/24", UseDHCP: true}, Gateway: "192.168.16.254"}}
	c.Name = "a"
	g.Expect(proto.Equal(stored(g, c).ToKV(), &kv.NodeConfig{
		NodeName: "a", MainInterface: "eth1", MainIp: "192.168.16.1/24", UseDhcp: true, Gateway: "192.168.16.254",
	})).To(BeTrue())
}

// Every object is known to a scheme under its kind, and is copied whole.
func TestScheme(t *testing.T) {
	g := NewWithT(t)
	s := runtime.NewScheme()
	g.Expect(v1alpha1.AddToScheme(s)).To(Succeed())
	for _, kind := range []string{"CustomNetwork", "NodeConfig", "NodeID", "NodeName", "NodeBeat", "Pool", "PoolChange"} {
		for _, kind := range []string{kind, kind + "List"} {
			o, err := s.New(v1alpha1.GroupVersion().WithKind(kind))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(reflect.TypeOf(o.DeepCopyObject())).To(Equal(reflect.TypeOf(o)))
		}
	}
	g.Expect(v1alpha1.Resource(v1alpha1.NodeIDs).String()).To(Equal("cadastre.dev/v1alpha1, Resource=nodeids"))
}
