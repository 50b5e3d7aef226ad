// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// now is the time of the comparison.
func now() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }

const driver = "cadastre"

// node is one node: what the agent has written down, and the world.
type node struct {
	book  findings.Book
	world witness.World
}

// emptyNode returns a node with one block of pods, a bridge with the gateway, and all
// witnesses.
func emptyNode() *node {
	n := &node{
		book: findings.Book{
			Node:    "node-5",
			Now:     now(),
			Grace:   time.Minute,
			Pools:   []findings.Pool{{Name: "default", Network: "default", Ranges: []netip.Prefix{prefix("10.1.0.0/16"), prefix("fd00:1::/48")}}},
			Private: true,
		},
		world: witness.World{
			Driver: driver,
			BootID: "b",
			Kernel: &witness.KernelView{Namespaces: []witness.Namespace{{
				ID:     witness.NamespaceID{Dev: 4, Inode: 1},
				Host:   true,
				Counts: true,
				Paths:  []string{"/proc/1/ns/net"},
				Links:  []witness.Link{{Index: 1, Name: "lo", Loopback: true, Addrs: []netip.Prefix{prefix("127.0.0.1/8")}}, {Index: 2, Name: "eth0", Addrs: []netip.Prefix{prefix("192.168.16.5/24")}}},
				Routes: []witness.Route{{Dst: prefix("0.0.0.0/0"), Gateway: addr("192.168.16.254"), Link: 2}, {Dst: prefix("192.168.16.0/24"), Link: 2}},
			}}},
			Runtime: &witness.RuntimeView{Name: "containerd", Version: "2.1.4"},
			Engine: &witness.EngineView{Version: "28.2.2", Networks: []witness.EngineNetwork{
				{ID: "n-bridge", Name: "bridge", Driver: "bridge", IPAMDriver: "default", Pools: []witness.EnginePool{{Subnet: prefix("172.17.0.0/16"), Gateway: addr("172.17.0.1")}}},
				{ID: "n-host", Name: "host", Driver: "host", IPAMDriver: "default"},
			}},
			Cluster: &witness.ClusterView{},
		},
	}
	for _, name := range witness.Names() {
		n.world.Reports = append(n.world.Reports, witness.Report{Name: name, State: witness.Present})
	}
	n.addBlock("default", "10.1.5.0/24", "10.1.5.1", 10)
	return n
}

// healthyNode returns a node with two pods and a Docker network with a container.
func healthyNode() *node {
	n := emptyNode()
	n.addPod("web", "default", "10.1.5.0/24", "10.1.5.2", "10.1.5.1", 10)
	n.addPod("api", "default", "10.1.5.0/24", "10.1.5.3", "10.1.5.1", 10)
	n.addNetwork("blue", "172.20.0.0/24", "172.20.0.1", 30)
	n.addContainer("db", "blue", "172.20.0.0/24", "172.20.0.2", 30)
	return n
}

func (n *node) host() *witness.Namespace { return &n.world.Kernel.Namespaces[0] }

func (n *node) lease(l ledger.Lease) *ledger.Lease {
	l.Since = now().Add(-time.Hour)
	l.Generation = uint64(len(n.book.Leases) + 1)
	n.book.Leases = append(n.book.Leases, l)
	return &n.book.Leases[len(n.book.Leases)-1]
}

// addBlock adds a block of pods with its infra leases, and a bridge with the gateway.
func (n *node) addBlock(pool, block, gateway string, bridge int) {
	p := prefix(block)
	n.book.Blocks = append(n.book.Blocks, ledger.BlockStat{Pool: pool, Block: p, State: ledger.Active, Family: ledger.FamilyOf(p.Addr())})
	n.book.Subnets = append(n.book.Subnets, findings.Subnet{Pool: pool, Prefix: p})
	n.lease(ledger.Lease{Addr: addr(gateway), Block: p, Pool: pool, Purpose: ledger.ForInfra, Key: ledger.Key{IfName: "gateway"}})
	n.addBridge(fmt.Sprintf("cni%d", bridge), bridge, netip.PrefixFrom(addr(gateway), p.Bits()))
}

func (n *node) addBridge(name string, index int, p netip.Prefix) {
	n.host().Links = append(n.host().Links, witness.Link{Index: index, Name: name, Kind: "bridge", Up: true, Addrs: []netip.Prefix{p}})
	n.host().Routes = append(n.host().Routes, witness.Route{Dst: p.Masked(), Link: index})
}

