// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// difference is a change of a healthy node, with the findings that it has.
type difference struct {
	name   string
	change func(n *node)
	want   []string // number and text
}

// differences are the findings of leases and addresses.
func differences() []difference {
	return []difference{
		{"the ledger contradicts itself", func(n *node) { n.book.Contradictions = []string{"10.1.5.2 is leased and free at once"} },
			[]string{"C101 10.1.5.2 is leased and free at once"}},
		{"sandbox and namespace are gone", func(n *node) { n.dropSandbox("web"); n.dropNamespace("/var/run/netns/web") },
			[]string{"C201 10.1.5.2 is leased to pod default/web, which is gone"}},
		{"endpoint and namespace are gone", func(n *node) {
			n.world.Engine.Networks[2].Endpoints = nil
			n.dropNamespace("/var/run/docker/netns/db")
		}, []string{"C201 172.20.0.2 is leased to container mac-db, which is gone"}},
		{"an address was added by hand", func(n *node) { addLink(n.namespace("/var/run/docker/netns/db"), "x0", "", "10.1.5.77/24") },
			[]string{`C202 10.1.5.77 of pool "default" is in use without a lease: link x0 of network namespace /var/run/docker/netns/db`}},
		{"an address was added to a pod by hand", func(n *node) { addLink(n.namespace("/var/run/netns/web"), "x0", "", "10.1.5.77/24") },
			[]string{`C202 10.1.5.77 of pool "default" is in use without a lease: link x0 of network namespace /var/run/netns/web`}},
		{"an address in use is quarantined", func(n *node) {
			addLink(n.namespace("/var/run/docker/netns/db"), "x0", "", "10.1.5.77/24")
			n.lease(ledger.Lease{Addr: addr("10.1.5.77"), Block: prefix("10.1.5.0/24"), Pool: "default", State: ledger.Quarantined})
		}, []string{`C202 10.1.5.77 of pool "default" is in use without a lease: link x0 of network namespace /var/run/docker/netns/db (it is quarantined: no pod gets it)`}},
		{"an address in use is quarantined while the witnesses are read", func(n *node) {
			addLink(n.namespace("/var/run/docker/netns/db"), "x0", "", "10.1.5.77/24")
			n.lease(ledger.Lease{Addr: addr("10.1.5.77"), Block: prefix("10.1.5.0/24"), Pool: "default", State: ledger.Quarantined})
			n.book.Changing = map[netip.Addr]bool{addr("10.1.5.77"): true}
		}, []string{`C202 10.1.5.77 of pool "default" is in use without a lease: link x0 of network namespace /var/run/docker/netns/db (it is quarantined: no pod gets it)`}},
		{"an address is at the engine only", func(n *node) {
			e := &n.world.Engine.Networks[2].Endpoints
			*e = append(*e, witness.EngineEndpoint{Name: "far", Addrs: []netip.Addr{addr("172.20.0.9")}})
		}, []string{`C202 172.20.0.9 of pool "docker/LocalDefault/172.20.0.0/24" is in use without a lease: network blue uses 172.20.0.9: container far`}},
		{"an auxiliary address has no lease", func(n *node) {
			n.world.Engine.Networks[2].Pools[0].Aux = map[string]netip.Addr{"router": addr("172.20.0.254")}
		}, []string{`C202 172.20.0.254 of pool "docker/LocalDefault/172.20.0.0/24" is in use without a lease: network blue uses 172.20.0.254: auxiliary address router`}},
		{"a pod has an address of another node", func(n *node) { addLink(n.namespace("/var/run/netns/web"), "x0", "", "10.1.7.9/24") },
			[]string{`C203 10.1.7.9 of pool "default" is in no block of this node, and is on link x0 of network namespace /var/run/netns/web`}},
		{"two namespaces have one address", func(n *node) { addLink(n.namespace("/var/run/netns/api"), "x0", "", "10.1.5.2/24") },
			[]string{"C204 2 network namespaces have 10.1.5.2, which is leased to pod default/web"}},
		{"a pod has the gateway's address", func(n *node) { addLink(n.namespace("/var/run/netns/api"), "x0", "", "10.1.5.1/24") },
			[]string{"C204 2 network namespaces have 10.1.5.1, which belongs to this node"}},
		{"the address has moved to another namespace", func(n *node) {
			n.namespace("/var/run/netns/web").Links[1].Addrs = nil
			addLink(n.namespace("/var/run/netns/api"), "x0", "", "10.1.5.2/24")
		}, []string{"C205 10.1.5.2 is leased to pod default/web with network namespace /var/run/netns/web, and is on link x0 of network namespace /var/run/netns/api"}},
		{"the sandbox is gone and a process keeps its address", func(n *node) {
			n.dropSandbox("web")
			n.namespace("/var/run/netns/web").Paths = []string{"/proc/4711/ns/net"}
		}, []string{"C205 10.1.5.2 is leased to pod default/web, whose sandbox and network namespace are gone, and is on link eth0 of network namespace /proc/4711/ns/net"}},
		{"the sandbox is gone and a process keeps one of two addresses of the claim", func(n *node) {
			n.dropSandbox("web")
			n.namespace("/var/run/netns/web").Paths = []string{"/proc/4711/ns/net"}
			four := n.leaseOf("10.1.5.2")
			four.NetNSID = kv.NetNSID{}
			six := *four
			six.Addr, six.Block = addr("fd00:1:0:5::2"), prefix("fd00:1:0:5::/64")
			n.book.Leases = append(n.book.Leases, six)
		}, []string{"C205 10.1.5.2 is leased to pod default/web, whose sandbox and network namespace are gone, and is on link eth0 of network namespace /proc/4711/ns/net"}},
		{"the sandbox lives and its address is gone", func(n *node) { n.namespace("/var/run/netns/web").Links[1].Addrs = nil },
			[]string{"C206 10.1.5.2 is leased to pod default/web and is on no link"}},
		{"a lease has not recorded its namespace", func(n *node) {
			i := slices.IndexFunc(n.book.Leases, func(l ledger.Lease) bool { return l.Addr == addr("10.1.5.2") })
			n.book.Leases[i].NetNSID.Cookie = 0
		}, []string{"C213 whether /var/run/netns/web is still the network namespace of the pod of 10.1.5.2 cannot be told"}},
		{"the endpoint is gone and a process keeps its address", func(n *node) { n.world.Engine.Networks[2].Endpoints = nil },
			[]string{"C205 172.20.0.2 is leased to container mac-db, which the engine does not have any more, and is on link eth0 of network namespace /var/run/docker/netns/db"}},
		{"the container runs and its address is gone", func(n *node) { n.namespace("/var/run/docker/netns/db").Links[1].Addrs = nil },
			[]string{"C206 172.20.0.2 is leased to container mac-db and is on no link"}},
		{"the namespace is gone and there is no runtime", func(n *node) {
			n.without(witness.Runtime, witness.NotApplicable)
			n.dropNamespace("/var/run/netns/web")
		}, []string{"C206 10.1.5.2 is leased to pod default/web and is on no link"}},
		{"a pod has no lease", func(n *node) { n.dropLease("10.1.5.2") },
			[]string{`C207 pod default/web uses 10.1.5.2 of pool "default" without a lease`}},
		{"a pod has no lease and only the cluster knows it", func(n *node) { n.dropLease("10.1.5.2"); n.dropSandbox("web") },
			[]string{`C207 pod default/web uses 10.1.5.2 of pool "default" without a lease`}},
		{"a quarantine has no reason any more", func(n *node) {
			n.lease(ledger.Lease{Addr: addr("10.1.5.77"), Block: prefix("10.1.5.0/24"), Pool: "default", State: ledger.Quarantined, Reason: "x"})
		}, []string{`C208 10.1.5.77 of pool "default" is quarantined (x), and no witness shows a use of it`}},
		{"the cluster has no pod and the runtime is silent", func(n *node) {
			n.without(witness.Runtime, witness.Missing)
			n.dropNamespace("/var/run/netns/web")
			n.world.Cluster.Pods = n.world.Cluster.Pods[1:]
		}, []string{
			"C209 10.1.5.2 is leased to pod default/web, which the cluster does not have any more",
			"C210 the runtime is needed for the leases of pods and cannot be asked: no socket",
		}},
		{"the cluster has another pod of the name", func(n *node) {
			n.without(witness.Runtime, witness.NotApplicable)
			n.dropNamespace("/var/run/netns/web")
			n.world.Cluster.Pods[0].UID = "uid-new"
		}, []string{"C209 10.1.5.2 is leased to pod default/web, which the cluster does not have any more"}},
		{"a static pod has another UID in the cluster", func(n *node) {
			n.without(witness.Runtime, witness.NotApplicable)
			n.dropNamespace("/var/run/netns/web")
			i := slices.IndexFunc(n.book.Leases, func(l ledger.Lease) bool { return l.Addr == addr("10.1.5.2") })
			n.book.Leases[i].Pod.UID = "5a6e1fbc6f2f1a4d7e8c9b0a1d2e3f40"
		}, []string{"C206 10.1.5.2 is leased to pod default/web and is on no link"}},
		{"the kernel is missing", func(n *node) { n.without(witness.Kernel, witness.Missing) },
			[]string{"C210 the kernel is needed to find the addresses of 2 blocks and cannot be asked: no socket"}},
		{"the kernel has no reader", func(n *node) { n.without(witness.Kernel, witness.NotApplicable) },
			[]string{"C210 the kernel is needed to find the addresses of 2 blocks and cannot be asked: no socket"}},
		{"the kernel does not see everything", func(n *node) { n.world.Kernel.Hidden = "/proc/7/ns/net: permission denied" },
			[]string{"C210 the kernel is needed to find the addresses of 2 blocks and cannot be asked: it does not see all network namespaces: /proc/7/ns/net: permission denied"}},
		{"the runtime is missing", func(n *node) { n.without(witness.Runtime, witness.Missing) },
			[]string{"C210 the runtime is needed for the leases of pods and cannot be asked: no socket"}},
		{"the engine is missing", func(n *node) { n.without(witness.Engine, witness.Missing) },
			[]string{"C210 the engine is needed for the pools of Docker and cannot be asked: no socket"}},
		{"a process has addresses of others, and nothing leads to it", func(n *node) {
			stray := witness.Namespace{NSID: 99, Paths: []string{"/proc/4711/ns/net"}}
			for _, a := range []string{"10.1.5.78/32", "10.1.5.77/24", "10.1.5.2/24", "10.1.5.1/24", "172.20.0.2/24"} {
				addLink(&stray, "x0", "", a)
			}
			n.world.Kernel.Namespaces = append(n.world.Kernel.Namespaces, stray)
		}, []string{"C212 network namespace /proc/4711/ns/net has 5 addresses, such as 10.1.5.1, which are not its own and do not answer there"}},
		{"a pod has addresses that are not its own", func(n *node) {
			ns := n.namespace("/var/run/netns/web")
			host := link(n.host(), fmt.Sprintf("veth%d", ns.NSID))
			host.Master, ns.Links[1].Addrs = 0, []netip.Prefix{prefix("10.1.5.2/32")}
			n.host().Routes = append(n.host().Routes, witness.Route{Dst: prefix("10.1.5.2/32"), Link: host.Index})
			addLink(ns, "x0", "dummy", "10.1.5.3/32")
			addLink(ns, "x1", "dummy", "10.1.5.79/24")
			n.world.Runtime.Sandboxes[0].NetNS = "" // the lease names the pod
		}, []string{"C212 pod default/web has 2 addresses, such as 10.1.5.3, which are not its own and do not answer there"}},
		{"the host has an address of the block", func(n *node) { addLink(n.host(), "x0", "dummy", "10.1.5.9/32") },
			[]string{`C211 10.1.5.9 of pool "default" is on link x0 of the host and has no lease`}},
	}
}

