// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// pod is a pod of a node, attached as a runtime does.
type pod struct {
	netlab.Place
	*stage.Attachment
	node *node
}

// newPod makes a pod without a network.
func (n *node) newPod(name string) *pod {
	n.t.Helper()
	p := &pod{Place: netlab.Place{Name: name, Net: n.namespace()}, node: n}
	var err error
	p.Attachment, err = stage.NewAttachment(n.Agent, n.ns.Do, n.listPath(), name, p.Net.Path())
	n.must(err)
	return p
}

// add runs ADD.
func (p *pod) add() (err error) {
	p.Addresses, err = p.Add(p.node.t.Context())
	return err
}

func (p *pod) check() error { return p.Check(p.node.t.Context()) }

func (p *pod) del() error { return p.Del(p.node.t.Context()) }

// pod makes a pod and attaches it.
func (n *node) pod(name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	n.must(p.add())
	return p
}

// podIn makes a pod in a network.
func (n *node) podIn(network, name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	n.must(p.UsePool(network))
	n.Eventually(p.add, patience, pace).Should(Succeed()) // the node may not have followed the network yet
	return p
}

// network adds a pod network with a range of each family.
func (c *cluster) network(name, v4, v6 string) {
	c.t.Helper()
	file := filepath.Join(c.dir, name+".yaml")
	var text strings.Builder
	fmt.Fprintf(&text, "pools:\n- name: %[1]s\n  network: %[1]s\n  ranges:\n  - {cidr: %s, oneNodePrefixLen: 24}\n", name, v4)
	if c.v6 {
		fmt.Fprintf(&text, "  - {cidr: \"%s\", oneNodePrefixLen: 64}\n", v6)
	}
	c.must(os.WriteFile(file, []byte(text.String()), 0o600))
	out, err := c.nodes[0].CLI(c.t.Context(), "apply", "-f", file)
	c.Expect(err).NotTo(HaveOccurred(), out)
}

// reached waits until packets of each family come back.
func (c *cluster) reached(from, to netlab.Place) {
	c.t.Helper()
	for _, is4 := range c.families() {
		if !to.Addr(is4).IsValid() {
			continue
		}
		c.Eventually(func() error { _, err := netlab.Reach(c.t, from, to, is4); return err }, patience, pace).
			Should(Succeed(), "%s to %s", from.Name, to.Name)
	}
}

// unreached fails if a packet comes back.
func (c *cluster) unreached(from, to netlab.Place) {
	c.t.Helper()
	for _, is4 := range c.families() {
		e := netlab.NewEcho(c.t, to.Net, netip.AddrPortFrom(to.Addr(is4), 0))
		_ = from.Net.Do(func() error { // a pod of a network may have no route at all
			conn, err := net.Dial("udp", e.At().String())
			if err != nil {
				return err
			}
			defer conn.Close()
			return netlab.Answered(conn.(*net.UDPConn), 16, 3)
		})
		c.Expect(e.Heard()).To(BeZero(), "%s has heard %s", to.Name, from.Name)
		e.Close()
	}
}
