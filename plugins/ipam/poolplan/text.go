// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"fmt"
	"io"
	"strings"

	"github.com/cadastre/cadastre/internal/columns"
)

// Text writes the plan for people.
func (p Plan) Text(w io.Writer) error {
	text := ""
	switch {
	case len(p.Problems) > 0 || len(p.Blocks) > 0:
		text = p.refusal()
	case len(p.Changes) == 0:
		text = "nothing to change\n"
	default:
		text = p.changeText() + p.moveText()
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

func (p Plan) changeText() string {
	g := columns.Rows{{"CHANGE", "POOL", "NETWORK", "RANGE", "STATE", "GENERATION"}}
	for _, c := range p.Changes {
		state, generation := c.To.State.String(), fmt.Sprint(c.To.Generation)
		if c.kind() != adds {
			state, generation = c.From.State.String()+" -> "+state, fmt.Sprint(c.From.Generation, " -> ", generation)
		}
		g = append(g, []string{c.verb(), c.To.Name, c.To.Network, listed(c.To.Ranges), state, generation})
	}
	return g.String()
}

func (p Plan) moveText() string {
	if len(p.Moves) == 0 {
		return ""
	}
	g, leases, silent, stuck := columns.Rows{{"NODE", "POOL", "DRAINS", "LEASES", "OPENS", "KEEPS"}}, uint64(0), 0, 0
	for _, m := range p.Moves {
		count := fmt.Sprint(m.Leases)
		if m.Followed == 0 {
			count = "?"
			silent++
		}
		if len(m.Opens)+len(m.Keeps) == 0 {
			stuck++
		}
		leases += m.Leases
		node := fmt.Sprintf("%d (%s)", m.NodeID, m.NodeName)
		g = append(g, []string{node, m.Pool, joined(m.Drains), count, joined(m.Opens), joined(m.Keeps)})
	}
	text := "\n" + g.String() + fmt.Sprintf("\n%s, %s: pods keep their addresses, new ones come from elsewhere\n",
		plural(len(p.Moves), "block drains", "blocks drain"), plural(leases, "lease stays", "leases stay"))
	if silent > 0 {
		text += fmt.Sprintf("warning: the leases in %s are not known: the node has not answered yet\n",
			plural(silent, "block", "blocks"))
	}
	if stuck > 0 {
		text += fmt.Sprintf("warning: %s: no pool of the network is open there any more\n",
			plural(stuck, "node gets no new addresses", "nodes get no new addresses"))
	}
	return text
}

// refusal describes the reason why nothing is changed.
func (p Plan) refusal() string {
	text := "refused, nothing is changed\n"
	if len(p.Problems) > 0 {
		text += "\n"
	}
	for _, one := range p.Problems {
		text += "  " + columns.Clean(one.Error()) + "\n"
	}
	if len(p.Blocks) == 0 {
		return text
	}
	g := columns.Rows{{"NODE", "POOL", "LEASES", "STANDS IN THE WAY"}}
	for _, b := range p.Blocks {
		leases := fmt.Sprint(b.Leases)
		if b.Followed == 0 {
			leases = "?"
		}
		g = append(g, []string{fmt.Sprintf("%d (%s)", b.NodeID, b.NodeName), b.Pool, leases, b.reason()})
	}
	return text + "\n" + g.String()
}

func joined[T fmt.Stringer](all []T) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return strings.Join(texts, ", ")
}

// plural returns "1 lease", "2 leases".
func plural[N int | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
