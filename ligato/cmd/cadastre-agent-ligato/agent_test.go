// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

const (
	ipv4 = `
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre: {nodeID: 5, dataplane: linux, transport: none, masquerade: false, coolDown: 1s}
`
	dualStack = `
ipamConfig:
  podSubnetCIDR: 10.1.0.0/16,fd00:1::/48
  podSubnetOneNodePrefixLen: 24
  vxlanCIDR: 192.168.30.0/24,fd00:4::/64
  vppHostSubnetCIDR: 172.30.0.0/16,fd00:2::/48
  nodeInterconnectCIDR: 192.168.16.0/24,fd00:3::/64
  serviceCIDR: 10.96.0.0/12,fd00:5::/108
cadastre: {nodeID: 5, dataplane: linux, transport: none, masquerade: false, coolDown: 1s}
`
)

// withEtcd is the rest of the section cadastre with a cluster store, and short times.
const withEtcd = `
  kvdb: {type: etcd, endpoints: ["ETCD"]}
  nodeIDs: {refresh: 300ms, fresh: 2s, expire: 1h, quarantine: 0s}
  controller: {delayLocalResync: 300ms, remoteDBProbingInterval: 300ms, delayAfterErrorHealing: 100ms}
`

// TestPodGetsItsWireThroughLigato attaches two pods, reaches them, and detaches them.
func TestPodGetsItsWireThroughLigato(t *testing.T) {
	for name, conf := range map[string]string{"IPv4": ipv4, "dual stack": dualStack} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, conf)
			l.start()
			empty := l.snapshot(l.host)
			a, b := l.newPod("web-0"), l.newPod("web-1")
			l.add(a)
			l.add(b)
			l.Expect(a.addresses).NotTo(ContainElements(b.addresses))
			l.answers(a)
			l.answers(b)
			l.del(a)
			l.Expect(l.snapshot(a.Namespace)).To(BeEmpty())
			l.answers(b)
			l.del(b)
			l.Expect(l.snapshot(l.host)).To(Equal(empty))
			l.Expect(l.leases()).To(BeEmpty())
			l.Expect(l.log()).NotTo(ContainSubstring("an update failed"))
		})
	}
}

// TestRepeatedAddKeepsTheWire adds an attachment twice.
func TestRepeatedAddKeepsTheWire(t *testing.T) {
	l := newLab(t, dualStack)
	l.start()
	p := l.newPod("web-0")
	l.add(p)
	before, index := p.addresses, l.index(p)
	l.add(p)
	l.Expect(p.addresses).To(Equal(before))
	l.Expect(l.index(p)).To(Equal(index))
}

// TestFailedAddLeavesNothing lets Ligato fail in the middle of an ADD: the namespace is
// missing, or has an interface of the same name.
func TestFailedAddLeavesNothing(t *testing.T) {
	for name, conf := range map[string]string{"IPv4": ipv4, "dual stack": dualStack} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, conf)
			l.start()
			other := l.newPod("other")
			l.add(other)
			host, leases := l.snapshot(l.host), l.leases()

			missing := l.newPod("missing")
			_, err := l.ask(missing.request("ADD", "/run/netns/missing"))
			l.Expect(err).To(MatchError(ContainSubstring("/run/netns/missing")))
			l.Expect(l.snapshot(l.host)).To(Equal(host))
			l.Expect(l.leases()).To(Equal(leases))

			taken := l.newPod("taken")
			l.must(taken.Do(func() error {
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}})
			}))
			_, err = l.ask(taken.request("ADD", taken.Path()))
			l.Expect(err).To(MatchError(ContainSubstring("file exists")))
			l.Expect(l.snapshot(l.host)).To(Equal(host))
			l.Expect(l.snapshot(taken.Namespace)).To(Equal([]string{"link eth0"}))
			l.Expect(l.leases()).To(Equal(leases))

			l.must(taken.Do(func() error { return deleteLink("eth0") }))
			l.add(taken)
			l.answers(taken)
			l.answers(other)
		})
	}
}

// TestDeleteAfterTheNamespaceHasEnded removes the namespace before the DEL, as a reboot or
// a runtime that was killed does.
func TestDeleteAfterTheNamespaceHasEnded(t *testing.T) {
	l := newLab(t, dualStack)
	l.start()
	empty := l.snapshot(l.host)
	p, other := l.newPod("web-0"), l.newPod("other")
	l.add(p)
	l.must(p.Close())
	l.Eventually(func() []string { return l.snapshot(l.host) }).Should(Equal(empty)) // the kernel removes the wire
	l.add(other)
	_, err := l.ask(p.request("DEL", ""))
	l.must(err)
	l.Expect(l.leases()).To(HaveLen(len(other.addresses)))
	l.answers(other)
	l.del(other)
	l.Expect(l.snapshot(l.host)).To(Equal(empty))
}

