// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// Each attribute of a plan is compared, and what the comparison finds is changed.
func TestALinkIsDressed(t *testing.T) {
	l := newWireLab(t, Options{})
	g, ns := l.Gomega, l.host
	node, err := rtnl.Open(ns.Path())
	l.must(err)
	t.Cleanup(func() { l.must(node.Close()) })
	s, err := node.Dial()
	l.must(err)
	t.Cleanup(func() { l.must(s.Close()) })

	plan := linkPlan{
		alias:       aliasPrefix + "test",
		group:       7,
		mtu:         1400,
		mac:         hardware{2, 0, 0, 0, 0, 1},
		noFilter:    true,
		noLinkLocal: true,
		noRouters:   true,
	}
	read := func() hostLink {
		have, found, err := getLink(s, "link0")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(BeTrue())
		return have
	}
	dress := func() {
		have := read()
		g.Expect(plan.writeSettings(have, node.Do)).To(Succeed())
		g.Expect(s.Run(plan.requests(have))).To(Succeed())
		have = read()
		g.Expect(plan.differences(have, ofNode)).To(Succeed())
		g.Expect(plan.requests(have)).To(BeEmpty())
		g.Expect(plan.writeSettings(have, nil)).To(Succeed(), "no namespace is entered for nothing")
	}
	runIP(g, ns, "link add link0 type veth peer name link1")
	dress()
	damages := map[string]string{
		"is down":                        "link set link0 down",
		`alias "x", not "cadastre:test"`: "link set link0 alias x",
		"group 0x9, not 0x7":             "link set link0 group 9",
		"MTU 1500, not 1400":             "link set link0 mtu 1500",
		"MAC address 02:00:00:00:00:09, not 02:00:00:00:00:01": "link set link0 address 02:00:00:00:00:09",
		"addr_gen_mode": "net.ipv6.conf.link0.addr_gen_mode=0",
		"rp_filter":     "net.ipv4.conf.link0.rp_filter=1",
		"accept_ra":     "net.ipv6.conf.link0.accept_ra=2",
	}
	damage := func(how string) {
		if name, value, is := strings.Cut(how, "="); is {
			setting(t, ns, name, value)
		} else {
			runIP(g, ns, how)
		}
	}
	for says, how := range damages {
		damage(how)
		g.Expect(plan.differences(read(), ofNode)).To(MatchError(And(
			HavePrefix("link link0 of the node "), ContainSubstring(says), Not(ContainSubstring("\n")),
		)))
		dress()
	}
	for _, how := range damages {
		damage(how)
	}
	for says := range damages {
		g.Expect(plan.differences(read(), ofNode)).To(MatchError(ContainSubstring(says)))
	}
	dress()
	damage("link set link0 down")
	g.Expect(linkPlan{}.differences(read(), ofNode)).To(MatchError("link link0 of the node is down"))
}

// On a router the kernel ignores the setting, so it is no difference; it is changed all the same,
// because the node may be a host again later.
func TestALinkOfARouterIgnoresRouters(t *testing.T) {
	plan := linkPlan{noRouters: true}
	have := hostLink{up: true, accepts: true}
	g := NewWithT(t)
	g.Expect(plan.differences(have, ofNode)).To(Succeed())
	var entered int
	g.Expect(plan.writeSettings(have, func(func() error) error { entered++; return nil })).To(Succeed())
	g.Expect(entered).To(Equal(1))
}
