// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// Admit returns the reason why p, the pool of a custom network, cannot be added to pools.
// The error is Problems; their fields are those of p, "ranges[0].cidr".
func Admit(p Pool, pools []Pool, reserved []Reserved) error {
	m := newPlanner(Situation{Pools: pools, Reserved: reserved}, nil)
	if old, exists := m.known[p.Name]; exists {
		m.add(nameKey, p.Name, "is the name of a pool that is there, of network %s: choose another one", old.Network)
	}
	if m.checkRanges("", p.Ranges); len(m.Problems) == 0 {
		m.admit(candidate{Pool: p}, pools, reserved)
	}
	return m.err()
}

// candidate is a pool from which nodes are to begin to allocate.
type candidate struct {
	Pool
	at       string // its position in the file
	reopened bool   // the file may have no ranges for it
}

// admitAll checks all candidates, each against the new ones before it too.
func (m *planner) admitAll() {
	var present []Pool
	for _, p := range m.after() {
		if _, old := m.known[p.Name]; old {
			present = append(present, p)
		}
	}
	for _, st := range m.steps {
		switch st.kind() {
		case adds:
			m.admit(candidate{st.To, st.at, false}, present, m.s.Reserved)
			present = append(present, st.To)
		case reopens: // contiv.conf may allow it to overlap what is reserved
			m.admit(candidate{st.To, st.at, true}, present, nil)
		}
	}
}

// admit checks c against what it must not overlap, and against the nodes.
func (m *planner) admit(c candidate, others []Pool, reserved []Reserved) {
	for i, r := range c.Ranges {
		for _, o := range others {
			if o.State == Removed || o.Name == c.Name {
				continue
			}
			for _, theirs := range o.Ranges {
				if r.CIDR.Overlaps(theirs.CIDR) {
					m.blame(c, i, "overlaps pool %s, %s", o.Name, theirs.CIDR)
				}
			}
		}
		for _, n := range reserved {
			if r.CIDR.Overlaps(n.Net) {
				m.blame(c, i, "overlaps %s, %s", n.Name, n.Net)
			}
		}
		if !c.reopened { // nodes may have leases there
			if err := addrspace.CheckUsable(r.CIDR); err != nil {
				m.add(rangeField(c.at, i)+cidrKey, r.CIDR.String(), "%s", err)
			}
		}
		m.admitNodes(c, i)
	}
}

// blame reports that range number i of c shares addresses.
func (m *planner) blame(c candidate, i int, format string, args ...any) {
	r, text := c.Ranges[i], fmt.Sprintf(format, args...)
	if c.reopened {
		m.add(c.at+stateKey, c.State.String(), "cannot be: %s %s", r.CIDR, text)
		return
	}
	text += ": give it addresses of its own"
	if free, ok := m.free(r); ok {
		text += ", such as " + free.CIDR.String()
	}
	m.add(rangeField(c.at, i)+cidrKey, r.CIDR.String(), "%s", text)
}

// admitNodes reports nodes that do not fit range number i of c.
func (m *planner) admitNodes(c candidate, i int) {
	r := c.Ranges[i]
	var beyond []string
	for _, n := range m.live {
		if n.GetId() > r.largest() {
			beyond = append(beyond, nodeName(n))
		}
	}
	if len(beyond) == 0 {
		return
	}
	nodes := "node " + beyond[len(beyond)-1]
	if len(beyond) > 1 {
		nodes += fmt.Sprintf(" and %s", plural(len(beyond)-1, "other", "others"))
	}
	text := fmt.Sprintf("has no block for %s: the largest node ID that fits is %d", nodes, r.largest())
	if c.reopened {
		m.add(c.at+stateKey, c.State.String(), "cannot be: %s %s", r.CIDR, text)
		return
	}
	var right []string
	need := idBits(m.largestID())
	if r.OneNode > need {
		right = append(right, fmt.Sprintf("a network of /%d or less", r.OneNode-need))
	}
	if r.CIDR.Bits()+need <= r.width()-addrplan.PodHostBits {
		right = append(right, fmt.Sprintf("%s %d or more", oneNodeKey, r.CIDR.Bits()+need))
	}
	m.add(rangeField(c.at, i)+cidrKey, r.CIDR.String(), "%s; write %s", text, strings.Join(right, ", or "))
}

// largestID returns the largest node ID that is held, 1 if there is none.
func (m *planner) largestID() uint32 {
	if len(m.live) == 0 {
		return 1
	}
	return max(1, m.live[len(m.live)-1].GetId())
}

// idBits returns the number of bits by which one node's prefix must be longer than that
// of the range, for IDs up to id.
func idBits(id uint32) int { return max(1, bits.Len32(id-1)) }

// nodeName returns "5 (node-5)".
func nodeName(n *kv.NodeRecord) string { return fmt.Sprintf("%d (%s)", n.GetId(), n.GetName()) }
