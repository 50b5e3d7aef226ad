// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import "net/netip"

// Move is one node that goes on elsewhere because a pool drains.
type Move struct {
	NodeID   uint32         `json:"nodeID"`
	NodeName string         `json:"nodeName"`
	Pool     string         `json:"pool"`
	Drains   []netip.Prefix `json:"drains"`          // its block of each family
	Leases   uint64         `json:"leases"`          // in them, as of the node's last word
	Followed uint64         `json:"followed"`        // the generation that it spoke of, 0 for none
	Opens    []Block        `json:"opens,omitempty"` // what the file opens for it in the network
	Keeps    []Block        `json:"keeps,omitempty"` // what is open for it there in any case
}

// moves are those of all live nodes out of all pools that begin to drain.
func (m *making) moves() []Move {
	var all []Move
	after, opened := m.after(), map[string]bool{}
	for _, st := range m.steps {
		if st.kind() == adds || st.kind() == reopens {
			opened[st.To.Name] = true
		}
	}
	for _, st := range m.steps {
		if st.kind() != drains {
			continue
		}
		for _, n := range m.live {
			word := m.word(n, st.To.Name)
			move := Move{NodeID: word.NodeID, NodeName: word.NodeName, Pool: word.Pool, Leases: word.Leases, Followed: word.Followed}
			blocks, _ := st.To.blocks(word.NodeID) // a node that does not fit has none
			for _, b := range blocks {
				move.Drains = append(move.Drains, b.Prefix)
			}
			open, _, _ := Blocks(after, st.To.Network, word.NodeID)
			for _, b := range open {
				if opened[b.Pool] {
					move.Opens = append(move.Opens, b)
				} else {
					move.Keeps = append(move.Keeps, b)
				}
			}
			all = append(all, move)
		}
	}
	return all
}
