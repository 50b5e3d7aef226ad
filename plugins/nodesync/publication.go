// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
)

// publication holds what the node publishes of itself.
type publication struct {
	addresses []string
	uid       string
	podCIDRs  []string // of its Node object, for those who do not read it; likewise
	mgmt      []string
	blocks    []string // instead of podCIDRs; nil: nothing is said
	explicit  bool     // the blocks have claims of their own
	underlay  []string // nil: nothing is said of it and of publicKey
	publicKey string
}

func (s publication) equal(t publication) bool {
	return s.uid == t.uid &&
		slices.Equal(s.addresses, t.addresses) &&
		slices.Equal(s.podCIDRs, t.podCIDRs) &&
		slices.Equal(s.mgmt, t.mgmt) &&
		(s.blocks == nil) == (t.blocks == nil) &&
		slices.Equal(s.blocks, t.blocks) &&
		s.explicit == t.explicit &&
		(s.underlay == nil) == (t.underlay == nil) &&
		slices.Equal(s.underlay, t.underlay) &&
		s.publicKey == t.publicKey
}

// applyTo returns the record r with the publication. canClaim reports
// whether its blocks have claims of their own at all.
func (s publication) applyTo(r *kv.NodeRecord, canClaim bool) *kv.NodeRecord {
	r = proto.Clone(r).(*kv.NodeRecord)
	if s.addresses != nil {
		r.IpAddresses = s.addresses
	}
	if s.underlay != nil {
		r.Underlay, r.PublicKey = s.underlay, s.publicKey
	}
	if s.uid != "" {
		r.NodeUid, r.MgmtAddresses = s.uid, s.mgmt
	}
	switch {
	case s.blocks != nil:
		r.PodCidrs = s.blocks
	case s.uid != "" && canClaim: // otherwise the Node object does not say what this node has
		r.PodCidrs = s.podCIDRs
	case r.ExplicitBlocks && !canClaim:
		r.PodCidrs = nil
	}
	r.ExplicitBlocks = canClaim && (r.ExplicitBlocks || s.explicit)
	return r
}

// publishSoon changes what the node publishes and has it written soon.
func (k *IDClaimer) publishSoon(change func(*publication)) {
	k.mu.Lock()
	change(&k.wanted)
	same := k.wanted.equal(k.stored)
	k.mu.Unlock()
	if !same {
		k.Poke()
	}
}

// published returns what the node publishes of itself.
func (k *IDClaimer) published() publication {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wanted
}
