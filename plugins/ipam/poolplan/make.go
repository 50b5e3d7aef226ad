// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
)

// Situation holds the state of the cluster.
type Situation struct {
	Pools    []Pool // removed ones too
	Nodes    []*kv.NodeRecord
	Beats    []*kv.NodeBeat // with the nodes' reports on the pools
	Reserved []Reserved
}

// Reserved is a network that no new pool may share addresses with.
type Reserved struct {
	Name string       // "serviceCIDR"
	Net  netip.Prefix // the zero Prefix overlaps nothing
}

// Plan holds the effect of applying a file. If there are problems or blockers the file is
// refused as a whole, and there are no changes and no moves.
type Plan struct {
	Changes  []Change  `json:"changes,omitempty"` // in the order in which to write them
	Moves    []Move    `json:"moves,omitempty"`   // in the order of the changes, then by node ID
	Problems Problems  `json:"problems,omitempty"`
	Blocks   []Blocker `json:"blocks,omitempty"`
}

// Change is a new value of a pool.
type Change struct {
	From Pool `json:"from,omitzero"` // the zero Pool if To is new
	To   Pool `json:"to"`
}

// Message returns the value to store.
func (c Change) Message() *kv.Pool { return c.To.Message() }

// The order of changes. A range is free for a new pool after the old one is removed, and
// a pool drains after another one is added.
const (
	removes = iota
	adds
	reopens
	drains
)

func (c Change) kind() int {
	switch {
	case c.From.Generation == 0:
		return adds
	case c.To.State == Removed:
		return removes
	case c.To.State == Active:
		return reopens
	}
	return drains
}

func (c Change) verb() string { return []string{"remove", "add", "reopen", "drain"}[c.kind()] }

// Make plans the changes from the cluster's state to that of the file. Pools that the
// file does not name do not change. The same arguments give the same plan. A file that
// has been applied gives a plan without changes.
func Make(s Situation, wanted []Wanted) Plan {
	m := newPlanner(s, wanted)
	if m.checkWanted(wanted); len(m.Problems) > 0 {
		return Plan{Problems: m.sorted()}
	}
	for i, w := range wanted {
		m.step(poolField(i), w)
	}
	m.admitAll()
	m.keepFamilies()
	slices.SortStableFunc(m.steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.kind(), b.kind()), compareNames(a.To.Name, b.To.Name))
	})
	p := Plan{Problems: m.sorted(), Blocks: m.blockers()}
	if p.Err() == nil {
		for _, st := range m.steps {
			p.Changes = append(p.Changes, st.Change)
		}
		p.Moves = m.moves()
	}
	return p
}

// Err returns the reason why the file is refused, nil if it is not.
func (p Plan) Err() error {
	switch {
	case len(p.Problems) > 0:
		return p.Problems
	case len(p.Blocks) > 0:
		lines := make([]string, len(p.Blocks))
		for i, b := range p.Blocks {
			lines[i] = b.String()
		}
		return fmt.Errorf("%w:\n%s", ErrBlocked, strings.Join(lines, "\n"))
	}
	return nil
}

// planner holds a Plan while it is made.
type planner struct {
	problems
	s      Situation
	wanted []Wanted
	live   []*kv.NodeRecord // not released, by ID
	beats  map[uint32]*kv.NodeBeat
	known  map[string]Pool
	names  map[string]bool // of present and future pools
	steps  []step
}

// step is a change, and its position in the file.
type step struct {
	Change
	at string // "pools[1]."
}

