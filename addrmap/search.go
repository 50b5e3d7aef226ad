// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Search finds an address, a prefix, or all pools, nodes, pods and containers with a text
// in their names. A container is found by the begin of its ID.
func (s *Source) Search(text string) localapi.MapHits {
	h := &hits{}
	text = strings.ToLower(strings.TrimSpace(text))
	if a, err := netip.ParseAddr(text); err == nil {
		s.findPlace(h, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	} else if p, err := netip.ParsePrefix(text); err == nil {
		s.findPlace(h, p.Masked())
	} else if text != "" {
		s.findName(h, text)
	}
	slices.SortStableFunc(h.all, func(x, y localapi.MapHit) int {
		return strings.Compare(x.Kind+x.Text, y.Kind+y.Text)
	})
	out := localapi.MapHits{Hits: h.all, More: len(h.all) > localapi.MapMaxHits}
	if out.More {
		out.Hits = out.Hits[:localapi.MapMaxHits]
	}
	if out.Hits == nil {
		out.Hits = []localapi.MapHit{}
	}
	return out
}

// hits collects places. Beyond ten times the limit of an answer it takes no more.
type hits struct{ all []localapi.MapHit }

func (h *hits) add(x localapi.MapHit) bool {
	h.all = append(h.all, x)
	return len(h.all) < 10*localapi.MapMaxHits
}

// findPlace adds a prefix in each pool that has it in a range or a block.
func (s *Source) findPlace(h *hits, p netip.Prefix) {
	for _, pool := range s.pools() {
		for _, root := range s.roots(pool) {
			if root.Bits() > p.Bits() || !root.Contains(p.Addr()) {
				continue
			}
			hit := localapi.MapHit{Kind: "prefix", Text: p.String(), Pool: pool, Prefix: p}
			if p.IsSingleIP() {
				hit.Kind, hit.Text, hit.State = "address", p.Addr().String(), s.addressState(pool, p)
			}
			h.add(hit)
		}
	}
}

// addressState returns the state of one address.
func (s *Source) addressState(pool string, p netip.Prefix) string {
	part, err := s.Part(pool, p)
	if err != nil || len(part.Cells) == 0 {
		return "outside"
	}
	return StateOf(&part.Cells[0])
}

// StateOf returns the state of a cell that is one address.
func StateOf(c *localapi.MapCell) string {
	for _, x := range []struct {
		n    uint64
		name string
	}{
		{c.Quarantined, "quarantined"}, {c.Held + c.Infra, "held"}, {c.Cooling, "cooling"}, {c.Excluded, "excluded"},
		{c.Reserved, "reserved"}, {c.Draining, "draining"}, {c.Free, "free"}, {c.Other, "other"},
	} {
		if x.n > 0 {
			return x.name
		}
	}
	return "outside"
}

func (s *Source) findName(h *hits, text string) {
	for _, pool := range s.pools() {
		if roots := s.roots(pool); strings.Contains(strings.ToLower(pool), text) && len(roots) > 0 {
			h.add(localapi.MapHit{Kind: "pool", Text: pool, Pool: pool, Prefix: roots[0]})
		}
	}
	for _, b := range s.Blocks {
		if strings.Contains(strings.ToLower(b.Node), text) &&
			!h.add(
				localapi.MapHit{
					Kind: "node", Text: b.Node + " " + b.Prefix.String(), Pool: b.Pool, Prefix: b.Prefix, Node: b.Node,
				},
			) {
			return
		}
	}
	for l := range s.leases() {
		hit := localapi.MapHit{Pool: l.Pool, Prefix: netip.PrefixFrom(l.Addr, l.Addr.BitLen()), State: l.State.String()}
		hit.Pod = podOf(l)
		switch pod := hit.Pod; {
		case l.Purpose == ledger.ForInfra:
			continue
		case strings.Contains(strings.ToLower(pod), text):
			hit.Kind, hit.Text = "pod", pod+" "+l.Addr.String()
		case strings.HasPrefix(strings.ToLower(l.Key.ContainerID), text):
			hit.Kind, hit.Text = "container", l.Key.ContainerID+" "+l.Addr.String()
		default:
			continue
		}
		if !h.add(hit) {
			return
		}
	}
}