// TestResyncRepairsTheKernel damages what Ligato has made and asks for a resync.
func TestResyncRepairsTheKernel(t *testing.T) {
	l := newLab(t, dualStack)
	l.start()
	p, other := l.newPod("web-0"), l.newPod("other")
	l.add(p)
	l.add(other)
	l.answers(p)
	whole, inside := l.snapshot(l.host), l.snapshot(p.Namespace)
	foreign := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "foreign"}}
	for name, harm := range map[string]func() error{
		"the host end is removed": func() error { return l.host.Do(func() error { return deleteLink(l.hostEnd(p)) }) },
		"the pod's end is down":   func() error { return inPod(p, netlink.LinkSetDown) },
		"a neighbour is removed": func() error {
			return inPod(p, func(link netlink.Link) error {
				all, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
				if err != nil {
					return err
				}
				return netlink.NeighDel(&all[0])
			})
		},
		"the default routes are removed": func() error {
			return inPod(p, func(link netlink.Link) error {
				all, err := netlink.RouteList(link, netlink.FAMILY_ALL)
				for i := range all {
					if err == nil && all[i].Gw != nil {
						err = netlink.RouteDel(&all[i])
					}
				}
				return err
			})
		},
		"an address is removed": func() error {
			return inPod(p, func(link netlink.Link) error {
				a, err := netlink.ParseAddr(p.addresses[0].String())
				if err != nil {
					return err
				}
				return netlink.AddrDel(link, a)
			})
		},
		"a wire without a lease appears": func() error {
			return l.host.Do(func() error {
				stray := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cadstray"}, PeerName: "strayend"}
				if err := netlink.LinkAdd(stray); err != nil {
					return err
				}
				return netlink.LinkSetAlias(stray, "/vnf-agent/node-a/cadstray/pod-cadstray")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l.must(harm())
			l.Expect(slices.Concat(l.snapshot(l.host), l.snapshot(p.Namespace))).NotTo(
				ConsistOf(slices.Concat(whole, inside)), "nothing is damaged")
			l.resync()
			l.Expect(l.snapshot(l.host)).To(ConsistOf(whole))
			l.Expect(l.snapshot(p.Namespace)).To(ConsistOf(inside))
			l.answers(p)
			l.answers(other)
		})
	}
	l.must(l.host.Do(func() error { return netlink.LinkAdd(foreign) }))
	l.resync()
	l.Expect(l.snapshot(l.host)).To(ContainElement("link foreign"))
}

// TestRestartKeepsTheWires kills the agent while a pod and the node talk. One pod loses its
// wire meanwhile, and one its namespace.
func TestRestartKeepsTheWires(t *testing.T) {
	l := newLab(t, dualStack)
	l.start()
	kept, damaged, ended := l.newPod("kept"), l.newPod("damaged"), l.newPod("ended")
	for _, p := range []*pod{kept, damaged, ended} {
		l.add(p)
		l.answers(p)
	}
	index := l.index(kept)
	l.kill()
	l.must(inPod(damaged, netlink.LinkDel))
	l.must(ended.Close())
	l.newPod("other") // the path of the pod that has ended mostly names its namespace now
	l.answers(kept)
	l.start()
	l.Expect(l.index(kept)).To(Equal(index))
	l.answers(kept)
	l.answers(damaged)
	// The kernel may still remove the namespace of the pod that has ended: a value there fails then, until healing.
	l.Eventually(func() string { return l.get(localapi.PathStatus) }).Should(
		ContainSubstring(`"Healthy":true`), "a pod that has ended is not an error")
	_, err := l.ask(ended.request("DEL", ""))
	l.must(err)
	l.del(kept)
	l.del(damaged)
	l.Expect(l.snapshot(l.host)).To(BeEmpty())
	l.Expect(l.leases()).To(BeEmpty())
	l.must(l.run.Stop(within))
	l.run = nil
}

// TestDeleteWhileTheAgentIsAway leaves a DEL for the agent.
func TestDeleteWhileTheAgentIsAway(t *testing.T) {
	l := newLab(t, ipv4)
	l.start()
	p := l.newPod("web-0")
	l.add(p)
	l.kill()
	l.must(p.intent(l).Write(l.intents()))
	l.start()
	l.Eventually(l.leases).Should(BeEmpty())
	l.Expect(l.snapshot(l.host)).To(BeEmpty())
}

