// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

const example = "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]"

// Wanted holds one entry of a pools.yaml.
type Wanted struct {
	Name    string
	Network string  // "" if left out: that of the pool, or Default
	Ranges  []Range // none if left out: those of the pool
	State   State
}

// rawFile holds a pools.yaml as it is written; its fields are the keys.
type rawFile struct {
	Pools []struct {
		Name    string     `json:"name"`
		Network string     `json:"network"`
		Ranges  []rawRange `json:"ranges"`
		State   string     `json:"state"`
	} `json:"pools"`
}

type rawRange struct {
	CIDR    string `json:"cidr"`
	OneNode *int   `json:"oneNodePrefixLen"`
}

// Parse reads a pools.yaml. It checks only what does not depend on the cluster. Its
// error is Problems.
func Parse(file []byte) ([]Wanted, error) {
	d := yamldoc.NewDecoder(yamldoc.Options{
		Example: example,
		Exact:   true,
		Unknown: func(_, _ string, known []string) string {
			return "is unknown: the keys here are " + strings.Join(known, ", ")
		},
	})
	var raw rawFile
	ok := d.Decode(file, &raw)
	ps := problems{d.Collector}
	if ok && raw.Pools == nil {
		ps.add("pools", "", "is missing: write a list of pools, such as %q", example)
	}
	wanted := make([]Wanted, len(raw.Pools))
	for i, p := range raw.Pools {
		at := poolField(i)
		wanted[i] = Wanted{Name: p.Name, Network: p.Network, Ranges: ps.ranges(at, p.Ranges)}
		if p.State != "" {
			wanted[i].State = ps.state(at+stateKey, p.State)
		}
	}
	ps.Mute()
	ps.checkWanted(wanted)
	if err := ps.err(); err != nil {
		return nil, err
	}
	return wanted, nil
}

// checkWanted reports the errors of the entries that do not depend on the cluster.
func (ps *problems) checkWanted(wanted []Wanted) {
	first := map[string]int{}
	for i, w := range wanted {
		at := poolField(i)
		ps.checkName(at+nameKey, w.Name)
		if w.Network != "" {
			ps.checkName(at+networkKey, w.Network)
		}
		ps.checkRanges(at, w.Ranges)
		if w.State > Removed {
			ps.state(at+stateKey, w.State.String())
		}
		if j, twice := first[w.Name]; !twice {
			first[w.Name] = i
		} else if w.Name != "" {
			ps.add(at+nameKey, w.Name, "is the name of pools[%d] too: keep one of them", j)
		}
	}
}

// Keys of the file that messages name.
const (
	nameKey    = "name"
	networkKey = "network"
	rangesKey  = "ranges"
	stateKey   = "state"
)

// poolField returns the position of entry number i.
func poolField(i int) string { return "pools[" + strconv.Itoa(i) + "]." }

// ranges converts the ranges of the entry at the path at, nil if it has none.
func (ps *problems) ranges(at string, raw []rawRange) (ranges []Range) {
	if raw != nil && len(raw) == 0 {
		ps.add(at+rangesKey, "", "is empty: write a range, or remove the key where the pool exists")
	}
	for i, r := range raw {
		field := rangeField(at, i)
		var converted Range
		if r.CIDR == "" {
			ps.add(field+cidrKey, "", "is missing: write a network, such as 10.2.0.0/16")
		} else {
			converted.CIDR = ps.cidr(field+cidrKey, r.CIDR)
		}
		if r.OneNode == nil {
			ps.add(field+oneNodeKey, "", "is missing: write the prefix length of one node's block, such as 24")
		} else {
			converted.OneNode = *r.OneNode
		}
		ranges = append(ranges, converted)
	}
	return ranges
}

func (ps *problems) state(field, s string) State {
	i := slices.Index(states(), s)
	if i < 0 {
		ps.add(field, s, "is not a state: write one of %s", strings.Join(states(), ", "))
		return Active
	}
	return State(i)
}
