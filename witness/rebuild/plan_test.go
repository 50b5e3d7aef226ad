// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/rebuild"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// namespace is one that counts, with a device of the machine.
func namespace(path string, addrs ...string) witness.Namespace {
	ns := witness.Namespace{Counts: true, Paths: []string{path}, Links: []witness.Link{
		{Name: "lo", Loopback: true, Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}, {Name: "eth0", MAC: "02:00:00:00:00:05"},
	}}
	for _, a := range addrs {
		ns.Links[1].Addrs = append(ns.Links[1].Addrs, netip.PrefixFrom(addr(a), addr(a).BitLen()))
	}
	return ns
}

// alone is a namespace that nothing leads to and nothing names.
func alone(path string, addrs ...string) witness.Namespace {
	ns := namespace(path, addrs...)
	ns.Counts = false
	return ns
}

// wired is a namespace with a pair of links to the host, which has no route over it.
func wired(path string, addrs ...string) witness.Namespace {
	ns := namespace(path, addrs...)
	ns.Links[1].Kind, ns.Links[1].Peer, ns.Links[1].Away = "veth", 7, true
	return ns
}

func sandbox(id string) witness.Sandbox {
	return witness.Sandbox{ID: id, Namespace: "default", Name: "pod-" + id, UID: "u-" + id, Ready: true, NetNS: "/run/netns/" + id}
}

func cached(id string, addrs ...string) witness.Attachment {
	a := witness.Attachment{Key: ledger.Key{Network: "k8s", ContainerID: id, IfName: "eth0"}, NetNS: "/run/netns/" + id, Pod: ledger.Pod{Namespace: "default", Name: "cached-" + id}}
	for _, x := range addrs {
		a.Addrs = append(a.Addrs, addr(x))
	}
	return a
}

func withoutNamespace(a witness.Attachment) witness.Attachment {
	a.NetNS = ""
	return a
}

func kernelView(all ...witness.Namespace) *witness.KernelView {
	host := witness.Namespace{Host: true, Links: []witness.Link{{Name: "br0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.5.1/24")}}}}
	return &witness.KernelView{Namespaces: append([]witness.Namespace{host}, all...)}
}

func runtimeView(all ...witness.Sandbox) *witness.RuntimeView {
	return &witness.RuntimeView{Name: "containerd", Sandboxes: all}
}

// summary returns a plan in short lines.
func summary(p rebuild.Plan) (all []string) {
	for _, r := range p.Records {
		all = append(all, strings.TrimSpace(fmt.Sprintf("lease %v %s %s %s", r.Addrs, r.Pool, r.Key, r.Pod)))
	}
	for _, u := range p.Quarantined {
		all = append(all, fmt.Sprintf("quarantine %s %s", u.Addr, u.Pool))
	}
	for _, u := range p.Outside {
		all = append(all, fmt.Sprintf("outside %s", u.Addr))
	}
	for _, d := range p.Docker {
		all = append(all, fmt.Sprintf("docker %s %s", d.Addr, d.What))
	}
	for range p.Missing {
		all = append(all, "missing")
	}
	for range p.Skipped {
		all = append(all, "skipped")
	}
	return all
}