// addNamespace adds a namespace with one address on a veth whose other end is on a bridge
// of the host.
func (n *node) addNamespace(path string, p netip.Prefix, gateway netip.Addr, bridge int) {
	index := 100 + len(n.world.Kernel.Namespaces)
	n.host().Links = append(n.host().Links, witness.Link{Index: index, Name: fmt.Sprintf("veth%d", index), Kind: "veth", Peer: 2, Away: true, NSID: index, Master: bridge})
	ns := witness.Namespace{
		ID:     witness.NamespaceID{Dev: 4, Inode: uint64(index)},
		NSID:   index,
		Cookie: uint64(index),
		Counts: true,
		Paths:  []string{path},
		Links: []witness.Link{
			{Index: 1, Name: "lo", Loopback: true, Addrs: []netip.Prefix{prefix("127.0.0.1/8")}},
			{Index: 2, Name: "eth0", Kind: "veth", Peer: index, Away: true, Addrs: []netip.Prefix{p}},
		},
		Routes: []witness.Route{{Dst: p.Masked(), Link: 2}},
	}
	if gateway.IsValid() {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gateway.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		ns.Routes = append(ns.Routes, witness.Route{Dst: all, Gateway: gateway, Link: 2})
	}
	n.world.Kernel.Namespaces = append(n.world.Kernel.Namespaces, ns)
}

// addPod adds a pod with a lease, a namespace, a sandbox and a Pod object.
func (n *node) addPod(name, pool, block, a, gateway string, bridge int) {
	path := "/var/run/netns/" + name
	number := uint64(100 + len(n.world.Kernel.Namespaces)) // of the namespace that follows
	n.lease(ledger.Lease{
		Addr:    addr(a),
		Block:   prefix(block),
		Pool:    pool,
		Key:     ledger.Key{Network: "pods", ContainerID: "sandbox-" + name, IfName: "eth0"},
		Pod:     ledger.Pod{Namespace: "default", Name: name, UID: "uid-" + name},
		NetNS:   path,
		NetNSID: kv.NetNSID{Boot: "b", Dev: 4, Inode: number, Cookie: number},
	})
	var gw netip.Addr
	if gateway != "" {
		gw = addr(gateway)
	}
	n.addNamespace(path, netip.PrefixFrom(addr(a), prefix(block).Bits()), gw, bridge)
	n.world.Runtime.Sandboxes = append(n.world.Runtime.Sandboxes, witness.Sandbox{
		ID: "sandbox-" + name, Namespace: "default", Name: name, UID: "uid-" + name, Ready: true, NetNS: path, Addrs: []netip.Addr{addr(a)},
	})
	n.world.Cluster.Pods = append(n.world.Cluster.Pods, witness.ClusterPod{Namespace: "default", Name: name, UID: "uid-" + name, Addrs: []netip.Addr{addr(a)}})
}

// addNetwork adds a Docker network of our driver.
func (n *node) addNetwork(name, subnet, gateway string, bridge int) {
	p, id := prefix(subnet), "LocalDefault/"+subnet
	n.book.DockerOn = true
	n.book.Docker = append(n.book.Docker, findings.DockerPool{ID: id, Prefix: p, LedgerPool: "docker/" + id})
	n.book.Blocks = append(n.book.Blocks, ledger.BlockStat{Pool: "docker/" + id, Block: p, State: ledger.Active})
	n.lease(ledger.Lease{Addr: addr(gateway), Block: p, Pool: "docker/" + id, Purpose: ledger.ForInfra, Key: ledger.Key{Network: id}})
	n.addBridge("br-"+name, bridge, netip.PrefixFrom(addr(gateway), p.Bits()))
	n.world.Engine.Networks = append(n.world.Engine.Networks, witness.EngineNetwork{
		ID: "n-" + name, Name: name, Driver: "bridge", IPAMDriver: driver,
		Pools: []witness.EnginePool{{Subnet: p, Gateway: addr(gateway)}},
	})
}

