// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net/netip"
	"time"
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

// NamespaceID identifies a network namespace by its device and inode numbers. The
// kernel reuses an inode number after the namespace has ended.
type NamespaceID struct{ Dev, Inode uint64 }

// Namespace holds one network namespace.
type Namespace struct {
	// ID is zero if only the host's links lead to the namespace: then NSID names it.
	ID    NamespaceID
	NSID  int      // the ID in the host's namespace, as "ip netns list-id" shows it; -1: none
	Host  bool     // the namespace of the host
	Paths []string // its files, sorted: bind mounts, and /proc/PID/ns/net of its first process
	Links []Link
	// RoutesHidden means that the reader may not read the routes: Routes is empty and
	// proves nothing.
	RoutesHidden bool
	Routes       []Route
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
	Master int // index of the bridge; 0: none
	Addrs  []netip.Prefix
}

// Route holds a unicast route of the main table.
type Route struct {
	Dst     netip.Prefix // 0.0.0.0/0 and ::/0: default
	Gateway netip.Addr   // the zero Addr: on the link
	Link    int
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
