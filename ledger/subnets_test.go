// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

func (b *bench) freeSubnet(base string, bits int, avoid ...string) string {
	p, ok := b.FreeSubnet("docker", pfx(base), bits, prefixesOf(avoid))
	b.g.Expect(ok).To(Equal(p.IsValid()))
	return p.String()
}

func (b *bench) overlapping(p, except string) string {
	block, ok := b.Overlapping("docker", pfx(p), except)
	b.g.Expect(ok).To(Equal(block.IsValid()))
	return block.String()
}

func prefixesOf(texts []string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, pfx(s))
	}
	return all
}

const none = "invalid Prefix"

func TestFreeSubnet(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	g.Expect(b.freeSubnet("10.0.0.0/8", 24)).To(Equal("10.0.0.0/24"), "a space without pools is free")
	b.pool(ledger.Pool{Name: "a", Space: "docker"}, "10.0.0.0/24", "fd00::/64")
	b.pool(ledger.Pool{Name: "b", Space: "docker"}, "10.0.1.128/25")
	b.pool(ledger.Pool{Name: "other space", Space: "global"}, "10.0.2.0/24")
	b.pool(ledger.Pool{Name: "no space"}, "10.0.2.0/24")
	for _, x := range []struct {
		base  string
		bits  int
		avoid []string
		want  string
	}{
		{"10.0.0.0/8", 24, nil, "10.0.2.0/24"},
		{"10.0.0.0/8", 25, nil, "10.0.1.0/25"},
		{"10.0.0.0/8", 16, nil, "10.1.0.0/16"},
		{"10.0.0.0/8", 8, nil, none},
		{"10.0.0.0/8", 7, nil, none},
		{"16.0.0.0/5", 4, nil, none},
		{"10.0.0.0/23", 24, nil, none},
		{"10.0.0.0/23", 25, nil, "10.0.1.0/25"},
		{"10.0.0.0/8", 24, []string{"10.0.2.7/32", "10.0.3.0/24"}, "10.0.4.0/24"},
		{"10.0.0.0/8", 25, []string{"10.0.0.0/22", "10.0.2.0/23"}, "10.0.4.0/25"},
		{"10.0.0.0/8", 24, []string{"0.0.0.0/1"}, none},
		{"255.255.255.0/24", 25, []string{"255.255.255.0/24"}, none},
		{"fd00::/48", 64, nil, "fd00:0:0:1::/64"},
	} {
		g.Expect(b.freeSubnet(x.base, x.bits, x.avoid...)).To(Equal(x.want), "/%d of %s beside %v", x.bits, x.base, x.avoid)
	}
	g.Expect(b.overlapping("10.0.0.0/16", "")).To(Equal("10.0.0.0/24"), "the lowest one")
	g.Expect(b.overlapping("10.0.0.0/16", "a")).To(Equal("10.0.1.128/25"))
	g.Expect(b.overlapping("10.0.1.0/25", "")).To(Equal(none))
	g.Expect(b.overlapping("10.0.2.0/24", "")).To(Equal(none))
}

// A subnet becomes free when the ledger forgets its last block, not before.
func TestSubnetsFollowTheBlocks(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	const base = "10.0.0.0/22"
	inSpace := ledger.Pool{Name: "default", Space: "docker"}
	b.pool(inSpace, "10.0.0.0/24")
	g.Expect(b.claim(1)).To(Equal("10.0.0.0"))
	st := b.Begin()
	g.Expect(st.SetBlocks("default", prefixesOf([]string{"10.0.0.0/24", "10.0.1.0/24"}))).To(Succeed())
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.2.0/24"), "a staged block counts")
	st.Undo()
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.1.0/24"))
	b.pool(inSpace)
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.1.0/24"), "a draining block counts")
	g.Expect(b.overlapping("10.0.0.0/16", "")).To(Equal("10.0.0.0/24"))
	b.release(1)
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.0.0/24"))

	b.pool(inSpace, "10.0.0.0/24")
	b.reopen()
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.0.0/24"), "the journal does not hold the policies of pools")
	b.pool(inSpace, "10.0.0.0/24")
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.1.0/24"))
	st = b.Begin()
	g.Expect(st.SetPool(ledger.Pool{Name: "default"})).To(Succeed())
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.0.0/24"))
	st.Undo()
	g.Expect(b.freeSubnet(base, 24)).To(Equal("10.0.1.0/24"))
	g.Expect(b.findings()).To(BeEmpty())
}