// TestChangeOfThePodCIDR gives the node another podCIDR, as an external IPAM does.
func TestChangeOfThePodCIDR(t *testing.T) {
	l := newLab(t, `
ipamConfig: {useExternalIPAM: true, podSubnetCIDR: 10.1.0.0/16}
cadastre:
  dataplane: linux
  transport: none
  masquerade: false
`+withEtcd)
	l.node("10.1.7.0/24")
	l.start()
	old := l.newPod("old")
	l.Eventually(func() error { _, err := l.ask(old.request("ADD", old.Path())); return err }).Should(Succeed())
	l.add(old)
	l.Expect(old.addresses).To(Equal([]netip.Prefix{netip.MustParsePrefix("10.1.7.2/32")}))
	l.node("10.1.9.0/24")
	in := func(p *pod, cidr string) bool {
		return netip.MustParsePrefix(cidr).Contains(p.addresses[0].Addr())
	}
	var next *pod
	l.Eventually(func() bool {
		next = l.newPod("next")
		if _, err := l.ask(next.request("ADD", next.Path())); err != nil {
			return false
		}
		l.add(next)
		if in(next, "10.1.9.0/24") {
			return true
		}
		l.del(next)
		return false
	}).Should(BeTrue())
	l.Expect(in(old, "10.1.7.0/24")).To(BeTrue())
	l.answers(old)
	l.answers(next)
	l.Expect(l.get(localapi.PathEventHistory)).To(ContainSubstring("Pod CIDR Change"))
}

// TestAPendingValueIsAnError wants a route of a pod through a gateway that is on no link,
// which Ligato leaves pending without an error.
func TestAPendingValueIsAnError(t *testing.T) {
	l := newLab(t, strings.Replace(routed, "hostgw", "none", 1))
	l.join()
	l.start()
	ns := l.namespace()
	value := &kv.PodNetwork{
		IfName:    "eth0",
		Addresses: []string{"10.1.5.200/32"},
		Gateways:  []string{"10.1.5.1"},
		Routes:    []*kv.Route{{Dst: "198.51.100.0/24", Gateway: "203.0.113.1"}},
		Wire: &kv.Wire{
			Netns:      ns.Path(),
			HostIfName: "cadexternal",
			HostMac:    "0e:00:00:00:00:01",
			PodMac:     "0e:00:00:00:00:02",
			Mtu:        1400,
		},
	}
	l.put(kv.ExternalKey(l.agent.Node, "pod/external/c/eth0"), value)
	l.Eventually(func() string { return l.get(localapi.PathEventHistory) }).Should(
		ContainSubstring("pod/external/c/eth0: config/linux/l3/v2/route/198.51.100.0/24/pod-cadexternal is pending"))
	l.Expect(l.snapshot(ns)).To(ContainElement("address 10.1.5.200/32 on eth0"), "the rest is made")
}

// TestCheckLooksAtTheKernel damages a wire before a CHECK.
func TestCheckLooksAtTheKernel(t *testing.T) {
	l := newLab(t, ipv4)
	l.start()
	p := l.newPod("web-0")
	l.add(p)
	req := p.request("CHECK", p.Path())
	_, err := l.ask(req)
	l.must(err)
	l.must(inPod(p, netlink.LinkSetDown))
	_, err = l.ask(req)
	l.Expect(err).To(MatchError(ContainSubstring("is down")))
}

// TestTheShippedConfigurationStarts starts the agent with the contiv.conf beside it.
func TestTheShippedConfigurationStarts(t *testing.T) {
	conf, err := os.ReadFile("contiv.conf")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	l := newLab(t, string(conf))
	l.start()
	p := l.newPod("web-0")
	l.add(p)
	l.answers(p)
}

// TestUnsupportedNetworkIsRefusedAtTheStart configures what the Linux plugins cannot carry.
func TestUnsupportedNetworkIsRefusedAtTheStart(t *testing.T) {
	l := newLab(t, "cadastre: {dataplane: linux, transport: vxlan, masquerade: true}\n")
	l.launch()
	l.Eventually(l.run.Done()).Should(BeClosed())
	l.run = nil
	l.Expect(l.log()).To(SatisfyAll(
		ContainSubstring(`cadastre.transport "vxlan"`),
		ContainSubstring(`cadastre.masquerade "true"`),
	))
}

func (l *lab) log() string {
	l.t.Helper()
	text, err := os.ReadFile(l.agent.Log())
	l.must(err)
	return string(text)
}

func (l *lab) get(path string) string {
	l.t.Helper()
	text, err := l.agent.Get(context.Background(), path)
	l.must(err)
	return text
}

// resync has the agent read everything anew and waits for the end.
func (l *lab) resync() {
	l.t.Helper()
	resp, err := l.client().Post("http://localhost"+localapi.PathResync, "application/json", nil)
	l.must(err)
	_ = resp.Body.Close()
	l.Expect(resp.StatusCode).To(BeNumerically("<", http.StatusMultipleChoices))
}

// index returns the number of the link in the pod.
func (l *lab) index(p *pod) (index int) {
	l.t.Helper()
	l.must(inPod(p, func(link netlink.Link) error {
		index = link.Attrs().Index
		return nil
	}))
	return index
}

// hostEnd returns the name of the host end of the pod's wire.
func (l *lab) hostEnd(p *pod) (name string) {
	for _, line := range l.snapshot(l.host) {
		if rest, ok := strings.CutPrefix(line, "route "+p.addresses[0].String()+" via <nil> on "); ok {
			name = rest
		}
	}
	return name
}

func inPod(p *pod, do func(netlink.Link) error) error {
	return p.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return do(link)
	})
}

func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}
