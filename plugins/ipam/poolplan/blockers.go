// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
)

// ErrBlocked is wrapped if a file is valid but nodes still use what it removes.
var ErrBlocked = errors.New("what nodes have stands in the way")

// Blocker describes the use of a pool by one node that keeps the pool from changing.
type Blocker struct {
	Pool         string `json:"pool"`
	NodeID       uint32 `json:"nodeID"`
	NodeName     string `json:"nodeName"`
	Leases       uint64 `json:"leases"`     // in the node's last report
	Open         bool   `json:"open"`       // likewise: the node may allocate from the pool
	Followed     uint64 `json:"followed"`   // the generation of that report, 0 for none
	Generation   uint64 `json:"generation"` // the stored one, 0 for none
	State        State  `json:"state"`      // likewise
	SupersededBy uint32 `json:"supersededBy,omitempty"`
}

// behind reports whether the node has not reported the stored generation: its use of the
// pool is not known.
func (b Blocker) behind() bool { return b.Followed < b.Generation }

// ahead reports whether the node knows a later generation than the stored one, or uses a
// removed pool: the store was set back, and its losses are not known.
func (b Blocker) ahead() bool {
	return b.Followed > b.Generation || b.Generation == 0 || b.State == Removed && (b.Open || b.Leases > 0)
}

// String returns the pool, the node and the reason.
func (b Blocker) String() string {
	return fmt.Sprintf("pool %s: node %d (%s) %s", b.Pool, b.NodeID, b.NodeName, b.reason())
}

func (b Blocker) reason() string {
	leases, text := plural(b.Leases, "lease", "leases"), ""
	switch {
	case b.Generation == 0:
		text = "knows this pool, which is not stored: the store was set back; wait until the node has put it back"
	case b.Followed > b.Generation:
		text = fmt.Sprintf(
			"has followed generation %d, and %d is stored: the store was set back; wait until the node has put it back",
			b.Followed,
			b.Generation,
		)
	case b.ahead():
		text = fmt.Sprintf(
			"has %s of this pool, which is removed: the store was set back; wait until they are gone",
			leases,
		)
	case b.Followed == 0:
		text = "has not answered yet"
	case b.behind():
		text = fmt.Sprintf(
			"has not answered yet: it has followed generation %d of %d, with %s",
			b.Followed,
			b.Generation,
			leases,
		)
	case b.Open:
		text = "has its block open, with " + leases
	default:
		text = "has " + leases
	}
	if b.SupersededBy != 0 {
		text += fmt.Sprintf(
			"; node ID %d has its name now, so release node ID %d if it is gone",
			b.SupersededBy,
			b.NodeID,
		)
	}
	return text
}

// uses returns n's last report on all pools. That of an earlier holder of its ID does not
// count.
func (m *planner) uses(n *kv.NodeRecord) []*kv.PoolUse {
	b := m.beats[n.GetId()]
	if b.GetInstance() != n.GetInstance() || b.GetGeneration() < n.GetGeneration() {
		return nil
	}
	return b.GetPools()
}

// lastUse returns n's last report on a pool. Of several entries the worst counts.
func (m *planner) lastUse(n *kv.NodeRecord, pool string) Blocker {
	p := m.known[pool]
	b := Blocker{
		Pool:         pool,
		NodeID:       n.GetId(),
		NodeName:     n.GetName(),
		Generation:   p.Generation,
		State:        p.State,
		SupersededBy: n.GetSupersededBy(),
	}
	first := true
	for _, u := range m.uses(n) {
		if u.GetPool() != pool {
			continue
		}
		if first || u.GetGeneration() < b.Followed {
			b.Followed = u.GetGeneration()
		}
		first = false
		b.Open = b.Open || u.GetOpen()
		b.Leases = max(b.Leases, u.GetLeases())
	}
	return b
}

// blockers returns the nodes that block the steps: those that use a removed pool, or may
// use it, and those that are ahead of the store, which block every step.
func (m *planner) blockers() []Blocker {
	if len(m.steps) == 0 {
		return nil
	}
	var all []Blocker
	for _, st := range m.steps {
		for _, n := range m.live {
			b := m.lastUse(n, st.To.Name)
			if st.kind() == removes && !b.ahead() && (b.behind() || b.Open || b.Leases > 0) {
				all = append(all, b)
			}
		}
	}
	for _, n := range m.live {
		var pools []string
		for _, u := range m.uses(n) {
			pools = append(pools, u.GetPool())
		}
		slices.SortFunc(pools, compareNames)
		for _, pool := range slices.Compact(pools) {
			if b := m.lastUse(n, pool); b.ahead() {
				all = append(all, b)
			}
		}
	}
	return all
}
