// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/witness/findings"
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, prefix(text))
	}
	return all
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// healthy returns a cluster of two nodes without findings: podCIDRs with claims, blocks
// that follow from IDs, NetResourceSets and Docker's networks.
func healthy() findings.ClusterState {
	s := findings.ClusterState{
		Kubernetes:   true,
		SetsKnown:    true,
		Pools:        []findings.ClusterPool{{Name: "default", Ranges: prefixes("10.1.0.0/16", "fd00:1::/48")}, {Name: "blue", Ranges: prefixes("10.2.0.0/16")}},
		AddressPools: []findings.ClusterPool{{Name: "main", Ranges: prefixes("10.4.0.0/16")}},
		Services:     prefixes("10.96.0.0/12", "fd00:96::/108"),
	}
	for i, name := range []string{"a", "b"} {
		id := uint32(i + 1)
		pods := prefix(fmt.Sprintf("10.1.%d.0/24", id))
		block := prefix(fmt.Sprintf("10.4.%d.0/24", id))
		s.Nodes = append(s.Nodes, findings.ClusterNode{Name: name, Addrs: []netip.Addr{addr(fmt.Sprintf("192.168.0.%d", id))}, Pods: []netip.Prefix{pods}})
		s.IDs = append(s.IDs, findings.ClusterID{ID: id, Node: name, Addrs: []netip.Addr{addr(fmt.Sprintf("192.168.16.%d", id))}, Blocks: []netip.Prefix{pods, block}})
		s.Claims = append(s.Claims,
			findings.ClusterClaim{Node: name, Network: "default", Prefix: pods, Held: true},
			findings.ClusterClaim{Node: name, Network: "nodes", Prefix: prefix(fmt.Sprintf("192.168.16.%d/32", 100+id)), Held: true})
		s.Sets = append(s.Sets, findings.ClusterSet{Node: name, Blocks: []findings.ClusterBlock{{Prefix: block, Pool: "main"}}})
		s.Docker = append(s.Docker, findings.ClusterDocker{Node: name, Prefix: prefix("172.18.0.0/16")})
	}
	return s
}

func TestAHealthyClusterHasNoFindings(t *testing.T) {
	NewWithT(t).Expect(findings.CompareCluster(healthy())).To(BeEmpty())
	NewWithT(t).Expect(findings.CompareCluster(findings.ClusterState{})).To(BeEmpty())
}

