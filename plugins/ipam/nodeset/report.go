// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
)

// Report returns set with the node's present part of it: the use of each address, the
// answers to the operator's requests for blocks, and the state of each CIDR.
func Report(set *kv.NetResourceSet, g Granted, u Usage) *kv.NetResourceSet {
	next := proto.Clone(set).(*kv.NetResourceSet)
	next.Used = u.of(set)
	next.Releases = Answers(set.Releases, g, u)
	var cidrs [2][]netip.Prefix
	for _, key := range set.PodCidrs {
		if p, err := netip.ParsePrefix(key); err == nil {
			cidrs[p.Addr().BitLen()/128] = append(cidrs[p.Addr().BitLen()/128], p)
		}
	}
	next.CidrStates = map[string]string{}
	wanted := max(cmp.Or(set.Marks.GetAllocationThreshold(), DefaultAllocate), 0)
	for _, family := range cidrs {
		states, _ := NewCIDRs(family).Review(Thresholds{uint64(wanted), NeverRelease}, u.Blocks)
		maps.Copy(next.CidrStates, states)
	}
	return next
}

// of returns the use of each address that is not free.
func (u Usage) of(set *kv.NetResourceSet) map[string]*kv.NetResource {
	used := map[string]*kv.NetResource{}
	for a, owner := range u.owners {
		x := set.Pool[u.keys[a]]
		if x == nil { // it has left the pool while a pod has it
			x = set.Used[a.String()]
		}
		used[a.String()] = &kv.NetResource{Owner: owner, Resource: x.GetResource(), Subnet: x.GetSubnet()}
	}
	return used
}

// Answers returns the entries of releases with the node's part of the handshake. A block
// that is still allocated from is not ready: the node has not granted the version with the
// request yet.
func Answers(releases map[string]string, g Granted, u Usage) map[string]string {
	answers, open := map[string]string{}, spansOf(g.Open)
	for key, text := range releases {
		entry := handshake.State(text)
		p, err := handshake.ParseKey(key)
		inPool := g.Set.GetPool()[key] != nil || slices.Contains(g.Set.GetPodCidrs(), key)
		leased := g.Refused[key] || err == nil && u.Leased(p)
		answer := handshake.Answer(entry, handshake.Seen{InPool: inPool, Leased: leased})
		if answer == handshake.Ready && err == nil && open.overlap(p) {
			answer = entry
		}
		if answer != handshake.None {
			answers[key] = string(answer)
		}
	}
	return answers
}

// SameGrants reports whether two versions of a set grant the same: the pool, the CIDRs,
// the releases and the interfaces.
func SameGrants(a, b *kv.NetResourceSet) bool {
	return maps.EqualFunc(a.GetPool(), b.GetPool(), equal[*kv.NetResource]) &&
		maps.Equal(a.GetReleases(), b.GetReleases()) && slices.Equal(a.GetPodCidrs(), b.GetPodCidrs()) &&
		maps.EqualFunc(a.GetInterfaces(), b.GetInterfaces(), equal[*kv.NetResourceInterface])
}

// sameUse reports whether two versions of a set have the same report but for the releases.
func sameUse(a, b *kv.NetResourceSet) bool {
	return maps.EqualFunc(a.Used, b.Used, equal[*kv.NetResource]) && maps.Equal(a.CidrStates, b.CidrStates)
}

func equal[M proto.Message](x, y M) bool { return proto.Equal(x, y) }
