// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import "net/netip"

// Move describes a node whose block drains with its pool.
type Move struct {
	NodeID   uint32         `json:"nodeID"`
	NodeName string         `json:"nodeName"`
	Pool     string         `json:"pool"`
	Drains   []netip.Prefix `json:"drains"`          // its block of each family
	Leases   uint64         `json:"leases"`          // in them, in the node's last report
	Followed uint64         `json:"followed"`        // the generation of that report, 0 for none
	Opens    []Block        `json:"opens,omitempty"` // blocks of the network that the file opens for it
	Keeps    []Block        `json:"keeps,omitempty"` // blocks of the network that are open for it anyway
}

// moves returns the moves of all live nodes out of all pools that begin to drain.
func (m *planner) moves() []Move {
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
			use := m.lastUse(n, st.To.Name)
			move := Move{
				NodeID:   use.NodeID,
				NodeName: use.NodeName,
				Pool:     use.Pool,
				Leases:   use.Leases,
				Followed: use.Followed,
			}
			blocks, _ := st.To.blocks(use.NodeID) // a node that does not fit has none
			for _, b := range blocks {
				move.Drains = append(move.Drains, b.Prefix)
			}
			open, _, _ := Blocks(after, st.To.Network, use.NodeID)
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