func newPlanner(s Situation, wanted []Wanted) *planner {
	m := &planner{
		s:      s,
		wanted: wanted,
		beats:  map[uint32]*kv.NodeBeat{},
		known:  map[string]Pool{},
		names:  map[string]bool{},
	}
	for _, b := range s.Beats {
		m.beats[b.GetId()] = b
	}
	for _, w := range wanted {
		m.names[w.Name] = true
	}
	for _, p := range s.Pools {
		m.known[p.Name], m.names[p.Name] = p, true
	}
	for _, n := range s.Nodes {
		if n.GetReleased() == 0 {
			m.live = append(m.live, n)
		}
	}
	slices.SortStableFunc(m.live, func(a, b *kv.NodeRecord) int {
		return cmp.Or(cmp.Compare(a.GetId(), b.GetId()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return m
}

// step appends the change of an entry.
func (m *planner) step(at string, w Wanted) {
	old, exists := m.known[w.Name]
	if !exists {
		m.addition(at, w)
		return
	}
	if old.State == Removed && w.State != Removed {
		m.add(
			at+nameKey,
			w.Name,
			"is the name of a pool that was removed, and no pool has it again: choose another one, such as %q; the addresses may be the same",
			m.freeName(w.Name),
		)
		return
	}
	if w.Network != "" && w.Network != old.Network {
		m.add(at+networkKey, w.Network,
			"is not the network of pool %s, which is %s and does not change: write that, or remove the key",
			old.Name, old.Network)
	}
	if len(w.Ranges) > 0 {
		m.sameRanges(at, old, w.Ranges)
	}
	if old.State == Active && w.State == Removed {
		m.add(at+stateKey, w.State.String(),
			"cannot follow active: write draining now, and removed when no node has anything of pool %s", old.Name)
		return
	}
	if old.State != w.State {
		to := old
		to.State = w.State
		to.Generation++
		m.steps = append(m.steps, step{Change{old, to}, at})
	}
}

func (m *planner) addition(at string, w Wanted) {
	if w.State != Active {
		m.add(at+stateKey, w.State.String(),
			"is not a state of a pool that is not there: the pools are %s; a new one is active", m.poolNames())
		return
	}
	if len(w.Ranges) == 0 {
		m.add(at+rangesKey, "", "is missing: there is no pool %s yet; the pools are %s", w.Name, m.poolNames())
		return
	}
	to := Pool{
		Name:       w.Name,
		Network:    cmp.Or(w.Network, Default),
		Ranges:     w.Ranges,
		Generation: 1,
		Origin:     OriginApply,
	}
	m.steps = append(m.steps, step{Change{To: to}, at})
}

// poolNames returns the names of the pools that are not removed, for a message.
func (m *planner) poolNames() string {
	var names []string
	for _, p := range inOrder(m.s.Pools) {
		if p.State != Removed {
			names = append(names, p.Name)
		}
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// sameRanges reports differences from the ranges of a pool, and what to do instead.
func (m *planner) sameRanges(at string, old Pool, ranges []Range) {
	var found Problems
	differs := func(field, value, format string, args ...any) {
		found = append(found, problem{Field: field, Value: value, Text: fmt.Sprintf(format, args...)})
	}
	for i, r := range ranges {
		field := rangeField(at, i)
		switch was, has := old.of(r.family()); {
		case !has:
			differs(field+cidrKey, r.CIDR.String(),
				"is a range that pool %s does not have, and ranges do not change", old.Name)
		case was.CIDR != r.CIDR:
			differs(field+cidrKey, r.CIDR.String(),
				"is not the range of pool %s, which is %s and does not change", old.Name, was)
		case was.OneNode != r.OneNode:
			differs(field+oneNodeKey, fmt.Sprint(r.OneNode),
				"is not the length of pool %s, which is %s and does not change", old.Name, was)
		}
	}
	for _, was := range old.Ranges {
		if !slices.ContainsFunc(ranges, func(r Range) bool { return r.family() == was.family() }) {
			differs(at+rangesKey, "",
				"is without %s of pool %s, and ranges do not change: write it, or remove the key", was, old.Name)
		}
	}
	for i, p := range found {
		text := p.Text
		if i == len(found)-1 {
			text += m.instead(old, ranges)
		}
		m.add(p.Field, p.Value, "%s", text)
	}
}

// keepFamilies reports a change after which network Default has no active pool of a
// family that it has one of now.
func (m *planner) keepFamilies() {
	after := m.after()
	for _, st := range m.steps {
		for _, r := range st.From.Ranges {
			covers := func(p Pool) bool { return p.covers(Default, r.family()) }
			if !covers(st.From) || slices.ContainsFunc(after, covers) {
				continue
			}
			m.add(st.at+stateKey, st.To.State.String(), "leaves network %s without an active pool for %s%s",
				Default, r.family(), m.instead(st.From, nil))
		}
	}
}

// after returns the pools with all changes.
func (m *planner) after() []Pool {
	all := slices.Clone(m.s.Pools)
	for _, st := range m.steps {
		if i := slices.IndexFunc(all, func(p Pool) bool { return p.Name == st.To.Name }); i >= 0 {
			all[i] = st.To
		} else {
			all = append(all, st.To)
		}
	}
	return all
}
