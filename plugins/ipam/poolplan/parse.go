// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// wholeFile is the field of what is wrong with no key in particular.
const wholeFile = "(file)"

const example = "such as \"pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]\""

// Wanted is one entry of a pools.yaml.
type Wanted struct {
	Name    string
	Network string  // "" where left out: what the pool has, or Default
	Ranges  []Range // none where left out: what the pool has
	State   State
}

// Parse reads a pools.yaml. Its error is Problems: everything that is wrong with
// the file as such, whatever the cluster has.
func Parse(file []byte) ([]Wanted, error) {
	var ps problems
	var wanted []Wanted
	if content, ok := ps.document(file); ok {
		wanted = ps.pools(content)
	}
	ps.settle()
	ps.checkWanted(wanted)
	if err := ps.err(); err != nil {
		return nil, err
	}
	return wanted, nil
}

// checkWanted reports what is wrong with the entries as such.
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
			ps.add(at+stateKey, w.State.String(), "is not a state: write one of %s", strings.Join(states(), ", "))
		}
		if j, twice := first[w.Name]; !twice {
			first[w.Name] = i
		} else if w.Name != "" {
			ps.add(at+nameKey, w.Name, "is the name of pools[%d] too: keep one of them", j)
		}
	}
}

// Keys of the file.
const (
	poolsKey   = "pools"
	nameKey    = "name"
	networkKey = "network"
	rangesKey  = "ranges"
	stateKey   = "state"
)

// poolField is where entry number i is.
func poolField(i int) string { return poolsKey + "[" + strconv.Itoa(i) + "]." }

// The YAML decoder stops at the first value of a wrong type and at the first
// unknown key, and does not say where that key is; what follows goes on.

func (ps *problems) pools(content map[string]any) []Wanted {
	ps.known("", content, poolsKey)
	items, _ := ps.items(poolsKey, content[poolsKey])
	if content[poolsKey] == nil {
		ps.add(poolsKey, "", "is missing: write a list of pools, %s", example)
	}
	wanted := make([]Wanted, len(items))
	for i, item := range items {
		at := poolField(i)
		keys, ok := ps.section(strings.TrimSuffix(at, "."), item)
		if !ok {
			ps.settledBelow(at, nameKey)
			continue
		}
		ps.known(at, keys, nameKey, networkKey, rangesKey, stateKey)
		wanted[i] = Wanted{Name: ps.text(at+nameKey, keys[nameKey]), Network: ps.text(at+networkKey, keys[networkKey]), Ranges: ps.ranges(at, keys[rangesKey])}
		if s := ps.text(at+stateKey, keys[stateKey]); s != "" {
			wanted[i].State = ps.state(at+stateKey, s)
		}
	}
	return wanted
}

func (ps *problems) ranges(at string, value any) []Range {
	items, ok := ps.items(at+rangesKey, value)
	if ok && len(items) == 0 {
		ps.add(at+rangesKey, "", "is empty: write a range, or remove the key where the pool exists")
	}
	var ranges []Range
	for i, item := range items {
		field := rangeField(at, i)
		keys, ok := ps.section(strings.TrimSuffix(field, "."), item)
		if !ok {
			ps.settledBelow(field, cidrKey)
			ranges = append(ranges, Range{})
			continue
		}
		ps.known(field, keys, cidrKey, oneNodeKey)
		var r Range
		if s := ps.text(field+cidrKey, keys[cidrKey]); s != "" {
			r.CIDR = ps.cidr(field+cidrKey, s)
		} else if keys[cidrKey] == nil {
			ps.add(field+cidrKey, "", "is missing: write a network, such as 10.2.0.0/16")
		}
		if r.OneNode, ok = ps.number(field+oneNodeKey, keys[oneNodeKey]); !ok && keys[oneNodeKey] == nil {
			ps.add(field+oneNodeKey, "", "is missing: write the prefix length of one node's block, such as 24")
		}
		ranges = append(ranges, r)
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

// settledBelow makes a key of a section that is none deaf.
func (ps *problems) settledBelow(at, key string) {
	ps.settle()
	ps.settled[at+key] = true
}

// known reports the keys of a section that nothing has.
func (ps *problems) known(at string, keys map[string]any, names ...string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Contains(names, key) {
			ps.add(at+printable(key), "", "is unknown: the keys here are %s", strings.Join(names, ", "))
		}
	}
}

func (ps *problems) section(field string, value any) (map[string]any, bool) {
	keys, ok := value.(map[string]any)
	if !ok {
		ps.wrongType(field, value, "a section with keys of its own")
	}
	return keys, ok
}

// items is a list; ok is false where there is none, and then an absent one is fine.
func (ps *problems) items(field string, value any) ([]any, bool) {
	if value == nil {
		return nil, false
	}
	items, ok := value.([]any)
	if !ok {
		ps.wrongType(field, value, "a list")
	}
	return items, ok
}

// text is a text, "" where there is none.
func (ps *problems) text(field string, value any) string {
	s, ok := value.(string)
	switch value.(type) {
	case nil:
	case json.Number, bool:
		ps.wrongType(field, value, "a text: write it in quotes")
	default:
		if !ok {
			ps.wrongType(field, value, "a text")
		} else if s = strings.TrimSpace(s); s == "" {
			ps.add(field, "", "is empty: write a text, or remove the key")
		}
	}
	return s
}

func (ps *problems) number(field string, value any) (int, bool) {
	if value == nil {
		return 0, false
	}
	number, _ := value.(json.Number)
	n, err := strconv.ParseInt(number.String(), 10, 32)
	if err != nil {
		ps.wrongType(field, value, "a whole number")
	}
	return int(n), err == nil
}

func (ps *problems) wrongType(field string, value any, right string) {
	shown := ""
	switch v := value.(type) {
	case string:
		shown, right = v, right+", not text"
	case json.Number:
		shown = v.String()
	case bool:
		shown = strconv.FormatBool(v)
	case []any:
		right += ", not a list"
	case map[string]any:
		right += ", not a section"
	}
	ps.add(field, shown, "must be %s", right)
}

// printable is a key for a message: quoted where it would not be seen as one.
func printable(key string) string {
	key = shorten(key)
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` || key == "" || strings.ContainsAny(key, " .") {
		return quoted
	}
	return key
}

// document is the content of the file's one YAML document.
func (ps *problems) document(file []byte) (map[string]any, bool) {
	value, ok, faults := yamldoc.Read(file)
	for _, f := range faults {
		switch {
		case f.Kind == yamldoc.Several:
			ps.add(wholeFile, "", "has more than one YAML document: remove the \"---\" between them, or all but one")
		case f.Kind == yamldoc.Syntax:
			ps.add(wholeFile, "", "is not valid YAML: %s", f.Text)
		case f.Key != "":
			ps.add(printable(f.Key), "", "is given twice, the second time in line %d: keep one", f.Line)
		default:
			ps.add(wholeFile, "", "has a key twice: %s", f.Text)
		}
	}
	content, mapping := value.(map[string]any)
	if value != nil && !mapping {
		ps.add(wholeFile, "", "must be made of keys and values, %s", example)
		return nil, false
	}
	return content, ok
}
