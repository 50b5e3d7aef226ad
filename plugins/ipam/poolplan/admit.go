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

// Admit says why p cannot be added to the pools that there are, where it does
// not come from a file: it is of a custom network. The error is Problems; their
// fields are those of p, "ranges[0].cidr".
func Admit(p Pool, pools []Pool, reserved []Reserved) error {
	m := newMaking(Situation{Pools: pools, Reserved: reserved}, nil)
	if old, exists := m.known[p.Name]; exists {
		m.add(nameKey, p.Name, "is the name of a pool that is there, of network %s: choose another one", old.Network)
	}
	if m.checkRanges("", p.Ranges); len(m.Problems) == 0 {
		m.admit(candidate{Pool: p}, pools, reserved)
	}
	return m.err()
}

// candidate is a pool that nodes are to begin to lend from.
type candidate struct {
	Pool
	at       string // where the file has it
	reopened bool   // the file may have no ranges for it
}

// admitAll checks all candidates, each against the new ones before it too.
func (m *making) admitAll() {
	var there []Pool
	for _, p := range m.after() {
		if _, old := m.known[p.Name]; old {
			there = append(there, p)
		}
	}
	for _, st := range m.steps {
		switch st.kind() {
		case adds:
			m.admit(candidate{st.To, st.at, false}, there, m.s.Reserved)
			there = append(there, st.To)
		case reopens: // contiv.conf may allow it to overlap what is reserved
			m.admit(candidate{st.To, st.at, true}, there, nil)
		}
	}
}

// admit checks c against what it must not overlap, and against the nodes.
func (m *making) admit(c candidate, others []Pool, reserved []Reserved) {
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
func (m *making) blame(c candidate, i int, format string, args ...any) {
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

// admitNodes wants every node to have a block of range number i of c.
func (m *making) admitNodes(c candidate, i int) {
	r := c.Ranges[i]
	var beyond []string
	for _, n := range m.live {
		if n.GetId() > r.Largest() {
			beyond = append(beyond, nodeName(n))
		}
	}
	if len(beyond) == 0 {
		return
	}
	who := "node " + beyond[len(beyond)-1]
	if len(beyond) > 1 {
		who += fmt.Sprintf(" and %s", plural(len(beyond)-1, "other", "others"))
	}
	text := fmt.Sprintf("has no block for %s: the largest node ID that fits is %d", who, r.Largest())
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

// largestID is the largest node ID that is held, 1 where none is.
func (m *making) largestID() uint32 {
	if len(m.live) == 0 {
		return 1
	}
	return max(1, m.live[len(m.live)-1].GetId())
}

// idBits is how many bits longer than the range's prefix one node's must be for
// IDs up to id.
func idBits(id uint32) int { return max(1, bits.Len32(id-1)) }

// nodeName is "5 (node-5)".
func nodeName(n *kv.NodeRecord) string { return fmt.Sprintf("%d (%s)", n.GetId(), n.GetName()) }