func TestFindingsAboutTheCluster(t *testing.T) {
	gone := findings.ClusterID{ID: 9, Node: "gone", Silent: true, Blocks: prefixes("10.1.9.0/24")}
	for name, c := range map[string]struct {
		change func(*findings.ClusterState)
		number string // "": no finding
		text   string
		object string // one statement of the evidence
	}{
		"two Nodes have one podCIDR": {
			func(s *findings.ClusterState) { s.Nodes[1].Pods = prefixes("10.1.1.0/24") },
			"K101", "addresses of block 10.1.1.0/24 are on 2 nodes: a, b", "b: podCIDRs of the Node has 10.1.1.0/24",
		},
		"a podCIDR is inside that of another Node": {
			func(s *findings.ClusterState) { s.Nodes[1].Pods = prefixes("10.1.1.128/25") },
			"K101", "addresses of block 10.1.1.0/24 are on 2 nodes: a, b", "b: podCIDRs of the Node has 10.1.1.128/25",
		},
		"a claim contains the podCIDR of another Node": {
			func(s *findings.ClusterState) { s.Claims[0].Prefix = prefix("10.1.0.0/16") },
			"K101", "addresses of block 10.1.0.0/16 are on 2 nodes: a, b", "a: a claim has 10.1.0.0/16",
		},
		"a pending claim of another node's block": {change: func(s *findings.ClusterState) {
			s.Claims = append(s.Claims, findings.ClusterClaim{Node: "b", Network: "default", Prefix: prefix("10.1.1.0/24")})
		}},
		"a block follows from the ID of another node": {
			func(s *findings.ClusterState) { s.IDs[1].Blocks = append(s.IDs[1].Blocks, prefix("10.1.1.0/24")) },
			"K101", "addresses of block 10.1.1.0/24 are on 2 nodes: a, b", "b: the record of node ID 2 has 10.1.1.0/24",
		},
		"two NetResourceSets have one address": {
			func(s *findings.ClusterState) {
				s.Sets[1].Blocks = append(s.Sets[1].Blocks, findings.ClusterBlock{Prefix: prefix("10.4.1.7/32"), Pool: "main"})
			},
			"K101", "addresses of block 10.4.1.0/24 are on 2 nodes: a, b", "b: the NetResourceSet has 10.4.1.7/32",
		},
		"two nodes have one address": {
			func(s *findings.ClusterState) { s.IDs[1].Addrs[0] = s.IDs[0].Addrs[0] },
			"K102", "address 192.168.16.1 is on 2 nodes: a, b", "b: the record of node ID 2 has 192.168.16.1/32",
		},
		"a pinned address follows from another ID": {
			func(s *findings.ClusterState) { s.Claims[3].Prefix = prefix("192.168.16.1/32") },
			"K102", "address 192.168.16.1 is on 2 nodes: a, b", "b: a claim has 192.168.16.1/32",
		},
		"a node ID without a node": {
			func(s *findings.ClusterState) { s.IDs = append(s.IDs, gone) },
			"K111", "node ID 9 is held by node gone, which the cluster does not have", "there is no Node gone",
		},
		"the agent of a machine outside of Kubernetes": {change: func(s *findings.ClusterState) {
			alive := gone
			alive.Silent = false
			s.IDs = append(s.IDs, alive)
			s.Claims = append(s.Claims, findings.ClusterClaim{Node: "gone", Network: "default", Prefix: prefix("10.1.9.0/24"), Held: true})
		}},
		"a node ID, and the Nodes are not known": {change: func(s *findings.ClusterState) {
			s.Kubernetes, s.Nodes = false, nil
			s.IDs[0].Silent = true
		}},
		"a claim without a node": {
			func(s *findings.ClusterState) {
				s.Claims = append(s.Claims, findings.ClusterClaim{Node: "gone", Network: "default", Prefix: prefix("10.1.9.0/24"), Held: true, Silent: true})
			},
			"K112", "10.1.9.0/24 is claimed by node gone, which the cluster does not have", "there is no Node gone",
		},
		"a NetResourceSet without a node": {
			func(s *findings.ClusterState) { s.Sets = append(s.Sets, findings.ClusterSet{Node: "gone"}) },
			"K113", "NetResourceSet gone is of a node that the cluster does not have", "there is no Node gone",
		},
		"a block without a set": {
			func(s *findings.ClusterState) { s.Sets[0].Blocks = nil },
			"K121", "node a uses block 10.4.1.0/24 of an AddressPool, and its NetResourceSet does not have it", "the record of node ID 1 has 10.4.1.0/24",
		},
		"a block without a set, and the sets are not known": {change: func(s *findings.ClusterState) { s.SetsKnown, s.Sets, s.AddressPools = false, nil, nil }},
		"a set's block is outside of its pool": {
			func(s *findings.ClusterState) { s.AddressPools[0].Ranges = prefixes("10.4.1.0/24") },
			"K122", "NetResourceSet b has block 10.4.2.0/24, which is not part of AddressPool main", "AddressPool main has 10.4.1.0/24",
		},
		"a set's block is larger than its pool": {
			func(s *findings.ClusterState) { s.AddressPools[0].Ranges = prefixes("10.4.1.0/25", "10.4.2.0/24") },
			"K122", "NetResourceSet a has block 10.4.1.0/24, which is not part of AddressPool main", "AddressPool main has 10.4.1.0/25, 10.4.2.0/24",
		},
		"a set's pool is gone": {
			func(s *findings.ClusterState) {
				s.AddressPools[0].Name, s.Sets[1].Blocks = "other", nil
				s.IDs[1].Blocks = nil
			},
			"K122", "NetResourceSet a has block 10.4.1.0/24, which is not part of AddressPool main", "there is no AddressPool main",
		},
		"Docker beside pods": {
			func(s *findings.ClusterState) {
				s.Docker[1].Prefix = prefix("10.0.0.0/8")
				s.Pools = s.Pools[:1]
				s.AddressPools = nil
				s.Services = nil
				s.SetsKnown = false
				s.IDs[0].Blocks = nil
				s.IDs[1].Blocks = nil
			},
			"K131", "subnet 10.0.0.0/8 of Docker on node b shares addresses with pool default (10.1.0.0/16)", "the beat of node b has Docker's subnet 10.0.0.0/8",
		},
		"Docker beside services": {
			func(s *findings.ClusterState) { s.Docker[0].Prefix = prefix("10.96.7.0/24") },
			"K131", "subnet 10.96.7.0/24 of Docker on node a shares addresses with the service network (10.96.0.0/12)", "the service network has 10.96.0.0/12",
		},
		"Docker beside podCIDRs outside of the pools": {
			func(s *findings.ClusterState) {
				s.Nodes[0].Pods = append(s.Nodes[0].Pods, prefix("10.200.0.0/24"))
				s.Docker[1].Prefix = prefix("10.200.0.0/16")
			},
			"K131", "subnet 10.200.0.0/16 of Docker on node b shares addresses with the podCIDRs of Node a (10.200.0.0/24)", "the podCIDRs of Node a has 10.200.0.0/24",
		},
		"services inside a pool": {
			func(s *findings.ClusterState) { s.Services = prefixes("10.1.128.0/20") },
			"K132", "the service network 10.1.128.0/20 shares addresses with pool default (10.1.0.0/16)", "pool default has 10.1.0.0/16",
		},
		"services around IPv6 pods": {
			func(s *findings.ClusterState) { s.Services = prefixes("fd00::/16") },
			"K132", "the service network fd00::/16 shares addresses with pool default (fd00:1::/48)", "pool default has fd00:1::/48",
		},
		"a node address in a pool": {
			func(s *findings.ClusterState) { s.Nodes[1].Addrs[0] = addr("10.2.255.254") },
			"K133", "address 10.2.255.254 of node b is inside pool blue (10.2.0.0/16)", "b: the Node has 10.2.255.254/32",
		},
		"overlapping pools": {
			func(s *findings.ClusterState) { s.Pools[1].Ranges = prefixes("10.1.128.0/17") },
			"K134", "pool blue (10.1.128.0/17) shares addresses with pool default (10.1.0.0/16)", "pool default has 10.1.0.0/16",
		},
		"overlapping AddressPools": {
			func(s *findings.ClusterState) {
				s.AddressPools = append(s.AddressPools, findings.ClusterPool{Name: "more", Ranges: prefixes("10.4.128.0/17")})
			},
			"K134", "AddressPool main (10.4.0.0/16) shares addresses with AddressPool more (10.4.128.0/17)", "AddressPool more has 10.4.128.0/17",
		},
		"a NetworkPolicy": {
			func(s *findings.ClusterState) { s.Unenforced = 1 },
			"K141", "1 NetworkPolicy is not enforced: pods accept all packets", "there are NetworkPolicies",
		},
		"NetworkPolicies": {
			func(s *findings.ClusterState) { s.Unenforced = 12 },
			"K141", "12 NetworkPolicies are not enforced: pods accept all packets", "there are NetworkPolicies",
		},
		"an AddressPool is part of a pool": {change: func(s *findings.ClusterState) {
			s.Pools = []findings.ClusterPool{{Name: "all", Ranges: prefixes("10.0.0.0/10")}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := healthy()
			c.change(&s)
			found := findings.CompareCluster(s)
			if c.number == "" {
				g.Expect(found).To(BeEmpty())
				return
			}
			g.Expect(found).To(HaveLen(1), "%+v", found)
			f := found[0]
			g.Expect(f.Number).To(Equal(c.number))
			g.Expect(f.Text).To(Equal(c.text))
			var said []string
			for _, e := range f.Evidence {
				said = append(said, e.Text)
			}
			g.Expect(said).To(ContainElement(c.object))
			g.Expect(f.Signature).NotTo(BeEmpty())
			g.Expect(f.Fix).NotTo(BeEmpty())
			kind := slices.IndexFunc(findings.ClusterKinds(), func(k findings.Kind) bool { return k.Number == c.number })
			g.Expect(f.Name).To(Equal(findings.ClusterKinds()[kind].Name))
		})
	}
}

// TestEachConflictIsInOneFinding compares the findings about owners with all pairs of
// objects, and with the same objects in another order.
func TestEachConflictIsInOneFinding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		var s findings.ClusterState
		draw := func(n int) []netip.Prefix {
			var all []netip.Prefix
			for range rapid.IntRange(0, n).Draw(t, "prefixes") {
				bits := rapid.IntRange(20, 28).Draw(t, "bits")
				n := rapid.Uint64Range(0, 15).Draw(t, "number")
				if p, ok := addrspace.Sub(prefix("10.1.0.0/16"), bits, n<<(bits-20)|rapid.Uint64Range(0, 1).Draw(t, "low")); ok {
					all = append(all, p)
				}
			}
			return all
		}
		type owner struct {
			node string
			p    netip.Prefix
		}
		var owners []owner
		for i := range rapid.IntRange(0, 5).Draw(t, "nodes") {
			name := fmt.Sprint("node-", i)
			n, id := findings.ClusterNode{Name: name, Pods: draw(2)}, findings.ClusterID{ID: uint32(i + 1), Node: name, Blocks: draw(2)}
			s.Nodes, s.IDs = append(s.Nodes, n), append(s.IDs, id)
			for _, p := range slices.Concat(n.Pods, id.Blocks) {
				owners = append(owners, owner{name, p})
			}
		}
		found := findings.CompareCluster(s)
		conflicts := func(p netip.Prefix) (all []netip.Prefix) { // prefixes of a conflict that are inside p
			for _, a := range owners {
				for _, b := range owners {
					if a.node != b.node && a.p.Overlaps(b.p) && p.Overlaps(a.p) && p.Bits() <= a.p.Bits() {
						all = append(all, a.p)
					}
				}
			}
			return all
		}
		seen := map[netip.Prefix]bool{}
		for _, f := range found {
			g.Expect(f.Number).To(Equal("K101"))
			inside := conflicts(f.Subject.Prefix)
			g.Expect(inside).NotTo(BeEmpty(), "%s has no conflict", f.Text)
			for _, p := range inside {
				seen[p] = true
			}
			for _, o := range found {
				g.Expect(o.Signature == f.Signature).To(Equal(o.Text == f.Text))
				g.Expect(o.Subject.Prefix != f.Subject.Prefix && o.Subject.Prefix.Overlaps(f.Subject.Prefix)).To(BeFalse(), "two findings about one conflict")
			}
		}
		for _, p := range conflicts(prefix("0.0.0.0/0")) {
			g.Expect(seen).To(HaveKey(p), "a conflict without a finding")
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		r.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
		r.Shuffle(len(s.IDs), func(i, j int) { s.IDs[i], s.IDs[j] = s.IDs[j], s.IDs[i] })
		g.Expect(findings.CompareCluster(s)).To(Equal(found))
	})
}

