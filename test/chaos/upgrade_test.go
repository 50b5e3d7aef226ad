// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// fleet is a cluster whose podCIDRs a foreign controller assigns, and the pods
// that live in it.
type fleet struct {
	t       *testing.T
	g       *WithT
	store   registry
	members []*member
	told    map[string]map[string]string // by node and pod: its address
	pods    int
	waiting *member // has no podCIDR now
}

// newFleet starts nodes of a version, and assigns each a podCIDR.
func newFleet(t *testing.T, server *etcdtest.Server, program string, podCIDRs map[string]string, names ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, g: NewWithT(t), store: newRegistry(t, server.Endpoint()), told: map[string]map[string]string{}}
	for _, name := range names {
		f.store.assigns(t, name, "uid-"+name, podCIDRs[name])
		m := newMember(t, name, server)
		m.change(t, "ipamConfig: {", "ipamConfig: {useExternalIPAM: true, ")
		m.forLastVersion(t)
		m.program = program
		m.join(t)
		f.members, f.told[name] = append(f.members, m), map[string]string{}
	}
	return f
}

// allocate has nodes lease an address for a new pod each, from their podCIDRs,
// and ask again for all that they leased before.
func (f *fleet) allocate(when string, members ...*member) {
	f.t.Helper()
	for _, m := range members {
		if f.pods++; m != f.waiting {
			f.told[m.name][fmt.Sprint("pod", f.pods)] = ""
		}
		for id, was := range f.told[m.name] {
			answer := m.ask(f.t, Add, id)
			f.g.Expect(answer).To(HavePrefix("10.1."), "%s: %s of %s", when, id, m.name)
			f.g.Expect(was).To(Or(BeEmpty(), Equal(answer)), "%s: %s of %s keeps its address", when, id, m.name)
			f.told[m.name][id] = answer
		}
	}
	holders := map[string]string{}
	for node, pods := range f.told {
		for id, answer := range pods {
			f.g.Expect(holders).NotTo(HaveKey(answer), "%s: %s of %s", when, id, node)
			holders[answer] = id + " of " + node
		}
	}
}

// replaces ends an agent, lets the others allocate meanwhile, and starts another
// version on the node.
func (f *fleet) replaces(m *member, program string, between ...func()) {
	f.t.Helper()
	m.kill()
	for _, x := range f.members {
		if x != m {
			f.allocate("while "+m.name+" is away", x)
		}
	}
	for _, do := range between {
		do()
	}
	m.program = program
	m.join(f.t)
	f.allocate("after the start of "+m.name, f.members...)
}

// refuses waits until a node that was assigned the podCIDR of another one refuses
// to allocate from it, and says so.
func (f *fleet) refuses(m *member, holder, cidr string) {
	f.t.Helper()
	says := And(HavePrefix("refused: "), MatchRegexp(`node %s holds (\(by node ID [0-9]+\) )?%s`, holder, cidr))
	f.g.Eventually(func() string {
		f.pods++
		id := fmt.Sprint("pod", f.pods)
		answer := m.ask(f.t, Add, id)
		if strings.HasPrefix(answer, "10.1.") { // it has not heard of the podCIDR yet
			f.told[m.name][id] = answer
			f.g.Expect(answer).NotTo(HavePrefix(strings.TrimSuffix(cidr, "0/27")))
		}
		return answer
	}, healing, 20*time.Millisecond).Should(says)
	f.g.Expect(m.waits(holder)).To(Succeed())
}

// claims returns the nodes that hold the claim of a block.
func (f *fleet) claims(cidr string) (names []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := claims.List(ctx, f.store.store)
	for _, c := range all {
		if c.Held && c.Prefix == cidr {
			names = append(names, c.Node)
		}
	}
	return names, err
}

// The nodes of a cluster are upgraded one after the other, and one goes back and
// is upgraded again. Meanwhile both versions run side by side: no node waits, no
// lease is lost, and no address is held twice, whatever the controller assigns.
func TestNodesAreUpgradedOneAfterTheOther(t *testing.T) {
	old := buildLastVersion(t)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	podCIDRs := map[string]string{"a": "10.1.77.0/27", "b": "10.1.78.0/27", "c": "10.1.79.0/27"}
	f := newFleet(t, server, old, podCIDRs, "a", "b", "c")
	a, b, c := f.members[0], f.members[1], f.members[2]
	f.allocate("the last version", a, b, c)

	f.replaces(a, "")
	g.Eventually(func() ([]string, error) { return f.claims(podCIDRs["a"]) }, healing, 20*time.Millisecond).Should(ConsistOf("a"))
	g.Expect(f.claims(podCIDRs["b"])).To(BeEmpty(), "the test needs an agent that knows no claims")
	f.store.assigns(t, "a", "uid-a", podCIDRs["b"])
	f.refuses(a, "b", podCIDRs["b"])
	f.waiting = a
	f.replaces(b, "") // its leases come before a claim that waits
	f.waiting = nil
	f.refuses(a, "b", podCIDRs["b"])
	f.store.assigns(t, "a", "uid-a", podCIDRs["a"])
	a.awaitFollowing(t)
	f.allocate("with its podCIDR back", f.members...)
	f.replaces(c, "")
	for name, cidr := range podCIDRs {
		g.Eventually(func() ([]string, error) { return f.claims(cidr) }, healing, 20*time.Millisecond).Should(ConsistOf(name))
	}

	f.replaces(b, old, func() {
		out, err := b.cli("database", "downgrade", "--state-dir", b.stateDir, "--run-dir", b.runDir)
		g.Expect(err).NotTo(HaveOccurred(), out)
	})
	g.Expect(f.claims(podCIDRs["b"])).To(ConsistOf("b"), "what the agent does not know it leaves alone")
	f.store.assigns(t, "c", "uid-c", podCIDRs["b"])
	f.refuses(c, "b", podCIDRs["b"])
	const later = "10.1.80.0/27"
	f.store.assigns(t, "b", "uid-b", later)
	g.Eventually(b.subnet, healing, 20*time.Millisecond).Should(Equal(later))
	f.allocate("from a podCIDR that it was assigned as the last version", b)
	f.store.assigns(t, "c", "uid-c", later)
	f.refuses(c, "b", later)
	f.waiting = c
	f.replaces(b, "")
	f.refuses(c, "b", later)
	f.store.assigns(t, "c", "uid-c", podCIDRs["c"])
	c.awaitFollowing(t)
	g.Expect(f.claims(podCIDRs["b"])).To(ConsistOf("b"), "it has leases there")
	g.Eventually(func() ([]string, error) { return f.claims(later) }, healing, 20*time.Millisecond).Should(ConsistOf("b"))
	for _, m := range f.members {
		for id := range f.told[m.name] {
			g.Expect(m.ask(t, Del, id)).To(BeEmpty())
		}
	}
}
