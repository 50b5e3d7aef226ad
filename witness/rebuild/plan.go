// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Pool holds the blocks that this node has of a pool.
type Pool struct {
	Name     string
	Blocks   []netip.Prefix
	Reserved []netip.Addr // the agent's own, such as the gateway
}

// Input holds what the world does not show.
type Input struct {
	Pools   []Pool
	Unread  []string // why entries of the result cache of CNI are not in the world
	Network string   // CNI network of sandboxes that no CNI result names; "": not known
	Wires   bool     // the agent makes the interfaces of sandboxes that no CNI result names
}

// Record holds the leases of one key in one pool, and the statements that show them.
type Record struct {
	Pool     string             `json:"pool"`
	Addrs    []netip.Addr       `json:"addresses"`
	Key      ledger.Key         `json:"key"`
	Pod      ledger.Pod         `json:"pod"`
	NetNS    string             `json:"netns,omitempty"`
	NetNSID  kv.NetNSID         `json:"netnsID,omitzero"` // of the namespace that shows the record to be in use
	Wired    bool               `json:"wired,omitempty"`
	MAC      string             `json:"mac,omitempty"`
	Evidence []witness.Evidence `json:"evidence"`
}

// Unattributed holds an address in use that has no known owner.
type Unattributed struct {
	Addr   netip.Addr `json:"address"`
	Pool   string     `json:"pool,omitempty"` // "": no block contains it, so it cannot be quarantined
	Reason string     `json:"reason"`
}

// DockerUse holds a use of an address by the Docker engine. Apply leaves it to the driver.
type DockerUse struct {
	Addr    netip.Addr   `json:"address"`
	Subnet  netip.Prefix `json:"subnet"`
	Network string       `json:"network"`
	What    string       `json:"what"`
}

// Plan holds what a rebuilt database would have.
type Plan struct {
	Records     []Record       `json:"records"`
	Quarantined []Unattributed `json:"quarantined"`
	Outside     []Unattributed `json:"outside"`
	Docker      []DockerUse    `json:"docker"`
	Missing     []string       `json:"missing"` // evidence that is needed and not there
	Skipped     []string       `json:"skipped"` // attachments that no longer exist
}

// Complete reports whether the witnesses have shown all: an agent may allocate new
// addresses beside the ones of the plan.
func (p *Plan) Complete() bool { return len(p.Missing) == 0 }

// Make returns the plan that follows from the views of one round.
func Make(w *witness.World, in Input) Plan {
	m := &maker{
		world:     w,
		in:        in,
		taken:     map[netip.Addr]bool{},
		records:   map[recordKey]*Record{},
		explained: map[string]bool{},
	}
	m.witnesses()
	m.docker()
	m.kernel()
	m.sandboxes()
	m.attachments()
	m.sort()
	return m.plan
}

// recordKey identifies a Record.
type recordKey struct {
	pool string
	key  ledger.Key
}

// maker makes one plan.
type maker struct {
	world   *witness.World
	in      Input
	plan    Plan
	taken   map[netip.Addr]bool // addresses that are in the plan
	records map[recordKey]*Record

	explained map[string]bool // sandboxes with an address, by ID
}

// witnesses notes the views that are missing.
func (m *maker) witnesses() {
	w := m.world
	for _, x := range []struct {
		name witness.Name
		have bool
	}{
		{witness.Kernel, w.Kernel != nil},
		{witness.Runtime, w.Runtime != nil},
		{witness.Engine, w.Engine != nil},
	} {
		if r := w.Report(x.name); !x.have && r.State != witness.NotApplicable {
			m.missing("%s: %s", x.name, r.Reason)
		}
	}
	for _, text := range m.in.Unread {
		m.missing("runtime: %s", text)
	}
	if w.Kernel != nil && w.Kernel.Hidden != "" {
		m.missing("kernel: network namespaces are hidden: %s", w.Kernel.Hidden)
	}
	if w.Kernel != nil && w.Kernel.Limits != "" {
		m.missing("kernel: %s", w.Kernel.Limits)
	}
}

func (m *maker) missing(format string, args ...any) {
	m.plan.Missing = append(m.plan.Missing, fmt.Sprintf(format, args...))
}

// poolOf returns the pool with a block that contains an address, nil if there is none.
func (m *maker) poolOf(a netip.Addr) *Pool {
	for i := range m.in.Pools {
		if slices.ContainsFunc(m.in.Pools[i].Blocks, func(b netip.Prefix) bool { return b.Contains(a) }) {
			return &m.in.Pools[i]
		}
	}
	return nil
}

// add adds an address to the record of a key, unless another one has it.
func (m *maker) add(a netip.Addr, r Record) {
	if m.taken[a] {
		return
	}
	m.taken[a] = true
	at := recordKey{r.Pool, r.Key}
	have := m.records[at]
	if have == nil {
		have = &r
		m.records[at] = have
	}
	have.Addrs = append(have.Addrs, a)
	for _, e := range r.Evidence {
		if !slices.Contains(have.Evidence, e) {
			have.Evidence = append(have.Evidence, e)
		}
	}
}

// unattributed quarantines an address, or reports it if no block contains it.
func (m *maker) unattributed(a netip.Addr, format string, args ...any) {
	if m.taken[a] {
		return
	}
	m.taken[a] = true
	u := Unattributed{Addr: a, Reason: fmt.Sprintf(format, args...)}
	if p := m.poolOf(a); p != nil {
		u.Pool = p.Name
		m.plan.Quarantined = append(m.plan.Quarantined, u)
		return
	}
	m.plan.Outside = append(m.plan.Outside, u)
}

// sort puts the plan in the order of the addresses.
func (m *maker) sort() {
	for _, r := range m.records {
		slices.SortFunc(r.Addrs, netip.Addr.Compare)
		m.plan.Records = append(m.plan.Records, *r)
	}
	slices.SortFunc(m.plan.Records, func(a, b Record) int { return a.Addrs[0].Compare(b.Addrs[0]) })
	byAddr := func(a, b Unattributed) int { return a.Addr.Compare(b.Addr) }
	slices.SortFunc(m.plan.Quarantined, byAddr)
	slices.SortFunc(m.plan.Outside, byAddr)
	slices.SortStableFunc(m.plan.Docker, func(a, b DockerUse) int {
		return cmp.Or(a.Addr.Compare(b.Addr), strings.Compare(a.Network, b.Network))
	})
	slices.Sort(m.plan.Missing)
	slices.Sort(m.plan.Skipped)
}