// TestOverlapsAreFound compares the search in sorted networks with all pairs.
func TestOverlapsAreFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		var s findings.ClusterState
		want := map[string]bool{}
		for i := range rapid.IntRange(0, 12).Draw(t, "pools") {
			bits := rapid.IntRange(8, 24).Draw(t, "bits")
			p, _ := addrspace.Sub(prefix("10.0.0.0/8"), bits, rapid.Uint64Range(0, uint64(1)<<(bits-8)-1).Draw(t, "number"))
			pool := findings.ClusterPool{Name: fmt.Sprintf("p%02d", i), Ranges: []netip.Prefix{p}}
			for _, other := range s.Pools {
				if other.Ranges[0].Overlaps(p) {
					want[other.Name+" "+"pool "+pool.Name] = true
				}
			}
			s.Pools = append(s.Pools, pool)
		}
		got := map[string]bool{}
		for _, f := range findings.CompareCluster(s) {
			got[f.Subject.Pool+" "+f.Subject.Object] = true
		}
		g.Expect(got).To(Equal(want))
	})
}

func TestKindsOfTheClusterAreNumbered(t *testing.T) {
	g := NewWithT(t)
	numbers, names := map[string]bool{}, map[string]bool{}
	last := ""
	for _, k := range findings.ClusterKinds() {
		g.Expect(k.Number).To(MatchRegexp(`^K1\d\d$`))
		g.Expect(k.Name).To(MatchRegexp(`^[a-z-]+$`))
		g.Expect(k.Number > last).To(BeTrue())
		g.Expect(numbers).NotTo(HaveKey(k.Number))
		g.Expect(names).NotTo(HaveKey(k.Name))
		g.Expect(k.Meaning).NotTo(BeEmpty())
		g.Expect(k.Fix).NotTo(BeEmpty())
		last, numbers[k.Number], names[k.Name] = k.Number, true, true
	}
}

