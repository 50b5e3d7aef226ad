// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"net/netip"
	"slices"
)

// Owner identifies a Node object. Its ID tells it from every other owner. The zero Owner
// stands for reserved prefixes.
type Owner struct {
	Name string
	UID  string
	ID   ID
}

// ID is a hash of the name and the UID of a Node object. As a key of a map it is compared without a
// look at a string: with 65 536 owners nothing else takes as long as cache misses.
type ID [16]byte

// NewOwner returns the owner for a Node object. A node that was deleted and created again
// under its name has another UID, and is another owner. Nodes of two names are two owners,
// even if a client gives them one UID: they never share a block.
func NewOwner(name, uid string) Owner {
	sum := sha256.Sum256([]byte(name + "\x00" + uid))
	return Owner{Name: name, UID: uid, ID: ID(sum[:16])}
}

func (o Owner) compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Name, p.Name), bytes.Compare(o.ID[:], p.ID[:]))
}

// holding holds the blocks of one owner.
type holding struct {
	owner  Owner
	blocks []block
	room   [2]block // where blocks begins: one allocation for a node of two families
}

// holding returns what o has, or a new holding that is not in owners.
func (s *Set) holding(o Owner) (h *holding, known bool) {
	if h := s.owners[o.ID]; h != nil {
		return h, true
	}
	if last := len(s.idle) - 1; last >= 0 {
		h, s.idle = s.idle[last], s.idle[:last]
	} else {
		h = new(holding)
	}
	h.owner, h.blocks = o, h.room[:0]
	return h, false
}

// forget removes h, which has no blocks.
func (s *Set) forget(h *holding) {
	delete(s.owners, h.owner.ID)
	s.recycle(h)
}

// recycle keeps h for the next owner.
func (s *Set) recycle(h *holding) {
	*h = holding{}
	s.idle = append(s.idle, h)
}

func (h *holding) find(p netip.Prefix) int {
	return slices.IndexFunc(h.blocks, func(b block) bool { return b.prefix == p })
}

func (h *holding) prefixes() []netip.Prefix {
	all := make([]netip.Prefix, len(h.blocks))
	for i := range h.blocks {
		all[i] = h.blocks[i].prefix
	}
	return all
}

// block is one block of an owner. Only a look at all other blocks tells what becomes
// free without it if it is shared, or not wholly inside one range.
type block struct {
	prefix  netip.Prefix
	in      *rangeState // nil: not wholly inside one range
	pending bool
	shared  bool // it overlaps a block of another owner, or did
}
