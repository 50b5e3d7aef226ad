// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// addressMap answers with all pools, or with one prefix of a pool.
func (p *RESTAPI) addressMap(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	if !args.Has("prefix") {
		p.answerMap(w, "", func() (any, error) { return p.mapSource(r.Context()).Overview(), nil })
		return
	}
	prefix, err := netip.ParsePrefix(args.Get("prefix"))
	if err != nil {
		writeError(w, http.StatusBadRequest,
			fmt.Errorf("map: prefix %q: want address/length, such as 10.1.0.0/16", args.Get("prefix")))
		return
	}
	pool := args.Get("pool")
	p.answerMap(w, "part "+prefix.String()+" "+pool, func() (any, error) {
		return p.mapSource(r.Context()).Part(pool, prefix)
	})
}

// mapSearch answers with the places that a text names.
func (p *RESTAPI) mapSearch(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("q")
	p.answerMap(w, "search "+text, func() (any, error) { return p.mapSource(r.Context()).Search(text), nil })
}

// answerMap answers with a view of the map, which may be one that another caller got a
// moment ago.
func (p *RESTAPI) answerMap(w http.ResponseWriter, key string, make func() (any, error)) {
	view, err := p.views.Get(key, p.now, make)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	writeJSON(w, http.StatusOK, view)
}

// mapSource returns the view of this moment: this node's leases, and the blocks of all
// nodes as far as the cluster store answers.
func (p *RESTAPI) mapSource(ctx context.Context) *addrmap.Source {
	name := p.Agent.Status().NodeName
	s := &addrmap.Source{
		Scope:      addrmap.ScopeNode,
		Node:       name,
		Now:        p.now(),
		Policies:   p.Ledger.Policies(),
		Ranges:     map[string][]netip.Prefix{},
		Exclusions: p.Ledger.Exclusions(),
		Leases:     p.Ledger.All(),
		Lease:      p.Ledger.Lookup,
	}
	stats := p.Ledger.Stats()
	for i := range stats {
		s.Blocks = append(s.Blocks, addrmap.BlockOf(&stats[i], name))
	}
	if p.Cluster == nil {
		return s
	}
	networks := map[string]string{}
	if pools, err := p.Cluster.Pools(ctx); err == nil {
		addRanges(s, pools)
		for _, pool := range pools {
			networks[pool.Name] = pool.Network
		}
	}
	if nodes, err := p.Cluster.Nodes(ctx); err == nil {
		addNodes(s, nodes, networks)
	}
	return s
}

func addRanges(s *addrmap.Source, pools []localapi.Pool) {
	for _, p := range pools {
		for _, r := range p.Ranges {
			if prefix, err := netip.ParsePrefix(r.CIDR); err == nil {
				s.Ranges[p.Network] = append(s.Ranges[p.Network], prefix.Masked())
			}
		}
	}
}

// addNodes adds the blocks of all other nodes: the granted ones of pods, and those of all
// pools that the nodes have reported. networks holds the network of each pool.
func addNodes(s *addrmap.Source, nodes []localapi.Node, networks map[string]string) {
	for i := range nodes {
		n := &nodes[i]
		if n.Self || n.Released {
			continue
		}
		var granted []addrmap.Place
		for _, text := range n.PodCIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				granted = append(granted, addrmap.Place{Pool: ipam.PodPool, Prefix: prefix.Masked()})
			}
		}
		var reports addrmap.Reports
		for _, u := range n.Pools {
			network := cmp.Or(networks[u.Pool], u.Pool)
			if len(u.Blocks) == 0 {
				reports.AddSum(network, u.Leases)
			}
			for _, b := range u.Blocks {
				if prefix, err := netip.ParsePrefix(b.Block); err == nil {
					place := addrmap.Place{Pool: network, Prefix: prefix.Masked()}
					use := addrmap.Use{Place: place, Leases: b.Leases, Draining: b.Draining}
					reports.Uses = append(reports.Uses, use)
				}
			}
		}
		s.AddNode(n.Name, granted, reports)
	}
}

// changesMost limits the entries of the history that one answer counts.
const changesMost = 20_000

// mapChanges answers with the changes of the last hour, by minute.
func (p *RESTAPI) mapChanges(w http.ResponseWriter, r *http.Request) {
	until := p.now().UTC()
	out := localapi.MapChanges{
		Until:    until,
		Minutes:  make([]localapi.MapMinute, localapi.MapMinutes),
		Recent:   []localapi.HistoryEntry{},
		Recorded: true,
	}
	entries, err := p.Ledger.History(r.Context(), ledger.HistoryQuery{
		Since: until.Add(-localapi.MapMinutes * time.Minute),
		Limit: changesMost,
	})
	switch {
	case errors.Is(err, ledger.ErrNoHistory):
		out.Recorded = false
	case err != nil:
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	out.Cut = len(entries) == changesMost
	for i := range entries {
		e := &entries[i]
		if len(out.Recent) < localapi.MapMaxRecent {
			out.Recent = append(out.Recent, entryOf(e))
		}
		minute := localapi.MapMinutes - 1 - int(until.Sub(e.Time)/time.Minute)
		if minute < 0 || minute >= localapi.MapMinutes {
			continue
		}
		switch m := &out.Minutes[minute]; {
		case e.Action == ledger.Claimed:
			m.Claimed++
		case e.Action.Ends():
			m.Released++
		default:
			m.Other++
		}
	}
	writeJSON(w, http.StatusOK, out)
}

// mapFindings answers with a comparison that is not older than half a minute.
func (p *RESTAPI) mapFindings(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, p.recentFindings(r.Context()))
}