func TestPoolsThatOverlapOnPurpose(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	small, large := ledger.Pool{Name: "small", Space: "docker"}, ledger.Pool{Name: "large", Space: "docker"}
	b.pool(small, "10.0.0.0/24")
	b.pool(large, "10.0.0.0/23")
	g.Expect(b.freeSubnet("10.0.0.0/16", 24)).To(Equal("10.0.2.0/24"), "both count")
	g.Expect(b.overlapping("10.0.1.0/24", "")).To(Equal("10.0.0.0/23"))
	g.Expect(b.overlapping("10.0.0.0/24", "small")).To(Equal("10.0.0.0/23"))
	b.pool(small)
	g.Expect(b.freeSubnet("10.0.0.0/16", 24)).To(Equal("10.0.2.0/24"))
	b.pool(small, "10.0.0.0/24")
	b.pool(large)
	g.Expect(b.freeSubnet("10.0.0.0/16", 24)).To(Equal("10.0.1.0/24"))
	b.pool(small)
	g.Expect(b.freeSubnet("10.0.0.0/16", 24)).To(Equal("10.0.0.0/24"))
}

func TestFreePart(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	_, ok := b.FreePart("default", ledger.IPv4, 28, nil)
	g.Expect(ok).To(BeFalse(), "there is no such pool")
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true}, "10.1.5.0/26", "10.1.6.0/26", "fd00::/64")
	part := func(bits int, avoid ...string) string {
		p, ok := b.FreePart("default", ledger.IPv4, bits, prefixesOf(avoid))
		g.Expect(ok).To(Equal(p.IsValid()))
		return p.String()
	}
	g.Expect(part(28)).To(Equal("10.1.5.16/28"), "the first one has a reserved address")
	g.Expect(part(28, "10.1.5.16/29")).To(Equal("10.1.5.32/28"))
	g.Expect(part(26)).To(Equal(none))
	g.Expect(part(24)).To(Equal(none))
	wanted := ledger.Request{Pool: "default", Key: key(1), Wanted: []netip.Addr{ip("10.1.5.20")}}
	_, _, err := b.Claim(context.Background(), wanted)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part(28)).To(Equal("10.1.5.32/28"))
	g.Expect(part(28, "10.1.5.32/32")).To(Equal("10.1.6.16/28"), "the next block")
	b.release(1)
	g.Expect(part(28)).To(Equal("10.1.5.32/28"), "a cooling address is not free")
	b.uptime += time.Minute
	g.Expect(part(28)).To(Equal("10.1.5.16/28"))
	_, _, err = b.Claim(context.Background(), wanted)
	g.Expect(err).NotTo(HaveOccurred())
	b.pool(ledger.Pool{Name: "default"}, "10.1.6.0/26")
	g.Expect(part(28)).To(Equal("10.1.6.0/28"), "a draining block has no free part")
	g.Expect(part(26)).To(Equal("10.1.6.0/26"))
	six, _ := b.FreePart("default", ledger.IPv6, 112, nil)
	g.Expect(six.IsValid()).To(BeFalse(), "its block is gone")
}

func TestLeasesAndBlocksOfOnePool(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	g.Expect(b.LeasesOf("default")).To(BeEmpty())
	g.Expect(b.Blocks("default")).To(BeEmpty())
	b.pool(defaultPool(), "10.1.5.0/24", "fd00::/64")
	b.pool(ledger.Pool{Name: "other"}, "10.2.0.0/24")
	_, err := b.claim(1)
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = b.Claim(context.Background(), ledger.Request{Pool: "other", Key: key(2)})
	g.Expect(err).NotTo(HaveOccurred())
	st := b.Begin()
	_, _, err = st.Claim(ledger.Request{Pool: "default", Key: key(3)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(addrs(b.LeasesOf("default"))).To(Equal("10.1.5.1 fd00::1"), "what is staged does not count")
	st.Undo()
	b.pool(defaultPool(), "fd00::/64")
	g.Expect(b.Blocks("default")).To(Equal(prefixesOf([]string{"fd00::/64"})))
}