// networkDifferences are the findings of routes, links and pools.
func networkDifferences() []difference {
	return []difference{
		{"a pod has no default route", func(n *node) { ns := n.namespace("/var/run/netns/web"); ns.Routes = ns.Routes[:1] },
			[]string{"C301 pod default/web has no default route of ipv4"}},
		{"the bridge has no gateway", func(n *node) { link(n.host(), "cni10").Addrs = nil },
			[]string{"C302 no link of the host has 10.1.5.1, the gateway of the pods on cni10"}},
		{"a route takes the block", func(n *node) { n.addRoute("10.1.5.0/24", "", "tun0", "tun") },
			[]string{"C303 route 10.1.5.0/24 dev tun0 of the host leads addresses of the block away from its pods (10.1.5.0/24)"}},
		{"a route takes a part of the block", func(n *node) { n.addRoute("10.1.5.128/25", "192.168.16.9", "eth1", "") },
			[]string{"C303 route 10.1.5.128/25 via 192.168.16.9 dev eth1 of the host leads addresses of the block away from its pods (10.1.5.0/24)"}},
		{"a VPN contains the block", func(n *node) { n.addRoute("10.0.0.0/8", "", "wg0", "wireguard") },
			[]string{"C304 route 10.0.0.0/8 dev wg0 of the host contains the block: a network behind a tunnel has the same addresses (10.1.5.0/24)"}},
		{"the bridge is gone and another route takes its packets", func(n *node) {
			n.addRoute("10.0.0.0/8", "192.168.16.9", "eth1", "")
			n.host().Routes = slices.DeleteFunc(n.host().Routes, func(r witness.Route) bool { return r.Dst == prefix("10.1.5.0/24") })
		}, []string{"C304 route 10.0.0.0/8 via 192.168.16.9 dev eth1 of the host is the one that packets to the block's pods take (10.1.5.0/24)"}},
		{"the LAN contains the block", func(n *node) { addLink(n.host(), "eth1", "", "10.1.0.5/16") },
			[]string{`C305 link eth1 of the host has 10.1.0.5/16, whose network contains block 10.1.5.0/24 of pool "default"`}},
		{"pools overlap", func(n *node) {
			n.book.Pools = append(n.book.Pools, pool("blue", "10.1.128.0/17"))
		}, []string{`C401 pool "blue" (10.1.128.0/17) overlaps pool "default" (10.1.0.0/16)`}},
		{"a Docker network of another driver overlaps", func(n *node) { n.world.Engine.Networks[0].Pools[0].Subnet = prefix("10.1.9.0/24") },
			[]string{`C402 Docker network bridge (10.1.9.0/24, IPAM driver default) overlaps pool "default" (10.1.0.0/16)`}},
		{"a Docker network is unknown to the driver", func(n *node) {
			n.world.Engine.Networks = append(n.world.Engine.Networks, witness.EngineNetwork{
				Name: "red", IPAMDriver: driver, Pools: []witness.EnginePool{{Subnet: prefix("172.21.0.0/24")}},
			})
		}, []string{"C403 Docker network red has subnet 172.21.0.0/24, and the driver has no pool of it"}},
		{"a pool has no Docker network", func(n *node) {
			n.book.Docker = append(n.book.Docker, dockerPool("172.22.0.0/24", false))
		}, []string{"C404 no network of Docker uses pool LocalDefault/172.22.0.0/24"}},
		{"the ledger lacks a block", func(n *node) { n.book.Subnets = append(n.book.Subnets, subnet("default", "10.2.5.0/24")) },
			[]string{`C405 this node should have 10.2.5.0/24 of pool "default", and the ledger has no active block of it`}},
		{"the ledger has another block", func(n *node) {
			n.book.Blocks = append(n.book.Blocks, ledger.BlockStat{Pool: "default", Block: prefix("10.1.6.0/24")})
		}, []string{`C405 the ledger has active block 10.1.6.0/24 of pool "default", which this node should not have`}},
		{"the bridge has another length", func(n *node) { link(n.host(), "cni10").Addrs[0] = prefix("10.1.5.1/16") },
			[]string{"C405 link cni10 of the host has 10.1.5.1/16, and the block of the pods is 10.1.5.0/24"}},
		{"contiv.conf differs", func(n *node) { n.book.Differs = "contiv.conf has podSubnetCIDR 10.9.0.0/16" },
			[]string{"C406 contiv.conf has podSubnetCIDR 10.9.0.0/16"}},
		{"the cloud lacks a block", func(n *node) { n.book.Cloud = cloudWith("") },
			[]string{"C407 block 10.1.5.0/24 of interface eni-1 is on no interface of machine i-1 in the cloud"}},
		{"the cloud has a block on another interface", func(n *node) { n.book.Cloud = cloudWith("eni-2") },
			[]string{"C408 block 10.1.5.0/24 of interface eni-1 is on interface eni-2 in the cloud"}},
	}
}