func TestMake(t *testing.T) {
	none := []witness.Report{
		{Name: witness.Runtime, State: witness.NotApplicable}, {Name: witness.Engine, State: witness.NotApplicable},
	}
	hostNet := sandbox("h")
	hostNet.HostNet = true
	vpp := sandbox("a")
	vpp.Addrs = []netip.Addr{addr("10.1.5.7")}
	ended := sandbox("a")
	ended.Ready = false
	reused := sandbox("a")
	reused.ID, reused.Ready = "0", false
	hidden := kernelView()
	hidden.Hidden = "process 7: permission denied"
	limited := kernelView()
	limited.Limits = "the processes of the host are not visible"
	engine := &witness.EngineView{Networks: []witness.EngineNetwork{{
		ID: "n", Name: "web", IPAMDriver: "cadastre",
		Pools:     []witness.EnginePool{{Subnet: netip.MustParsePrefix("10.1.5.64/26"), Gateway: addr("10.1.5.65"), Aux: map[string]netip.Addr{"router": addr("10.1.5.66")}}},
		Endpoints: []witness.EngineEndpoint{{Name: "nginx", Addrs: []netip.Addr{addr("10.1.5.67")}}},
	}, {ID: "x", Name: "other", IPAMDriver: "default", Pools: []witness.EnginePool{{Gateway: addr("10.1.5.99")}}}}}

	for name, c := range map[string]struct {
		kernel      *witness.KernelView
		runtime     *witness.RuntimeView
		engine      *witness.EngineView
		attachments []witness.Attachment
		network     string
		want        []string
	}{
		"nothing is there": {kernel: kernelView()},
		"a file of a namespace that another sandbox had before": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.7")), runtime: runtimeView(reused, sandbox("a")), network: "k8s",
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/pod-a"},
		},
		"no kernel": {want: []string{"missing"}},
		"a pod with a CNI result": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.7")), runtime: runtimeView(sandbox("a")), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/pod-a"},
		},
		"a pod without a CNI result": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.7")), runtime: runtimeView(sandbox("a")), network: "net1",
			want: []string{"lease [10.1.5.7] default net1/a/eth0 default/pod-a"},
		},
		"a pod of an unknown network": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.7")), runtime: runtimeView(sandbox("a")),
			want: []string{"quarantine 10.1.5.7 default"},
		},
		"two families": {
			kernel: kernelView(namespace("/run/netns/a", "fd00::7", "10.1.5.7", "fe80::1")), runtime: runtimeView(sandbox("a")), attachments: []witness.Attachment{cached("a", "10.1.5.7", "fd00::7")},
			want: []string{"lease [10.1.5.7 fd00::7] default k8s/a/eth0 default/pod-a"},
		},
		"the address of a pod differs from its CNI result": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.8")), runtime: runtimeView(sandbox("a")), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7 10.1.5.8] default k8s/a/eth0 default/pod-a"},
		},
		"an address outside of the blocks": {
			kernel: kernelView(namespace("/run/netns/a", "10.9.9.9")), runtime: runtimeView(sandbox("a")), network: "net1",
			want: []string{"outside 10.9.9.9"},
		},
		"a container without a sandbox": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.7")), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/cached-a"},
		},
		"a CNI result of another namespace": {
			kernel: kernelView(namespace("/run/netns/b", "10.1.5.7")), runtime: runtimeView(), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"quarantine 10.1.5.7 default"},
		},
		"an address of an unknown owner": {
			kernel: kernelView(namespace("/run/netns/b", "10.1.5.7")), runtime: runtimeView(),
			want: []string{"quarantine 10.1.5.7 default"},
		},
		"the host has a pod's address": {
			kernel:  &witness.KernelView{Namespaces: []witness.Namespace{{Host: true, Links: namespace("", "10.1.5.7").Links}}},
			runtime: runtimeView(), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"quarantine 10.1.5.7 default"},
		},
		"the host has a pod's address, and the CNI result names no namespace": {
			kernel:  &witness.KernelView{Namespaces: []witness.Namespace{{Host: true, Links: namespace("", "10.1.5.7").Links}}},
			runtime: runtimeView(), attachments: []witness.Attachment{withoutNamespace(cached("a", "10.1.5.7"))},
			want: []string{"quarantine 10.1.5.7 default"},
		},
		"two namespaces have one address": {
			kernel: kernelView(namespace("/run/netns/a", "10.1.5.7"), namespace("/run/netns/b", "10.1.5.7")), runtime: runtimeView(sandbox("a"), sandbox("b")), network: "net1",
			want: []string{"quarantine 10.1.5.7 default"},
		},
		"a sandbox without an address": {
			kernel: kernelView(namespace("/run/netns/a")), runtime: runtimeView(sandbox("a")), want: []string{"missing"},
		},
		"a sandbox of the host's network": {kernel: kernelView(), runtime: runtimeView(hostNet)},
		"a sandbox that the kernel does not connect": {
			kernel: kernelView(namespace("/run/netns/a")), runtime: runtimeView(vpp), network: "net1",
			want: []string{"lease [10.1.5.7] default net1/a/eth0 default/pod-a"},
		},
		"a sandbox that has ended, before its DEL": {
			kernel: kernelView(), runtime: runtimeView(ended), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/pod-a"},
		},
		"a CNI result that was left": {
			kernel: kernelView(), runtime: runtimeView(), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"skipped"},
		},
		"a CNI result, and namespaces are hidden": {
			kernel: hidden, runtime: runtimeView(), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/cached-a", "missing"},
		},
		"a CNI result, and namespaces are hidden, or cannot be known": {
			kernel: limited, runtime: runtimeView(), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/cached-a", "missing"},
		},
		"a process has all addresses, and nothing leads to it": {
			kernel:  kernelView(namespace("/run/netns/a", "10.1.5.7"), alone("/proc/7/ns/net", "10.1.5.7", "10.1.5.8")),
			runtime: runtimeView(sandbox("a")), network: "k8s",
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/pod-a"},
		},
		"a pod has addresses that are not its own": {
			kernel:  kernelView(wired("/run/netns/a", "10.1.5.7", "10.1.5.8", "10.1.5.9")),
			runtime: runtimeView(sandbox("a")), attachments: []witness.Attachment{cached("a", "10.1.5.7")},
			want: []string{"lease [10.1.5.7] default k8s/a/eth0 default/pod-a"},
		},
		"Docker's addresses": {
			kernel: kernelView(namespace("/run/docker/netns/1", "10.1.5.67"), namespace("/run/docker/netns/2", "10.1.5.99")), runtime: runtimeView(), engine: engine,
			want: []string{
				"quarantine 10.1.5.99 default", "docker 10.1.5.65 gateway", "docker 10.1.5.66 auxiliary address router", "docker 10.1.5.67 container nginx",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := &witness.World{BootID: "boot", Reports: none, Kernel: c.kernel, Runtime: c.runtime, Engine: c.engine, Attachments: c.attachments, Driver: "cadastre"}
			in := rebuild.Input{Network: c.network, Pools: []rebuild.Pool{{
				Name: "default", Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24"), netip.MustParsePrefix("fd00::/64")},
				Reserved: []netip.Addr{addr("10.1.5.1"), addr("10.1.5.254")},
			}}}
			p := rebuild.Make(w, in)
			g.Expect(summary(p)).To(Equal(c.want))

			l, err := ledger.Open(t.Context(), journal.NewMemory(), ledger.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rebuild.Apply(t.Context(), l, in.Pools, &p)).To(Succeed())
			for _, r := range p.Records {
				for _, a := range r.Addrs {
					lease, ok := l.Lookup(r.Pool, a)
					g.Expect(ok).To(BeTrue())
					g.Expect([]any{lease.Key, lease.Pod, lease.NetNS, lease.NetNSID, lease.State}).To(Equal([]any{r.Key, r.Pod, r.NetNS, r.NetNSID, ledger.Held}))
				}
			}
			for _, u := range p.Quarantined {
				lease, _ := l.Lookup(u.Pool, u.Addr)
				g.Expect(lease.State).To(Equal(ledger.Quarantined))
				g.Expect(lease.Reason).To(ContainSubstring(u.Reason))
			}
		})
	}
}

