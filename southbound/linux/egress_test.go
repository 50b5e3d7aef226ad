// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// egressLab has one node, and a server behind the router with addresses outside of the
// cluster and in the range of its services.
type egressLab struct {
	*tunnelLab
	node   *labNode
	server *netlab.Namespace
	egress *southbound.Descriptor
	tables *nft
}

func newEgressLab(t testing.TB) *egressLab {
	t.Helper()
	lab := &egressLab{tunnelLab: newTunnelLab(t, 1), server: newNamespace(t)}
	lab.node = lab.nodes[0]
	lab.connect(lab.router, "to-server", lab.server, "uplink")
	for _, a := range []string{"198.51.100.1/24", "10.96.0.1/24", "2001:db8::1/64", "fd96::1/64"} {
		lab.address(lab.router, "to-server", a)
	}
	for _, a := range []string{"198.51.100.2/24", "10.96.0.2/24", "2001:db8::2/64", "fd96::2/64"} {
		lab.address(lab.server, "uplink", a)
	}
	lab.route(lab.server, "", "198.51.100.1", "")
	lab.route(lab.server, "", "2001:db8::1", "")
	lab.route(lab.router, "10.1.1.0/24", "10.99.1.2", "")
	lab.route(lab.router, "fd01:1::/64", "fd99:1::2", "")
	tables, err := openNFT(lab.node.net.Path())
	lab.must(err)
	t.Cleanup(func() { _ = tables.close() })
	lab.tables = tables
	lab.egress = (&egress{tables, newMonitor(lab.node.net.Path(), time.After)}).kind().Descriptor()
	return lab
}

func (l *egressLab) value() *kv.Egress {
	return &kv.Egress{
		Sources: l.node.subnets(),
		Direct:  []string{"10.1.0.0/16", "10.96.0.0/16", "fd01::/16", "fd96::/64"},
	}
}

// seen returns the address of a client as the server at addr sees it.
func (l *egressLab) seen(client *netlab.Namespace, addr string) string {
	l.t.Helper()
	var listener net.Listener
	l.must(l.server.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		return err
	}))
	defer listener.Close()
	var conn net.Conn
	l.must(client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
		return err
	}))
	defer conn.Close()
	accepted, err := listener.Accept()
	l.must(err)
	defer accepted.Close()
	host, _, err := net.SplitHostPort(accepted.RemoteAddr().String())
	l.must(err)
	return host
}

func (l *egressLab) retrieve(wanted *kv.Egress) []controller.Value {
	l.t.Helper()
	var want []controller.Value
	if wanted != nil {
		want = []controller.Value{{Key: kv.SinkEgress, Message: wanted}}
	}
	got, err := l.egress.Retrieve(l.t.Context(), want)
	l.must(err)
	return got
}

// do changes the node's nftables as another program.
func (l *egressLab) do(f func(c *nftables.Conn)) {
	l.t.Helper()
	c, err := l.tables.conn()
	l.must(err)
	f(c)
	l.must(c.Flush())
}

func TestEgressRewritesTheSourceOnlyOutsideOfTheCluster(t *testing.T) {
	t.Parallel()
	lab := newEgressLab(t)
	g := NewWithT(t)
	outside, inside := []string{"198.51.100.2", "2001:db8::2"}, []string{"10.96.0.2", "fd96::2"}
	pod, node := lab.node.podAddresses(), lab.node.underlay()
	see := func(what string, want ...string) {
		t.Helper()
		for i := range want {
			g.Expect(lab.seen(lab.node.pod, outside[i])).To(Equal(want[i]), "from outside, %s", what)
			g.Expect(lab.seen(lab.node.pod, inside[i])).To(Equal(pod[i]), "from inside, %s", what)
			g.Expect(lab.seen(lab.node.net, outside[i])).To(Equal(node[i]), "of the node itself, %s", what)
		}
	}
	see("before", pod...)
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, lab.value()))
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, lab.value()))
	see("with masquerade", node...)

	after := lab.value()
	after.Sources = after.Sources[1:]
	lab.must(lab.egress.Update(t.Context(), kv.SinkEgress, lab.value(), after))
	see("with masquerade of IPv6 only", pod[0], node[1])
	lab.must(lab.egress.Delete(t.Context(), kv.SinkEgress, after))
	see("after the removal", pod...)
	lab.must(lab.egress.Delete(t.Context(), kv.SinkEgress, after))
	g.Expect(lab.retrieve(nil)).To(BeEmpty())
}