// neighbours are healthy nodes that resemble one with a finding.
func neighbours() []difference {
	return []difference{
		{"nothing", func(*node) {}, nil},
		{"the cloud has the block", func(n *node) { n.book.Cloud = cloudWith("eni-1") }, nil},
		{"no pods yet", func(n *node) { *n = *emptyNode() }, nil},
		{"IPv6", func(n *node) {
			n.addBlock("default", "fd00:1:0:5::/64", "fd00:1:0:5::1", 11)
			n.addPod("six", "default", "fd00:1:0:5::/64", "fd00:1:0:5::2", "fd00:1:0:5::1", 11)
		}, nil},
		{"a young lease is on no link yet", func(n *node) {
			n.namespace("/var/run/netns/web").Links[1].Addrs = nil
			n.leaseOf("10.1.5.2").Since = now().Add(-time.Second)
		}, nil},
		{"a lease changes while the witnesses are read", func(n *node) {
			n.dropLease("10.1.5.2")
			n.book.Changing = map[netip.Addr]bool{addr("10.1.5.2"): true}
		}, nil},
		{"a lease is confirmed while the witnesses are read", func(n *node) {
			n.namespace("/var/run/netns/web").Links[1].Addrs = nil
			n.book.Changing = map[netip.Addr]bool{addr("10.1.5.2"): true}
		}, nil},
		{"DEL has released the address and the link still stands", func(n *node) {
			l := n.leaseOf("10.1.5.2")
			l.State, l.Since = ledger.Cooling, now().Add(-time.Second)
		}, nil},
		{"a pod has a lease whose block is released", func(n *node) {
			n.addPod("far", "default", "10.1.7.0/24", "10.1.7.9", "10.1.5.1", 10)
		}, nil},
		{"a reclaim is pending", func(n *node) {
			n.dropSandbox("web")
			n.dropNamespace("/var/run/netns/web")
			n.leaseOf("10.1.5.2").State = ledger.Pending
		}, nil},
		{"the kubelet ends a sandbox", func(n *node) { n.sandbox("web").Ready = false; n.dropNamespace("/var/run/netns/web") }, nil},
		{"a lease of the Go API", func(n *node) {
			n.lease(ledger.Lease{Addr: addr("10.1.5.90"), Block: prefix("10.1.5.0/24"), Pool: "default", Key: ledger.Key{Network: ledger.APINetwork, ContainerID: "pod:default/x", IfName: "eth0"}})
		}, nil},
		{"pods of another CNI", func(n *node) {
			n.addPod("other", "default", "10.244.1.0/24", "10.244.1.7", "", 0)
			n.dropLease("10.244.1.7")
		}, nil},
		{"a pod on the host's network", func(n *node) {
			n.world.Runtime.Sandboxes = append(n.world.Runtime.Sandboxes, witness.Sandbox{ID: "h", Name: "h", Ready: true, HostNet: true, Addrs: []netip.Addr{addr("192.168.16.5")}, NetNS: "/proc/1/ns/net"})
		}, nil},
		{"the cluster keeps the address of a pod that ends", func(n *node) {
			n.dropLease("10.1.5.2")
			n.dropSandbox("web")
			n.dropNamespace("/var/run/netns/web")
		}, nil},
		{"an excluded address is in use", func(n *node) {
			addLink(n.host(), "x0", "dummy", "10.1.5.9/32")
			n.book.Exclusions = []ledger.Exclusion{{Pool: "default", Addr: addr("10.1.5.9")}}
		}, nil},
		{"a stopped container keeps its fixed address", func(n *node) {
			n.world.Engine.Networks[2].Endpoints = nil
			n.dropNamespace("/var/run/docker/netns/db")
			n.world.Engine.Containers[0] = witness.EngineContainer{ID: "c-db", Name: "db", Fixed: map[string][]netip.Addr{"n-blue": {addr("172.20.0.2")}}}
		}, nil},
		{"a quarantined address without all witnesses", func(n *node) {
			n.lease(ledger.Lease{Addr: addr("10.1.5.77"), Pool: "default", State: ledger.Quarantined, Since: now()})
			n.leaseOf("10.1.5.77").Since = now()
		}, nil},
		{"the runtime does not apply", func(n *node) { n.without(witness.Runtime, witness.NotApplicable) }, nil},
		{"the cluster is missing", func(n *node) { n.without(witness.Cluster, witness.Missing) }, nil},
		{"neither Docker nor pods", func(n *node) {
			*n = *emptyNode()
			n.without(witness.Engine, witness.Missing)
			n.without(witness.Runtime, witness.Missing)
		}, nil},
	}
}

