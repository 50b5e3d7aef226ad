// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// rng is "10.1.0.0/16 24".
func rng(s string) poolplan.Range {
	cidr, length, _ := strings.Cut(s, " ")
	n, err := strconv.Atoi(length)
	if err != nil {
		panic(err)
	}
	return poolplan.Range{CIDR: netip.MustParsePrefix(cidr), OneNode: n}
}

// pool is an active one of network default, in generation 1.
func pool(name string, ranges ...string) poolplan.Pool {
	p := poolplan.Pool{Name: name, Network: poolplan.Default, Generation: 1, Origin: poolplan.OriginApply}
	for _, r := range ranges {
		p.Ranges = append(p.Ranges, rng(r))
	}
	return p
}

func in(network string, p poolplan.Pool) poolplan.Pool { p.Network = network; return p }

// cut is a cluster whose contiv.conf has the range.
func cut(s string) addrplan.Cluster {
	r := rng(s)
	return addrplan.Cluster{Families: []addrplan.Family{{Pods: r.CIDR, PodsOneNode: r.OneNode}}}
}

// as is p in another state, one or two generations on.
func as(s poolplan.State, p poolplan.Pool) poolplan.Pool {
	p.State = s
	p.Generation += uint64(s)
	return p
}

// cluster is pools with nodes that say what they have.
type cluster struct{ poolplan.Situation }

func with(pools ...poolplan.Pool) *cluster {
	c := &cluster{}
	c.Pools = pools
	c.Reserved = []poolplan.Reserved{
		{Name: "serviceCIDR", Net: netip.MustParsePrefix("10.96.0.0/12")},
		{Name: "nodeInterconnectCIDR"}, // DHCP
		{Name: "vxlanCIDR", Net: netip.MustParsePrefix("192.168.30.0/24")},
	}
	return c
}

// node adds one that says what each use is: "pods-2 3 open 7" is generation 3, 7 leases.
func (c *cluster) node(id uint32, uses ...string) *cluster {
	name := "node-" + strconv.Itoa(int(id))
	c.Nodes = append(c.Nodes, &kv.NodeRecord{Id: id, Name: name, Instance: name, Generation: 2})
	beat := &kv.NodeBeat{Id: id, Instance: name, Generation: 2}
	for _, s := range uses {
		f := strings.Fields(s)
		generation, _ := strconv.ParseUint(f[1], 10, 64)
		leases, _ := strconv.ParseUint(f[3], 10, 64)
		beat.Pools = append(beat.Pools, &kv.PoolUse{Pool: f[0], Generation: generation, Open: f[2] == "open", Leases: leases})
	}
	c.Beats = append(c.Beats, beat)
	return c
}

// plan returns the plan of a file for the cluster.
func (c *cluster) plan(t testing.TB, file string) poolplan.Plan {
	t.Helper()
	wanted, err := poolplan.Parse([]byte(file))
	if err != nil {
		t.Fatalf("%v\n%s", err, file)
	}
	return poolplan.Make(c.Situation, wanted)
}

// apply is plan, with its changes made.
func (c *cluster) apply(t testing.TB, file string) poolplan.Plan {
	t.Helper()
	p := c.plan(t, file)
	for _, ch := range p.Changes {
		c.store(ch.To)
	}
	return p
}

func (c *cluster) store(p poolplan.Pool) {
	for i := range c.Pools {
		if c.Pools[i].Name == p.Name {
			c.Pools[i] = p
			return
		}
	}
	c.Pools = append(c.Pools, p)
}

// lines are the problems of err, a line each.
func lines(g Gomega, err error) []string {
	var ps poolplan.Problems
	g.Expect(errors.As(err, &ps)).To(BeTrue(), "%v", err)
	var all []string
	for _, p := range ps {
		all = append(all, p.Error())
	}
	return all
}

// expectText compares texts that are written with an empty first line.
func expectText(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimPrefix(want, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func text(p poolplan.Plan) string {
	var b strings.Builder
	if err := p.Text(&b); err != nil {
		return err.Error()
	}
	return b.String()
}
