// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// Each difference from the value is named, at both ends, and nothing is changed.
func TestInspectAWire(t *testing.T) {
	l := newWireLab(t, Options{})
	for _, c := range []struct {
		name, saying string
		inPod        bool
		damage       string // arguments of ip; HOST is the name of the host end, POD4 and POD6 the addresses
	}{
		{"nothing", "", false, "link show"},
		{"the link", "the node has no link", false, "link del HOST"},
		{"the alias", "alias", false, "link set HOST alias other"},
		{"the group", "group", false, "link set HOST group 7"},
		{"the host end is down", "is down", false, "link set HOST down"},
		{"the MAC address of the host end", "02:00:00:00:00:09", false, "link set HOST address 02:00:00:00:00:09"},
		{"the MTU of the host end", "MTU 1300", false, "link set HOST mtu 1300"},
		{"the gateway's address", "address 10.1.5.1/32 of the node is missing", false, "address del 10.1.5.1/32 dev HOST"},
		{"a route of the node", "route POD4/32 of the node is missing", false, "route del POD4/32"},
		{"a route of the node, IPv6", "route POD6/128 of the node is missing", false, "-6 route del POD6/128"},
		{"a neighbour of the node", "neighbour POD4", false, "neighbour del POD4 dev HOST"},
		{"another neighbour", "is another one", false, "neighbour replace POD4 lladdr 02:00:00:00:00:09 dev HOST nud permanent"},
		{"an address too many", "address 10.9.9.9/32 of the node is left over", false, "address add 10.9.9.9/32 dev HOST"},
		{"an address of the pod", "address POD4/32 of", true, "address del POD4/32 dev eth0"},
		{"the default route", "route 0.0.0.0/0 via 10.1.5.1", true, "route del default"},
		{"the default route, IPv6", "route ::/0 via fd01::1", true, "-6 route del default"},
		{"the gateway's neighbour", "neighbour 10.1.5.1", true, "neighbour del 10.1.5.1 dev eth0"},
		{"the MTU of the pod's end", "MTU 1300", true, "link set eth0 mtu 1300"},
		{"the name of the pod's end", "has no link eth0", true, "link set eth0 down name eth7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			p := l.pod()
			l.create(p)
			insert := strings.NewReplacer("HOST", p.value.GetWire().GetHostIfName(), "POD4", p.ip[0].String(), "POD6", p.ip[1].String())
			ns := l.host
			if c.inPod {
				ns = p.Namespace
			}
			runIP(g, ns, insert.Replace(c.damage))
			before := l.retrieved(p)
			err := l.wires.Inspect(t.Context(), p.key, p.value)
			g.Expect(l.retrieved(p)).To(Equal(before), "it only reads")
			if c.saying == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(insert.Replace(c.saying))))
				g.Expect(before[p.key]).NotTo(Equal(done), "a resync finds the same")
			}
			l.delete(p)
		})
	}
}

// An administrator sees all of the damage at once.
func TestInspectNamesAllDifferencesTogether(t *testing.T) {
	l := newWireLab(t, Options{})
	g := l.Gomega
	p := l.pod()
	l.create(p)
	name := p.value.GetWire().GetHostIfName()
	runIP(g, l.host, "link set "+name+" address 02:00:00:00:00:09 alias other mtu 1300 down")
	runIP(g, l.host, "link set "+name+" group 7")
	runIP(g, p.Namespace, "link set eth0 address 02:00:00:00:00:09 mtu 1300 down")
	err := l.wires.Inspect(t.Context(), p.key, p.value)
	for _, differs := range []string{"is down", "has MAC address 02:00:00:00:00:09", "has MTU 1300"} {
		g.Expect(err).To(MatchError(ContainSubstring("link %s of the node %s", name, differs)))
		g.Expect(err).To(MatchError(ContainSubstring("link eth0 of %s %s", p.Path(), differs)))
	}
	for _, differs := range []string{`has alias "other"`, "has group 0x7"} {
		g.Expect(err).To(MatchError(ContainSubstring("link %s of the node %s", name, differs)))
	}
}

// A pod whose namespace has ended has no wire, and a value without a wire nothing to look at.
func TestInspectWithoutANamespace(t *testing.T) {
	l := newWireLab(t, Options{})
	p := l.pod()
	l.create(p)
	p.value.Wire.Netns += "-gone"
	l.Expect(l.wires.Inspect(t.Context(), p.key, p.value)).NotTo(Succeed())
	p.value.Wire = nil
	l.Expect(l.wires.Inspect(t.Context(), p.key, p.value)).To(Succeed())
}

// runIP runs ip in a namespace.
func runIP(g Gomega, ns *netlab.Namespace, args string) {
	var out []byte
	g.Expect(ns.Do(func() (err error) {
		out, err = exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		return err
	})).To(Succeed(), "ip %s: %s", args, &out)
}