// networkNeighbours are healthy networks that resemble one with a finding.
func networkNeighbours() []difference {
	return []difference{
		{"a network without default routes", func(n *node) {
			for _, path := range []string{"/var/run/netns/web", "/var/run/netns/api"} {
				n.namespace(path).Routes = n.namespace(path).Routes[:1]
			}
		}, nil},
		{"the routes of a pod are hidden", func(n *node) {
			ns := n.namespace("/var/run/netns/web")
			ns.Routes, ns.RoutesHidden = nil, true
		}, nil},
		{"the default route is on another link", func(n *node) {
			ns := n.namespace("/var/run/netns/web")
			ns.Routes[1].Link, ns.Routes[1].Gateway = 9, addr("192.168.1.1")
		}, nil},
		{"a VPN takes everything", func(n *node) {
			n.addRoute("0.0.0.0/1", "10.8.0.1", "tun0", "tun")
			n.addRoute("128.0.0.0/1", "10.8.0.1", "tun0", "tun")
			addLink(n.host(), "tun0", "tun", "10.8.0.2/24")
		}, nil},
		{"a VPN inside a pod", func(n *node) {
			ns := n.namespace("/var/run/netns/web")
			ns.Routes[1].Dst = prefix("0.0.0.0/1")
			ns.Routes = append(ns.Routes, witness.Route{Dst: prefix("128.0.0.0/1"), Gateway: addr("10.1.5.1"), Link: 2})
		}, nil},
		{"the company's network has a route", func(n *node) { n.addRoute("10.0.0.0/8", "192.168.16.9", "eth1", "") }, nil},
		{"pods of all nodes are behind a tunnel that was configured so", func(n *node) { n.addRoute("10.1.0.0/16", "", "wg0", "wireguard") }, nil},
		{"routes to other nodes", func(n *node) { n.addRoute("10.1.7.0/24", "192.168.16.7", "eth0", "") }, nil},
		{"a bridge with an uplink: the gateway is a router", func(n *node) {
			link(n.host(), "cni10").Addrs = nil
			n.host().Links = append(n.host().Links, witness.Link{Index: 60, Name: "eth1", Master: 10})
			n.host().Routes = slices.DeleteFunc(n.host().Routes, func(r witness.Route) bool { return r.Link == 10 })
		}, nil},
		{"the ptp plugin", func(n *node) {
			n.host().Routes = slices.DeleteFunc(n.host().Routes, func(r witness.Route) bool { return r.Link == 10 })
			n.host().Links = slices.DeleteFunc(n.host().Links, func(l witness.Link) bool { return l.Index == 10 })
			for i := range n.host().Links {
				if l := &n.host().Links[i]; l.Kind == "veth" && l.Master == 10 {
					l.Master, l.Addrs = 0, []netip.Prefix{prefix("10.1.5.1/32")}
					n.host().Routes = append(n.host().Routes, witness.Route{Dst: netip.PrefixFrom(addr("10.1.5.2"), 32), Link: l.Index})
				}
			}
		}, nil},
		{"the ptp plugin attaches a young pod", func(n *node) {
			n.host().Links = append(n.host().Links, witness.Link{Index: 90, Name: "veth90", Kind: "veth", Peer: 2})
			n.host().Routes = append(n.host().Routes, witness.Route{Dst: prefix("10.1.5.60/32"), Link: 90})
			n.lease(ledger.Lease{Addr: addr("10.1.5.60"), Block: prefix("10.1.5.0/24"), Pool: "default", Key: ledger.Key{ContainerID: "new"}}).Since = now()
		}, nil},
		{"pods on macvlan share the LAN", func(n *node) {
			addLink(n.host(), "eth1", "", "10.1.0.5/16")
			for _, path := range []string{"/var/run/netns/web", "/var/run/netns/api"} {
				l := &n.namespace(path).Links[1]
				l.Kind, l.Peer = "macvlan", 0
			}
		}, nil},
		{"the cloud assigns blocks of the LAN", func(n *node) {
			n.book.Private = false
			addLink(n.host(), "eth1", "", "10.1.0.5/16")
		}, nil},
		{"a pool of Docker is a part of the pod network", func(n *node) {
			d := dockerPool("10.1.5.16/28", false)
			d.FromPods = true
			n.book.Docker = append(n.book.Docker, d)
			n.world.Engine.Networks = append(n.world.Engine.Networks, witness.EngineNetwork{
				Name: "pods", IPAMDriver: driver, Pools: []witness.EnginePool{{Subnet: prefix("10.1.5.16/28")}},
			})
		}, nil},
		{"another node uses a global pool", func(n *node) { n.book.Docker = append(n.book.Docker, dockerPool("172.22.0.0/24", true)) }, nil},
		{"the blocks are not known yet", func(n *node) { n.book.Subnets = nil }, nil},
		{"a block drains", func(n *node) {
			n.book.Blocks = append(n.book.Blocks, ledger.BlockStat{Pool: "default", Block: prefix("10.1.6.0/24"), State: ledger.Draining})
		}, nil},
		{"a peer's index is that of another link of the host", func(n *node) {
			link(n.host(), "cni10").Addrs = nil
			for i := range n.host().Links {
				n.host().Links[i].Peer = 0
			}
			n.host().Routes = slices.DeleteFunc(n.host().Routes, func(r witness.Route) bool { return r.Link == 10 })
		}, nil},
	}
}

