// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

func TestTextOfAPlan(t *testing.T) {
	c := with(pool("default", "10.1.0.0/16 24"), pool("keep", "10.5.0.0/16 24")).node(5, "default 1 open 12").node(16, "default 1 open 1").node(6)
	expectText(t, text(c.plan(t, grow)), `
CHANGE  POOL     NETWORK  RANGE                   STATE               GENERATION
add     pods-2   default  10.2.0.0/16 cut in /23  active              1
drain   default  default  10.1.0.0/16 cut in /24  active -> draining  1 -> 2

NODE          POOL     DRAINS        LEASES  OPENS                KEEPS
5 (node-5)    default  10.1.5.0/24   12      pods-2 10.2.10.0/23  keep 10.5.5.0/24
6 (node-6)    default  10.1.6.0/24   ?       pods-2 10.2.12.0/23  keep 10.5.6.0/24
16 (node-16)  default  10.1.16.0/24  1       pods-2 10.2.32.0/23  keep 10.5.16.0/24

3 blocks drain, 13 leases stay: pods keep their addresses, new ones come from elsewhere
warning: the leases in 1 block are not known: the node has not answered yet
`)
	expectText(t, text(with(pool("default", "10.1.0.0/16 24")).node(5).plan(t, "pools: [{name: blue, network: blue, ranges: [{cidr: 10.6.0.0/16, oneNodePrefixLen: 24}, {cidr: 'fd00:6::/48', oneNodePrefixLen: 64}]}]")), `
CHANGE  POOL  NETWORK  RANGE                                           STATE   GENERATION
add     blue  blue     10.6.0.0/16 cut in /24, fd00:6::/48 cut in /64  active  1
`)
	expectText(t, text(with(in("blue", pool("blue", "10.6.0.0/16 24"))).node(5, "blue 1 open 1").plan(t, "pools: [{name: blue, state: draining}]")), `
CHANGE  POOL  NETWORK  RANGE                   STATE               GENERATION
drain   blue  blue     10.6.0.0/16 cut in /24  active -> draining  1 -> 2

NODE        POOL  DRAINS       LEASES  OPENS  KEEPS
5 (node-5)  blue  10.6.5.0/24  1       -      -

1 block drains, 1 lease stays: pods keep their addresses, new ones come from elsewhere
warning: 1 node gets no new addresses: no pool of the network is open there any more
`)
	expectText(t, text(with(pool("default", "10.1.0.0/16 24"), as(poolplan.Draining, pool("a", "10.2.0.0/16 24")), as(poolplan.Draining, pool("b", "10.3.0.0/16 24"))).
		plan(t, "pools: [{name: a, state: removed}, {name: b}]")), `
CHANGE  POOL  NETWORK  RANGE                   STATE                GENERATION
remove  a     default  10.2.0.0/16 cut in /24  draining -> removed  2 -> 3
reopen  b     default  10.3.0.0/16 cut in /24  draining -> active   2 -> 3
`)
	expectText(t, text(c.plan(t, "pools: []")), "nothing to change\n")
}

func TestTextOfARefusal(t *testing.T) {
	c := with(pool("default", "10.1.0.0/16 24"), as(poolplan.Draining, pool("old", "10.3.0.0/16 24"))).
		node(5, "default 1 open 2", "old 2 closed 12").node(16, "default 1 open 2", "old 1 open 3").node(6)
	c.Nodes[2].Name = "bad\x1b[2J"
	expectText(t, text(c.plan(t, "pools: [{name: old, state: removed}]")), `
refused, nothing is changed

NODE          POOL  LEASES  STANDS IN THE WAY
5 (node-5)    old   12      has 12 leases
6 (bad?[2J)   old   ?       has not answered yet
16 (node-16)  old   3       has not answered yet: it has followed generation 1 of 2, with 3 leases
`)
	expectText(t, text(c.plan(t, "pools: [{name: old, state: removed}, {name: a, ranges: [{cidr: 10.1.0.0/16, oneNodePrefixLen: 24}]}, {name: b, state: draining}]")), `
refused, nothing is changed

  pools[1].ranges[0].cidr: "10.1.0.0/16" overlaps pool default, 10.1.0.0/16: give it addresses of its own, such as 10.2.0.0/16
  pools[2].state: "draining" is not a state of a pool that is not there: the pools are default, old; a new one is active

NODE          POOL  LEASES  STANDS IN THE WAY
5 (node-5)    old   12      has 12 leases
6 (bad?[2J)   old   ?       has not answered yet
16 (node-16)  old   3       has not answered yet: it has followed generation 1 of 2, with 3 leases
`)
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestTextSaysThatItCannotBeWritten(t *testing.T) {
	NewWithT(t).Expect(poolplan.Plan{}.Text(full{})).To(MatchError("write plan: disk full"))
}

func TestPlanAsJSON(t *testing.T) {
	g := NewWithT(t)
	c := with(pool("default", "10.1.0.0/16 24")).node(5, "default 1 open 12")
	out, err := json.Marshal(c.plan(t, grow))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(MatchJSON(`{
		"changes": [
			{"to": {"name": "pods-2", "network": "default", "ranges": [{"cidr": "10.2.0.0/16", "oneNodePrefixLen": 23}], "state": "active", "generation": 1, "origin": "apply"}},
			{"from": {"name": "default", "network": "default", "ranges": [{"cidr": "10.1.0.0/16", "oneNodePrefixLen": 24}], "state": "active", "generation": 1, "origin": "apply"},
			 "to": {"name": "default", "network": "default", "ranges": [{"cidr": "10.1.0.0/16", "oneNodePrefixLen": 24}], "state": "draining", "generation": 2, "origin": "apply"}}],
		"moves": [{"nodeID": 5, "nodeName": "node-5", "pool": "default", "drains": ["10.1.5.0/24"], "leases": 12, "followed": 1,
			"opens": [{"pool": "pods-2", "prefix": "10.2.10.0/23", "generation": 1}]}]}`))
}

// The example of the package comment.
func ExamplePlan_Text() {
	wanted, err := poolplan.Parse([]byte(`
pools:
- name: pods-2
  ranges:
  - cidr: 10.2.0.0/16
    oneNodePrefixLen: 23
- name: default
  state: draining
`))
	if err != nil {
		panic(err)
	}
	plan := poolplan.Make(poolplan.Situation{
		Pools: []poolplan.Pool{poolplan.FromCluster(cut("10.1.0.0/16 24"))},
		Nodes: []*kv.NodeRecord{{Id: 5, Name: "node-5", Instance: "c0ffee", Generation: 1}},
		Beats: []*kv.NodeBeat{{Id: 5, Instance: "c0ffee", Generation: 1, Pools: []*kv.PoolUse{{Pool: "default", Generation: 1, Open: true, Leases: 252}}}},
	}, wanted)
	if err := plan.Text(os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// CHANGE  POOL     NETWORK  RANGE                   STATE               GENERATION
	// add     pods-2   default  10.2.0.0/16 cut in /23  active              1
	// drain   default  default  10.1.0.0/16 cut in /24  active -> draining  1 -> 2
	//
	// NODE        POOL     DRAINS       LEASES  OPENS                KEEPS
	// 5 (node-5)  default  10.1.5.0/24  252     pods-2 10.2.10.0/23  -
	//
	// 1 block drains, 252 leases stay: pods keep their addresses, new ones come from elsewhere
}
