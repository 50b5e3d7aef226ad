// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Claims claims blocks that do not follow from the node ID.
type Claims interface {
	// Hold requests a target and returns the state of its claim.
	Hold(claims.Target) claims.Standing
	// Want replaces the targets of a network by those that are committed.
	Want(network string, targets []claims.Target)
	// Standing returns the state of a claim without requesting it.
	Standing(claims.Target) claims.Standing
}

// ExplicitBlocks reports whether nodes have blocks that do not follow from their IDs and
// so need claims of their own. A NetResourceSet is such a claim itself.
func ExplicitBlocks(conf contivconf.API) bool {
	switch conf.PodBlocks() {
	case contivconf.PodBlocksPodCIDR, contivconf.PodBlocksStatic:
		return true
	}
	return false
}

// openHeld takes the subnets whose claims this node holds as its pod subnets, and
// records the remaining ones as waiting.
func (i *IPAM) openHeld(s *state, subnets []netip.Prefix) {
	var held []netip.Prefix
	s.wanted, s.waiting = nil, nil
	for _, p := range subnets {
		s.wanted = append(s.wanted, claims.Block(p))
		standing := claims.Standing{Held: true}
		if i.Claims != nil {
			standing = i.Claims.Hold(claims.Block(p))
		}
		if standing.Held {
			held = append(held, p)
		} else {
			s.waiting = append(s.waiting, claims.Block(p))
		}
	}
	_ = s.setPods(held) // refusal, or the configuration, has checked that there is room
}

// waitsFor describes the claim that this node waits for before it has a pod subnet, ""
// for none.
func (i *IPAM) waitsFor(s *state) string {
	for _, t := range s.waiting {
		switch standing := i.Claims.Standing(t); {
		case standing.Held:
			return fmt.Sprintf("this node holds the claim of %s, and is about to open it", t.Prefix)
		case standing.Blocker == nil:
			return fmt.Sprintf("waiting for the claim of %s", t.Prefix)
		default:
			return fmt.Sprintf("waiting for the claim of %s: %s", t.Prefix, standing.Blocker)
		}
	}
	return ""
}

// updateClaims derives the pod subnets again if a claim became held or was lost.
func (i *IPAM) updateClaims(event controller.Event, txn controller.UpdateOperations) (string, error) {
	s := i.state.Load()
	if s.networks == nil {
		return "", nil // before the first resync
	}
	if !ExplicitBlocks(i.ContivConf) { // its claims are from an earlier configuration
		i.publish(s)
		return "", nil
	}
	next := *s
	next.nodes = slices.Clone(s.nodes)
	i.openHeld(&next, each(s.wanted, func(t claims.Target) netip.Prefix { return t.Prefix }))
	if slices.Equal(s.waiting, next.waiting) {
		i.publish(s) // a draining block may have been released
		return "", nil
	}
	return i.changePodSubnets(&next, i.ownNode(nil), event.GetName(), txn)
}

// Implied returns a function for package claims: the targets that follow from a node
// record. These are the node addresses and the pod blocks of its ID, and those in the
// record. Agents record their blocks, also those that follow from their IDs; agents
// without claims record their podCIDRs. So if the record has blocks, no other block of
// the ID belongs to the node, unless this node's configuration derives blocks from IDs.
func Implied(conf contivconf.API) func(*kv.NodeRecord, []*kv.Pool) []claims.Target {
	return func(r *kv.NodeRecord, stored []*kv.Pool) (all []claims.Target) {
		for _, f := range conf.Cluster().Families {
			if p, err := f.NodeIP(r.Id); err == nil {
				all = append(all, claims.NodeAddress(p.Addr()))
			}
		}
		for _, text := range r.IpAddresses {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, claims.NodeAddress(p.Addr()))
			}
		}
		if r.ExplicitBlocks {
			return all
		}
		recorded := 0
		for _, text := range r.PodCidrs {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, claims.Block(p))
				recorded++
			}
		}
		if recorded > 0 && conf.PodBlocks() != contivconf.PodBlocksNodeID {
			return all
		}
		return append(all, blocksOfID(conf, r.Id, stored)...)
	}
}

// blocksOfID returns the pod blocks that follow from a node ID.
func blocksOfID(conf contivconf.API, id uint32, stored []*kv.Pool) (all []claims.Target) {
	var pools []poolplan.Pool
	for _, m := range stored {
		if p, err := poolplan.FromMessage(m); err == nil && p.State != poolplan.Removed {
			pools = append(pools, p)
		}
	}
	if !slices.ContainsFunc(pools, func(p poolplan.Pool) bool { return p.Network == PodPool }) {
		pools = append(pools, poolplan.FromCluster(conf.Cluster()))
	}
	networks, _ := networksOf(pools, id)
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		for _, p := range slices.Concat(networks[name].open, networks[name].draining) {
			all = append(all, claims.Block(p))
		}
	}
	return all
}