func TestEachDifferenceIsOneFinding(t *testing.T) {
	for _, d := range slices.Concat(differences(), networkDifferences(), neighbours(), networkNeighbours()) {
		t.Run(d.name, func(t *testing.T) {
			g := NewWithT(t)
			n := healthyNode()
			d.change(n)
			got := []string{}
			for _, f := range n.compare() {
				got = append(got, f.Number+" "+f.Text)
				g.Expect(f.Evidence).NotTo(BeEmpty())
				g.Expect(f.Fix).NotTo(BeEmpty())
				g.Expect(f.Signature).To(HaveLen(16))
				g.Expect(f.Subject.Node).To(Equal("node-5"))
			}
			g.Expect(got).To(Equal(append([]string{}, d.want...)))
		})
	}
}

func TestFindingsAreSorted(t *testing.T) {
	g := NewWithT(t)
	n := healthyNode()
	n.namespace("/var/run/netns/web").Links[1].Addrs = nil
	addLink(n.namespace("/var/run/docker/netns/db"), "x0", "", "10.1.5.78/24")
	addLink(n.namespace("/var/run/docker/netns/db"), "x1", "", "10.1.5.77/24")
	n.book.Differs = "x"
	n.book.Docker = append(n.book.Docker, dockerPool("172.22.0.0/24", false))
	var got []string
	for _, f := range n.compare() {
		got = append(got, f.Number+" "+f.Subject.Addr.String())
	}
	g.Expect(got).To(Equal([]string{"C202 10.1.5.77", "C202 10.1.5.78", "C206 10.1.5.2", "C404 invalid IP", "C406 invalid IP"}))
}
