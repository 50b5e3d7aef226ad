// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

// KernelView holds the network namespaces of this node.
type KernelView struct {
	Taken      time.Time
	Namespaces []Namespace // the host's first
	// Hidden says which namespaces the reader could not see or enter, "" if it saw all.
	// With Hidden the absence of an address proves nothing.
	Hidden string
	// Limits says which namespaces the reader cannot know of, "" for none beyond those
	// that the comment of package witness/kernel names.
	Limits string
}

// Report describes the view.
func (v *KernelView) Report() Report {
	limits := cmp.Or(v.Hidden, v.Limits)
	return Report{Name: Kernel, Read: v.Taken, Source: "netlink", Limits: limits, Objects: len(v.Namespaces)}
}

// NamespaceID identifies a network namespace by its device and inode numbers. The
// kernel reuses an inode number after the namespace has ended.
type NamespaceID struct{ Dev, Inode uint64 }

// Namespace holds one network namespace.
type Namespace struct {
	// ID is zero if only the host's links lead to the namespace: then NSID names it.
	ID NamespaceID
	// Cookie is a number that the kernel gives to no other namespace until the next boot,
	// 0 if the reader may not enter the namespace, and before Linux 5.14.
	Cookie uint64
	NSID   int  // the ID in the host's namespace, as "ip netns list-id" shows it; -1: none
	Host   bool // the namespace of the host
	// Counts says that the namespace has to do with this node. It is the host's, a link leads
	// from it to the host's, or a lease, the runtime, Docker's sandbox folder or libcni's
	// cache names it. Any user of the node can make others.
	Counts bool
	Paths  []string // its files, sorted: bind mounts, and /proc/PID/ns/net of its first process
	Links  []Link
	// RoutesHidden means that the reader may not read the routes: Routes is empty and
	// proves nothing.
	RoutesHidden bool
	Routes       []Route     // of the main table
	OtherRoutes  []Route     // of further tables, of the host only
	Neighbours   []Neighbour // of the host only
}

// Link holds a network interface and its addresses.
type Link struct {
	Index  int
	Name   string
	Kind   string // as "ip -d link" shows it, such as veth, bridge, vxlan; "" for a device
	MAC    string
	Up     bool
	Peer   int // index of the other end of a veth, in its namespace; 0: none
	Lower  int // index of the link below, such as that of a macvlan, in its namespace; 0: none
	Master int // index of the bridge; 0: none
	// Away says that Peer or Lower is in another namespace, which has the ID NSID in the host's.
	Away     bool
	NSID     int
	Loopback bool
	Addrs    []netip.Prefix
}

// Route holds a unicast route.
type Route struct {
	Dst     netip.Prefix // 0.0.0.0/0 and ::/0: default
	Gateway netip.Addr   // the zero Addr: on the link
	Link    int
	Table   uint32 // 0: the main one
}

// Neighbour holds an entry of the ARP or ND cache.
type Neighbour struct {
	Addr  netip.Addr
	MAC   string
	Link  int
	State string // as "ip neigh" shows it, such as REACHABLE
}

// Place is a link of a namespace that has an address.
type Place struct {
	Namespace *Namespace
	Link      *Link
}

func (p Place) String() string { return "link " + p.Link.Name + " of " + p.Namespace.String() }

// Find returns the links that have an address, in the order of the namespaces.
func (v *KernelView) Find(a netip.Addr) (places []Place) {
	for i := range v.Namespaces {
		ns := &v.Namespaces[i]
		for j := range ns.Links {
			for _, p := range ns.Links[j].Addrs {
				if p.Addr() == a {
					places = append(places, Place{ns, &ns.Links[j]})
				}
			}
		}
	}
	return places
}

// Identity returns the identity of the namespace in a boot. It is not known if only the
// host's links lead to the namespace.
func (n *Namespace) Identity(boot string) kv.NetNSID {
	return kv.NetNSID{Boot: boot, Dev: n.ID.Dev, Inode: n.ID.Inode, Cookie: n.Cookie}
}

// At returns the namespace that a file names, nil if there is none.
func (v *KernelView) At(path string) *Namespace {
	for i := range v.Namespaces {
		for _, p := range v.Namespaces[i].Paths {
			if p == path {
				return &v.Namespaces[i]
			}
		}
	}
	return nil
}