func TestTheTableOfTheClusterIsThatOfTheCode(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/findings.md")
	g.Expect(err).NotTo(HaveOccurred())
	var want, have []string
	for _, k := range findings.ClusterKinds() {
		want = append(want, fmt.Sprintf("| %s | `%s` | %s | %s |", k.Number, k.Name, k.Meaning, k.Fix))
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| K") {
			have = append(have, strings.TrimSpace(line))
		}
	}
	g.Expect(have).To(Equal(want), "write:\n%s", strings.Join(want, "\n"))
}

// TestAFindingNamesFewNodes: a finding about thousands of nodes stays small.
func TestAFindingNamesFewNodes(t *testing.T) {
	g := NewWithT(t)
	var s findings.ClusterState
	for i := range 5000 {
		s.Nodes = append(s.Nodes, findings.ClusterNode{Name: fmt.Sprintf("node-%04d", i), Pods: prefixes("10.1.1.0/24")})
	}
	found := findings.CompareCluster(s)
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].Text).To(Equal("addresses of block 10.1.1.0/24 are on 5000 nodes: node-0000, node-0001, node-0002, node-0003 and 4996 further ones"))
	g.Expect(found[0].Evidence).To(HaveLen(9))
	g.Expect(found[0].Evidence[8].Text).To(Equal("4992 further statements"))
}

func BenchmarkCompareCluster(b *testing.B) {
	var s findings.ClusterState
	s.Kubernetes = true
	s.Pools = []findings.ClusterPool{{Name: "default", Ranges: prefixes("10.0.0.0/8")}}
	for i := range 5000 {
		name := fmt.Sprintf("node-%04d", i)
		p, _ := addrspace.Sub(prefix("10.0.0.0/8"), 24, uint64(i))
		a, _ := addrspace.Nth(prefix("192.168.0.0/16"), uint64(i+1))
		s.Nodes = append(s.Nodes, findings.ClusterNode{Name: name, Pods: []netip.Prefix{p}, Addrs: []netip.Addr{a}})
		s.IDs = append(s.IDs, findings.ClusterID{ID: uint32(i + 1), Node: name, Blocks: []netip.Prefix{p}})
		s.Claims = append(s.Claims, findings.ClusterClaim{Node: name, Network: "default", Prefix: p, Held: true})
	}
	for b.Loop() {
		if found := findings.CompareCluster(s); len(found) > 0 {
			b.Fatal(found[0])
		}
	}
}
