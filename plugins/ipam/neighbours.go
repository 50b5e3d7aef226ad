// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/gaissmai/bart"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// neighbours indexes the pod subnets and the held claims of all nodes by prefix, so that
// the cost of one node's change does not depend on the number of nodes. Each resync makes
// a new one. The loop changes it; any goroutine may read it.
type neighbours struct {
	mu      sync.RWMutex
	nodes   map[string]*nodesync.Node
	byID    map[uint32][]string // names in order: an ID may change hands before its former holder is gone
	claims  byPrefix
	subnets byPrefix
}

func newNeighbours(nodes nodesync.Nodes) *neighbours {
	h := &neighbours{nodes: make(map[string]*nodesync.Node, len(nodes)), byID: make(map[uint32][]string, len(nodes))}
	for name, n := range nodes {
		h.set(name, n)
	}
	return h
}

// set replaces a node; nil removes it.
func (h *neighbours) set(name string, n *nodesync.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was := h.nodes[name]; was != nil {
		h.claims.remove(name, was.Claims)
		h.subnets.remove(name, was.PodCIDRs)
		h.removeID(name, was.ID)
		delete(h.nodes, name)
	}
	if n == nil {
		return
	}
	h.nodes[name] = n
	h.claims.add(name, n.Claims)
	h.subnets.add(name, n.PodCIDRs)
	if names := h.byID[n.ID]; n.ID != 0 {
		at, _ := slices.BinarySearch(names, name)
		h.byID[n.ID] = slices.Insert(names, at, name)
	}
}

func (h *neighbours) removeID(name string, id uint32) {
	names := h.byID[id]
	at, found := slices.BinarySearch(names, name)
	if !found {
		return
	}
	if h.byID[id] = slices.Delete(names, at, at+1); len(names) == 1 {
		delete(h.byID, id)
	}
}

// subnetsOf returns the pod subnets of a node that do not overlap a claim of another one.
func (h *neighbours) subnetsOf(n *nodesync.Node) []netip.Prefix {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.free(n)
}

// subnetsOfID is subnetsOf for the node of an ID, the first by name if there are several.
func (h *neighbours) subnetsOfID(id uint32) []netip.Prefix {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if names := h.byID[id]; len(names) > 0 {
		return h.free(h.nodes[names[0]])
	}
	return nil
}

func (h *neighbours) free(n *nodesync.Node) (rest []netip.Prefix) {
	for _, p := range n.PodCIDRs {
		if !h.claims.overlapsOther(p, n.Name) {
			rest = append(rest, p)
		}
	}
	return rest
}

// within returns the names of the nodes that have a pod subnet which overlaps one of
// prefixes, in order.
func (h *neighbours) within(prefixes []netip.Prefix) []string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	found := map[string]bool{}
	for _, p := range prefixes {
		for name := range h.subnets.overlapping(p) {
			found[name] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// byPrefix holds the names of nodes by prefix. The zero value is empty.
type byPrefix struct{ table bart.Table[[]string] }

func (b *byPrefix) add(name string, prefixes []netip.Prefix) {
	for _, p := range prefixes {
		b.table.Modify(p.Masked(), func(names []string, _ bool) ([]string, bool) {
			return append(names, name), false
		})
	}
}

func (b *byPrefix) remove(name string, prefixes []netip.Prefix) {
	for _, p := range prefixes {
		b.table.Modify(p.Masked(), func(names []string, _ bool) ([]string, bool) {
			names = slices.DeleteFunc(names, func(n string) bool { return n == name })
			return names, len(names) == 0
		})
	}
}

// overlapping yields the names of each prefix that contains p, and of each that lies in it.
func (b *byPrefix) overlapping(p netip.Prefix) func(yield func(name string) bool) {
	return func(yield func(string) bool) {
		for _, names := range b.table.Supernets(p) {
			for _, name := range names {
				if !yield(name) {
					return
				}
			}
		}
		for inner, names := range b.table.Subnets(p) {
			if inner.Bits() == p.Bits() {
				continue // Supernets has yielded it
			}
			for _, name := range names {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// overlapsOther reports whether a node other than name has a prefix that overlaps p. A
// node may hold claims within each other.
func (b *byPrefix) overlapsOther(p netip.Prefix, name string) bool {
	for other := range b.overlapping(p) {
		if other != name {
			return true
		}
	}
	return false
}