func TestEgressIsRetrievedAndRepaired(t *testing.T) {
	lab := newEgressLab(t)
	g := NewWithT(t)
	want := lab.value()
	g.Expect(lab.retrieve(want)).To(BeEmpty())
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	equalValues(t, lab.retrieve(want), controller.Value{Key: kv.SinkEgress, Message: want})
	other := lab.value()
	other.Direct = other.Direct[1:]
	g.Expect(proto.Equal(lab.retrieve(other)[0].Message, other)).To(BeFalse())

	chain := func(c *nftables.Conn, name string) *nftables.Chain {
		all, err := nftChains(c)
		lab.must(err)
		return all[name]
	}
	rules := func(c *nftables.Conn, name string) []*nftables.Rule {
		found := chain(c, name)
		all, err := c.GetRules(found.Table, found)
		lab.must(err)
		return all
	}
	for what, damage := range map[string]func(c *nftables.Conn){
		"the table is removed":   func(c *nftables.Conn) { c.DelTable(chain(c, egressBase).Table) },
		"the table is flushed":   func(c *nftables.Conn) { c.FlushTable(chain(c, egressBase).Table) },
		"all tables are removed": func(c *nftables.Conn) { c.FlushRuleset() },
		"a rule is removed":      func(c *nftables.Conn) { lab.must(c.DelRule(rules(c, egressIPv4)[0])) },
		"a rule is added": func(c *nftables.Conn) {
			found := chain(c, egressIPv6)
			c.InsertRule(&nftables.Rule{Table: found.Table, Chain: found, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}})
		},
		"a rule is replaced, with its comment": func(c *nftables.Conn) {
			r := rules(c, egressIPv4)[0]
			r.Table = chain(c, egressIPv4).Table
			r.Exprs = append(matchPrefix(netip.MustParsePrefix("0.0.0.0/0"), false), &expr.Verdict{Kind: expr.VerdictReturn})
			c.ReplaceRule(r)
		},
		"the base chain has another priority": func(c *nftables.Conn) {
			base := chain(c, egressBase)
			old := rules(c, egressBase)
			c.FlushChain(base)
			c.DelChain(base)
			base.Priority = nftables.ChainPriorityRef(101)
			base = c.AddChain(base)
			for _, r := range old {
				c.AddRule(&nftables.Rule{Table: base.Table, Chain: base, Exprs: r.Exprs, UserData: r.UserData})
			}
		},
	} {
		lab.do(damage)
		got := lab.retrieve(want)
		if len(got) > 0 {
			g.Expect(proto.Equal(got[0].Message, want)).To(BeFalse(), "complete although %s", what)
			lab.must(lab.egress.Update(t.Context(), kv.SinkEgress, got[0].Message, want))
		} else {
			lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
		}
		equalValues(t, lab.retrieve(want), controller.Value{Key: kv.SinkEgress, Message: want})
		g.Expect(lab.seen(lab.node.pod, "198.51.100.2")).To(Equal(lab.node.underlay()[0]), what)
	}
}

func TestEgressLeavesOtherTablesAlone(t *testing.T) {
	lab := newEgressLab(t)
	theirs := &nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet}
	ruleset := func() (all []string) {
		c, err := lab.tables.conn()
		lab.must(err)
		chains, err := c.ListChains()
		lab.must(err)
		for _, chain := range chains {
			rules, err := c.GetRules(chain.Table, chain)
			lab.must(err)
			for _, r := range rules {
				all = append(all, chain.Table.Name+"/"+chain.Name+"/"+nftText(r))
			}
		}
		return slices.DeleteFunc(all, func(s string) bool { return strings.HasPrefix(s, nftTable) })
	}
	lab.do(func(c *nftables.Conn) {
		c.AddTable(theirs)
		for _, name := range []string{egressIPv4, egressBase} { // even with our names
			chain := c.AddChain(&nftables.Chain{Table: theirs, Name: name})
			c.AddRule(&nftables.Rule{Table: theirs, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
		}
	})
	g := NewWithT(t)
	before := ruleset()
	g.Expect(before).To(HaveLen(2))
	want := lab.value()
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	g.Expect(ruleset()).To(Equal(before))
	lab.must(lab.egress.Delete(t.Context(), kv.SinkEgress, want))
	g.Expect(ruleset()).To(Equal(before))
}

func TestEgressRemovesOnlyItsChainsOfOurTable(t *testing.T) {
	lab := newEgressLab(t)
	want := lab.value()
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	lab.do(func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Table: egressChains()[0].Table, Name: "another"}) })
	lab.must(lab.egress.Delete(t.Context(), kv.SinkEgress, want))
	c, err := lab.tables.conn()
	lab.must(err)
	left, err := nftChains(c)
	lab.must(err)
	g := NewWithT(t)
	g.Expect(left).To(HaveLen(1))
	g.Expect(left).To(HaveKey("another"))
}

func TestEgressWithManyDestinations(t *testing.T) {
	lab := newEgressLab(t)
	want := lab.value()
	for i := range 2000 {
		want.Direct = append(want.Direct, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24).String())
	}
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	equalValues(t, lab.retrieve(want), controller.Value{Key: kv.SinkEgress, Message: want})
	lab.must(lab.egress.Update(t.Context(), kv.SinkEgress, want, lab.value()))
	equalValues(t, lab.retrieve(lab.value()), controller.Value{Key: kv.SinkEgress, Message: lab.value()})
}

func TestInvalidEgressIsRefused(t *testing.T) {
	e := (&egress{}).kind().Descriptor()
	g := NewWithT(t)
	for field, v := range map[string]*kv.Egress{
		"sources": {Sources: []string{"10.1.1.0"}},
		"direct":  {Direct: []string{"10.1.1.1/24"}},
	} {
		g.Expect(e.Validate(kv.SinkEgress, v)).To(MatchError(ContainSubstring(field)))
	}
}