// One attachment has addresses of two pools.
func TestOneKeyInTwoPools(t *testing.T) {
	g := NewWithT(t)
	w := &witness.World{Kernel: kernelView(namespace("/run/netns/a", "10.1.5.7", "10.2.5.7")), Runtime: runtimeView(sandbox("a")), Engine: &witness.EngineView{}}
	in := rebuild.Input{Network: "net1", Pools: []rebuild.Pool{
		{Name: "default", Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")}, Reserved: []netip.Addr{addr("10.1.5.1")}},
		{Name: "second", Blocks: []netip.Prefix{netip.MustParsePrefix("10.2.5.0/24")}},
	}}
	p := rebuild.Make(w, in)
	g.Expect(p.Complete()).To(BeTrue(), "%v", p.Missing)
	l, err := ledger.Open(t.Context(), journal.NewMemory(), ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rebuild.Apply(t.Context(), l, in.Pools, &p)).To(Succeed())
	g.Expect(l.ByKey(ledger.Key{Network: "net1", ContainerID: "a", IfName: "eth0"})).To(HaveLen(2))
}

// A rebuilt lease has the identity of the namespace that shows it to be in use, and not that
// of another namespace. So it is repaired and reclaimed as one of an ADD.
func TestTheIdentityOfARebuiltLease(t *testing.T) {
	numbered := func(ns witness.Namespace, inode uint64) witness.Namespace {
		ns.ID, ns.Cookie = witness.NamespaceID{Dev: 4, Inode: inode}, 100+inode
		return ns
	}
	is := func(inode uint64) kv.NetNSID {
		return kv.NetNSID{Boot: "boot", Dev: 4, Inode: inode, Cookie: 100 + inode}
	}
	notReady := sandbox("c1")
	notReady.Ready = false
	for name, c := range map[string]struct {
		world witness.World
		want  kv.NetNSID
	}{
		"a link and a sandbox": {witness.World{
			Kernel:  kernelView(numbered(wired("/run/netns/c1", "10.1.5.7"), 7)),
			Runtime: runtimeView(sandbox("c1")), Attachments: []witness.Attachment{cached("c1", "10.1.5.7")},
		}, is(7)},
		"a link and a CNI result": {witness.World{
			Kernel: kernelView(numbered(wired("/run/netns/c1", "10.1.5.7"), 7)), Attachments: []witness.Attachment{cached("c1", "10.1.5.7")},
		}, is(7)},
		"a CNI result without a path": {witness.World{
			Kernel: kernelView(numbered(wired("/run/netns/c1", "10.1.5.7"), 7)), Attachments: []witness.Attachment{withoutNamespace(cached("c1", "10.1.5.7"))},
		}, kv.NetNSID{}},
		"a sandbox that runs, no link": {witness.World{
			Kernel:  kernelView(numbered(namespace("/run/netns/c1"), 8)),
			Runtime: runtimeView(sandbox("c1")), Attachments: []witness.Attachment{cached("c1", "10.1.5.7")},
		}, is(8)},
		"a sandbox that has ended, no link": {witness.World{
			Kernel:  kernelView(numbered(namespace("/run/netns/c1"), 8)),
			Runtime: runtimeView(notReady), Attachments: []witness.Attachment{cached("c1", "10.1.5.7")},
		}, kv.NetNSID{}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c.world.BootID = "boot"
			p := rebuild.Make(&c.world, rebuild.Input{Pools: []rebuild.Pool{{
				Name: "default", Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")},
			}}})
			g.Expect(p.Records).To(HaveLen(1))
			g.Expect(p.Records[0].NetNSID).To(Equal(c.want))
		})
	}
}