// addContainer adds a running container on a Docker network.
func (n *node) addContainer(name, network, subnet, a string, bridge int) {
	n.lease(ledger.Lease{
		Addr: addr(a), Block: prefix(subnet), Pool: "docker/LocalDefault/" + subnet, Purpose: ledger.ForDocker,
		Key: ledger.Key{Network: "LocalDefault/" + subnet, ContainerID: "mac-" + name},
	})
	n.addNamespace("/var/run/docker/netns/"+name, netip.PrefixFrom(addr(a), prefix(subnet).Bits()), netip.Addr{}, bridge)
	i := slices.IndexFunc(n.world.Engine.Networks, func(x witness.EngineNetwork) bool { return x.Name == network })
	x := &n.world.Engine.Networks[i]
	x.Endpoints = append(x.Endpoints, witness.EngineEndpoint{ID: "e-" + name, ContainerID: "c-" + name, Name: name, Addrs: []netip.Addr{addr(a)}})
	n.world.Engine.Containers = append(n.world.Engine.Containers, witness.EngineContainer{ID: "c-" + name, Name: name, Running: true})
}

// leaseOf returns the lease of an address.
func (n *node) leaseOf(a string) *ledger.Lease {
	return &n.book.Leases[slices.IndexFunc(n.book.Leases, func(l ledger.Lease) bool { return l.Addr == addr(a) })]
}

func (n *node) dropLease(a string) {
	n.book.Leases = slices.DeleteFunc(n.book.Leases, func(l ledger.Lease) bool { return l.Addr == addr(a) })
}

// namespace returns the namespace at a path.
func (n *node) namespace(path string) *witness.Namespace { return n.world.Kernel.At(path) }

func (n *node) dropNamespace(path string) {
	k := n.world.Kernel
	k.Namespaces = slices.DeleteFunc(k.Namespaces, func(ns witness.Namespace) bool { return slices.Contains(ns.Paths, path) })
}

func (n *node) sandbox(name string) *witness.Sandbox { return n.world.Runtime.Find("sandbox-" + name) }

func (n *node) dropSandbox(name string) {
	r := n.world.Runtime
	r.Sandboxes = slices.DeleteFunc(r.Sandboxes, func(s witness.Sandbox) bool { return s.Name == name })
}

// without makes a witness missing, or not applicable.
func (n *node) without(name witness.Name, state witness.State) {
	for i := range n.world.Reports {
		if n.world.Reports[i].Name == name {
			n.world.Reports[i].State, n.world.Reports[i].Reason = state, "no socket"
		}
	}
	switch name {
	case witness.Kernel:
		n.world.Kernel = nil
	case witness.Runtime:
		n.world.Runtime = nil
	case witness.Engine:
		n.world.Engine = nil
	case witness.Cluster:
		n.world.Cluster = nil
	}
}

// addLink adds an address to a link of a namespace.
func addLink(ns *witness.Namespace, name, kind, p string) {
	ns.Links = append(ns.Links, witness.Link{Index: 50 + len(ns.Links), Name: name, Kind: kind, MAC: "02:00:00:00:00:50", Addrs: []netip.Prefix{prefix(p)}})
}

// addRoute adds a route over a new link of the host.
func (n *node) addRoute(dst, gateway, link, kind string) {
	index := 70 + len(n.host().Links)
	n.host().Links = append(n.host().Links, witness.Link{Index: index, Name: link, Kind: kind})
	r := witness.Route{Dst: prefix(dst), Link: index}
	if gateway != "" {
		r.Gateway = addr(gateway)
	}
	n.host().Routes = append(n.host().Routes, r)
}

func (n *node) compare() []findings.Finding { return findings.Compare(n.book, &n.world) }

// link returns a link by its name.
func link(ns *witness.Namespace, name string) *witness.Link {
	return &ns.Links[slices.IndexFunc(ns.Links, func(l witness.Link) bool { return l.Name == name })]
}

func pool(name, r string) findings.Pool {
	return findings.Pool{Name: name, Network: name, Ranges: []netip.Prefix{prefix(r)}}
}

func subnet(pool, p string) findings.Subnet { return findings.Subnet{Pool: pool, Prefix: prefix(p)} }

func dockerPool(p string, global bool) findings.DockerPool {
	return findings.DockerPool{ID: "LocalDefault/" + p, Prefix: prefix(p), LedgerPool: "docker/" + p, Global: global}
}

// cloudWith returns a reading of the cloud that has the block of pods on an interface.
func cloudWith(on string) *findings.Cloud {
	return &findings.Cloud{Name: "ec2", Machine: "i-1", Read: now(), Blocks: []findings.CloudBlock{
		{Pool: "default", Prefix: prefix("10.1.5.0/24"), Interface: "eni-1", On: on},
	}}
}
