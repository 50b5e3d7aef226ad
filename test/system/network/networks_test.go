// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// network adds a pod network with one range of each family, and waits until all nodes have
// blocks of it.
func (c *cluster) network(name, v4, v6 string) {
	c.t.Helper()
	file := filepath.Join(c.dir, name+".yaml")
	var text strings.Builder
	fmt.Fprintf(&text, "pools:\n- name: %[1]s\n  network: %[1]s\n  ranges:\n", name)
	if c.v4 {
		fmt.Fprintf(&text, "  - {cidr: %s, oneNodePrefixLen: 24}\n", v4)
	}
	if c.v6 {
		fmt.Fprintf(&text, "  - {cidr: \"%s\", oneNodePrefixLen: 64}\n", v6)
	}
	c.must(os.WriteFile(file, []byte(text.String()), 0o600))
	out, err := c.nodes[0].CLI(c.t.Context(), "apply", "-f", file)
	c.Expect(err).NotTo(HaveOccurred(), out)
}

// podIn makes a pod in a network.
func (n *node) podIn(network, name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	n.must(p.UsePool(network))
	n.Eventually(p.add, patience, pace).Should(Succeed()) // the node may not have followed the network yet
	return p
}

// networkLink returns the name of the link of a network, which it has by its alias.
func (n *node) networkLink(network string) string {
	n.t.Helper()
	var links []struct {
		Name  string `json:"ifname"`
		Alias string `json:"ifalias"`
	}
	n.must(json.Unmarshal([]byte(n.show(n.ns, "-j link show type vxlan")), &links))
	for _, l := range links {
		if l.Alias == "cadastre:network/"+network {
			return l.Name
		}
	}
	n.t.Fatalf("%s has no link of network %s: %v", n.Node, network, links)
	return ""
}

// Pods of a network reach each other on one node and across nodes, over every transport.
func TestANetworkAcrossNodes(t *testing.T) {
	for _, l := range matrix() {
		t.Run(l.String(), func(t *testing.T) {
			c := newCluster(t, l)
			c.network("blue", "10.5.0.0/16", "fd05::/48")
			one, two := c.nodes[0], c.nodes[1]
			a, b, far := one.podIn("blue", "a"), one.podIn("blue", "b"), two.podIn("blue", "far")
			for _, is4 := range l.families() {
				for _, x := range [][2]*pod{{a, b}, {a, far}, {far, b}} {
					c.Eventually(func() error { _, err := c.reach(x[0].place, x[1].place, is4); return err }, patience, pace).
						Should(Succeed(), "%s to %s", x[0].name, x[1].name)
					seen, err := c.reach(x[1].place, x[0].place, is4)
					c.must(err)
					c.Expect(seen).To(Equal(x[1].addr(is4)))
				}
			}
			if l.transport != "vxlan" {
				return
			}
			link := one.networkLink("blue")
			outsider := one.pod("outsider")
			for _, is4 := range l.families() {
				_, err := c.reach(outsider.place, far.place, is4)
				c.Expect(err).To(HaveOccurred(), "the default network has no route to network blue")
			}
			reached := func(what string) {
				for _, is4 := range l.families() {
					c.Eventually(func() error { _, err := c.reach(a.place, far.place, is4); return err }, patience, pace).Should(Succeed(), what)
				}
			}
			c.ip(one.ns, "link del "+link)
			reached("the link was removed")
			for _, family := range []string{"-4", "-6"} {
				c.run(one.ns, "ip", family, "rule", "del", "iif", link)
			}
			reached("the rules were removed")
			c.ip(one.ns, "neighbour flush dev "+link+" nud permanent")
			reached("the neighbours were removed")
			one.kill()
			c.ip(one.ns, "link del "+link)
			one.launch()
			one.await()
			reached("the agent was killed and the link removed")
			c.Expect(one.networkLink("blue")).To(Equal(link))
		})
	}
}
