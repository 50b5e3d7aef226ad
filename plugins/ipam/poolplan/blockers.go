// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
)

// ErrBlocked is wrapped where a file is right and its time has not come.
var ErrBlocked = errors.New("what nodes have stands in the way")

// Blocker is one node that stands in the way of a change.
type Blocker struct {
	Pool         string `json:"pool"`
	NodeID       uint32 `json:"nodeID"`
	NodeName     string `json:"nodeName"`
	Leases       uint64 `json:"leases"`     // as of the node's last word
	Open         bool   `json:"open"`       // likewise: it may lend addresses of the pool
	Followed     uint64 `json:"followed"`   // the generation that it has followed, 0 for none
	Generation   uint64 `json:"generation"` // the stored one, 0 for none
	State        State  `json:"state"`      // likewise
	SupersededBy uint32 `json:"supersededBy,omitempty"`
}

// Behind is true where the node has not answered yet: what it lends of the pool
// is not known.
func (b Blocker) Behind() bool { return b.Followed < b.Generation }

// Ahead is true where the node knows more than is stored, or has something of
// what is removed: the store was set back, and nobody can say what it has
// forgotten.
func (b Blocker) Ahead() bool {
	return b.Followed > b.Generation || b.Generation == 0 || b.State == Removed && (b.Open || b.Leases > 0)
}

// String is the pool, the node and what it is about.
func (b Blocker) String() string {
	return fmt.Sprintf("pool %s: node %d (%s) %s", b.Pool, b.NodeID, b.NodeName, b.why())
}

func (b Blocker) why() string {
	leases, text := plural(b.Leases, "lease", "leases"), ""
	switch {
	case b.Generation == 0:
		text = "knows this pool, which is not stored: the store was set back; wait until the node has put it back"
	case b.Followed > b.Generation:
		text = fmt.Sprintf("has followed generation %d, and %d is stored: the store was set back; wait until the node has put it back",
			b.Followed, b.Generation)
	case b.Ahead():
		text = fmt.Sprintf("has %s of this pool, which is removed: the store was set back; wait until they are gone", leases)
	case b.Followed == 0:
		text = "has not answered yet"
	case b.Behind():
		text = fmt.Sprintf("has not answered yet: it has followed generation %d of %d, with %s", b.Followed, b.Generation, leases)
	case b.Open:
		text = "has its block open, with " + leases
	default:
		text = "has " + leases
	}
	if b.SupersededBy != 0 {
		text += fmt.Sprintf("; node ID %d has its name now, so release node ID %d if it is gone", b.SupersededBy, b.NodeID)
	}
	return text
}

// uses is what n has said of all pools. What an earlier holder of its ID has
// said does not count.
func (m *making) uses(n *kv.NodeRecord) []*kv.PoolUse {
	b := m.beats[n.GetId()]
	if b.GetInstance() != n.GetInstance() || b.GetGeneration() < n.GetGeneration() {
		return nil
	}
	return b.GetPools()
}

// word is what n has said of a pool. Of several entries the worst counts.
func (m *making) word(n *kv.NodeRecord, pool string) Blocker {
	p := m.known[pool]
	b := Blocker{Pool: pool, NodeID: n.GetId(), NodeName: n.GetName(), Generation: p.Generation, State: p.State, SupersededBy: n.GetSupersededBy()}
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

// blockers are the nodes that stand in the way of the steps: of a removal those
// that have something of the pool, or may have; of anything those that are ahead.
func (m *making) blockers() []Blocker {
	if len(m.steps) == 0 {
		return nil
	}
	var all []Blocker
	for _, st := range m.steps {
		for _, n := range m.live {
			if b := m.word(n, st.To.Name); st.kind() == removes && !b.Ahead() && (b.Behind() || b.Open || b.Leases > 0) {
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
			if b := m.word(n, pool); b.Ahead() {
				all = append(all, b)
			}
		}
	}
	return all
}
