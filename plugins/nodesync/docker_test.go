// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// TestABeatHasDockersSubnets: a beat names at most 64 of them, and counts the others.
func TestABeatHasDockersSubnets(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	subnets := []netip.Prefix{netip.MustParsePrefix("172.19.0.0/16"), netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("172.19.0.0/16")}
	n := newNode(t, store, who("a"), newDisk(), func(d *nodesync.IDClaimerDeps) {
		d.Docker = func() []netip.Prefix { return slices.Clone(subnets) }
	}).confirm(t)
	beat := beatOf(g, store, n.ID())
	g.Expect(beat.DockerSubnets).To(Equal([]string{"172.18.0.0/16", "172.19.0.0/16"}))
	g.Expect(beat.DockerSubnetsMore).To(BeZero())

	for i := range 70 {
		subnets = append(subnets, netip.MustParsePrefix(fmt.Sprintf("10.200.%d.0/24", i)))
	}
	n.confirm(t)
	beat = beatOf(g, store, n.ID())
	g.Expect(beat.DockerSubnets).To(HaveLen(kv.MaxDockerSubnets))
	g.Expect(beat.DockerSubnetsMore).To(Equal(uint32(8)))
	subnets = nil
	n.confirm(t)
	g.Expect(beatOf(g, store, n.ID()).DockerSubnets).To(BeEmpty())
}
