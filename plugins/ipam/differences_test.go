// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// says makes the cluster say that this node has these pod CIDRs.
func (n *node) publishes(cidrs ...string) {
	own := &nodesync.Node{ID: 5, Name: thisNode}
	for _, c := range cidrs {
		own.PodCIDRs = append(own.PodCIDRs, netip.MustParsePrefix(c))
	}
	n.nodes.all = nodesync.Nodes{thisNode: own}
	n.podCIDRs(cidrs...)
}

func TestNodeIDAndNodeObjectDiffer(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		published  []string
		want       []string // parts of the report; none: there is none
	}{
		{"the Node object says nothing", defaults, nil, nil},
		{"both say the same", defaults, []string{"10.1.5.0/24"}, nil},
		{"both say the same, in other words", defaults, []string{"10.1.5.7/24"}, nil},
		{"the node ID counts", defaults, []string{"10.244.3.0/24"}, []string{"Mismatch: node ID 5 stands for 10.1.5.0/24", "for 10.244.3.0/24", "the node ID counts"}},
		{"the Node object counts", external, []string{"10.244.3.0/24"}, []string{"Mismatch: node ID 5 stands for 10.1.5.0/24", "for 10.244.3.0/24", "the Node object counts"}},
		{"neither counts", "cadastre: {podBlocks: static, staticPodCIDRs: [10.9.0.0/28]}", []string{"10.244.3.0/24"}, []string{"Mismatch: node ID 5 stands for 10.1.5.0/24", "for 10.244.3.0/24", "neither counts: cadastre.staticPodCIDRs does"}},
		{"external, and both say the same", external, []string{"10.1.5.0/24"}, nil},
		{"a family that is not configured", defaults, []string{"fd00:5::/64"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t, c.conf, 5)
			n.publishes(c.published...)
			g.Expect(n.resync()).To(Succeed())
			found := n.Mismatch()
			if len(c.want) == 0 {
				g.Expect(found).To(BeEmpty())
				return
			}
			for _, part := range c.want {
				g.Expect(found).To(ContainSubstring(part))
			}
			reports := 0
			for _, note := range n.Notes() {
				if strings.HasPrefix(note, "Mismatch") {
					reports++
				}
			}
			g.Expect(reports).To(Equal(1), "one clear report")
		})
	}
}

func TestMismatchIsSeenWhenItComesAndWhenItGoes(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	g.Expect(n.Mismatch()).To(BeEmpty())
	var log bytes.Buffer
	n.Log = slog.New(slog.NewTextHandler(&log, nil))

	n.publishes("10.244.3.0/24")
	for range 3 {
		_, err := n.update(now(thisNode, "10.244.3.0/24"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(n.resync()).To(Succeed())
	}
	g.Expect(n.Mismatch()).To(ContainSubstring("10.244.3.0/24"))
	g.Expect(strings.Count(log.String(), `level=WARN msg="Mismatch: `)).To(Equal(1), "it is logged once: %s", &log)
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.5.0/24"), "the node ID still counts")

	n.publishes()
	for range 3 {
		_, err := n.update(now(thisNode))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(n.Mismatch()).To(BeEmpty())
	g.Expect(strings.Count(log.String(), `level=INFO msg="node ID and Node object agree again"`)).To(Equal(1), "so is its end: %s", &log)
}
