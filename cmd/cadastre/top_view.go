// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// topView holds one screen of top, which is also its output for programs. Rates are per
// second, over the time from the sample before; they are missing on the first screen and
// after a restart of the agent.
type topView struct {
	Taken    time.Time       `json:"taken"`
	Node     string          `json:"node"`
	Ready    bool            `json:"ready"`
	Queued   int             `json:"queued"` // events
	Rates    *topRates       `json:"rates,omitempty"`
	Findings *topFindings    `json:"findings,omitempty"` // missing: the agent has not compared
	Problem  string          `json:"problem,omitempty"`  // why Findings are missing or not whole
	Pools    []topPool       `json:"pools"`
	Nodes    []localapi.Node `json:"nodes"` // those with the most leases first

	status *localapi.Status
}

// topRates holds what happened in a second.
type topRates struct {
	Adds          float64 `json:"adds"`
	Dels          float64 `json:"dels"`
	Failed        float64 `json:"failed"` // CNI requests
	Events        float64 `json:"events"`
	Commits       float64 `json:"commits"`
	FailedCommits float64 `json:"failedCommits"`
	CommitSeconds float64 `json:"commitSeconds"` // of one commit, on average
}

// topFindings counts the findings of the last comparisons.
type topFindings struct {
	Node       int      `json:"node"`
	CannotTell bool     `json:"cannotTell"` // a witness is missing
	Cluster    uint64   `json:"cluster"`
	Names      []string `json:"names"` // "K101 block-on-two-nodes", each once
}

// topPool counts the addresses of this node's blocks of one pool and family.
type topPool struct {
	Pool        string `json:"pool"`
	Family      string `json:"family"`
	Held        int    `json:"held"`
	Infra       int    `json:"infra"`
	Cooling     int    `json:"cooling"`
	Quarantined int    `json:"quarantined"`
	Free        uint64 `json:"free"`     // of active blocks
	Draining    int    `json:"draining"` // blocks

	blocks []localapi.Block
}

// names returns those of the pools.
func (v *topView) names() []string {
	return unique(each(v.Pools, func(p topPool) string { return p.Pool }))
}

// topOf returns the view of now, with the rates since before.
func topOf(before, now *sample) *topView {
	v := &topView{
		Taken:  now.at,
		Node:   now.status.NodeName,
		Ready:  now.status.Ready,
		Queued: now.status.Loop.Queued,
		Rates:  ratesOf(before, now),
		Pools:  topPools(now.status.Blocks),
		Nodes:  slices.Clone(now.nodes),
		status: &now.status,
	}
	if v.Nodes == nil {
		v.Nodes = []localapi.Node{}
	}
	v.Findings, v.Problem = findingsOf(&now.findings)
	slices.SortStableFunc(v.Nodes, func(x, y localapi.Node) int {
		return cmp.Or(cmp.Compare(leasesOf(y), leasesOf(x)), cmp.Compare(x.ID, y.ID))
	})
	return v
}

// ratesOf returns nil if the samples have one time, or are of two runs of the agent.
func ratesOf(before, now *sample) *topRates {
	x, y := before.counters, now.counters
	took := now.at.Sub(before.at).Seconds()
	if took <= 0 || !x.started.Equal(y.started) {
		return nil
	}
	r := &topRates{
		Adds:          (y.adds - x.adds) / took,
		Dels:          (y.dels - x.dels) / took,
		Failed:        (y.failed - x.failed) / took,
		Events:        (y.processed - x.processed) / took,
		Commits:       (y.commits - x.commits) / took,
		FailedCommits: (y.failedCommits - x.failedCommits) / took,
	}
	if n := y.commits - x.commits; n > 0 {
		r.CommitSeconds = (y.commitSeconds - x.commitSeconds) / n
	}
	return r
}

func findingsOf(m *localapi.MapFindings) (*topFindings, string) {
	if m.Report == nil {
		return nil, cmp.Or(m.Error, "the agent has not compared yet")
	}
	f := &topFindings{Node: m.Report.Differences(), CannotTell: m.Report.CannotTell(), Names: []string{}}
	var names []string
	for _, x := range m.Report.Findings {
		if x.Name != localapi.FindingWitnessMissing { // CannotTell tells that
			names = append(names, x.Number+" "+x.Name)
		}
	}
	if m.Cluster != nil {
		f.Cluster = m.Cluster.Total
		for _, x := range m.Cluster.Findings {
			names = append(names, x.Number+" "+x.Name)
		}
	}
	f.Names = append(f.Names, unique(names)...)
	return f, m.Error
}

// topPools sums the blocks by pool and family, in the order of the pools.
func topPools(blocks []localapi.Block) []topPool {
	all := []topPool{}
	for _, b := range blocks {
		i := slices.IndexFunc(all, func(p topPool) bool { return p.Pool == b.Pool && p.Family == b.Family })
		if i < 0 {
			i = len(all)
			all = append(all, topPool{Pool: b.Pool, Family: b.Family})
		}
		p := &all[i]
		p.Held += b.Held
		p.Infra += b.Infra
		p.Cooling += b.Cooling
		p.Quarantined += b.Quarantined
		p.blocks = append(p.blocks, b)
		if b.State == "active" {
			p.Free = sum(p.Free, b.Free)
		} else {
			p.Draining++
		}
	}
	return all
}

// leasesOf returns the leases of a node by its last report.
func leasesOf(n localapi.Node) (leases uint64) {
	for _, p := range n.Pools {
		leases += p.Leases
	}
	return leases
}

// text returns the screen. Its lines have at most 80 columns, unless names are long.
func (v *topView) text(now time.Time, wide bool, b *bars) string {
	var head columns.Rows
	head.Add("node", nodeText(*v.status, wide)+"; "+readyText(v.status)+"; "+now.Format(time.DateTime))
	head.Add("event loop", loopText(*v.status, now, wide))
	for _, line := range v.Rates.lines() {
		head.Add(line[0], line[1])
	}
	head.Add("findings", v.findingsText(wide))
	text := head.String() + "\n"
	if len(v.Pools) > 0 {
		text += v.poolsText(b)
	} else {
		text += "no blocks\n"
	}
	if len(v.Nodes) > 0 {
		text += "\n" + v.nodesText(now, wide, b)
	}
	return text
}

func readyText(s *localapi.Status) string {
	switch {
	case s.Suspended != "":
		return "suspended"
	case s.Ready:
		return "ready"
	}
	return "not ready"
}

func (r *topRates) lines() [][2]string {
	if r == nil {
		return [][2]string{{"requests", "-"}, {"commits", "-"}}
	}
	commits := perSecond(r.Commits)
	if r.CommitSeconds > 0 {
		commits += ", " + took(time.Duration(r.CommitSeconds*float64(time.Second))) + " each"
	}
	return [][2]string{
		{"requests", fmt.Sprintf("ADD %s, DEL %s, failed %s; events %s",
			perSecond(r.Adds), perSecond(r.Dels), perSecond(r.Failed), perSecond(r.Events))},
		{"commits", commits + ", failed " + perSecond(r.FailedCommits)},
	}
}

// perSecond returns a rate such as "12.5/s" or "340/s".
func perSecond(rate float64) string {
	if rate >= 100 {
		return fmt.Sprintf("%.0f/s", rate)
	}
	return fmt.Sprintf("%.1f/s", rate)
}

func (v *topView) findingsText(wide bool) string {
	f := v.Findings
	if f == nil {
		return "unknown: " + oneLine(v.Problem)
	}
	text := fmt.Sprintf("%d of this node, %d of the cluster", f.Node, f.Cluster)
	if f.CannotTell {
		text += "; a witness is missing"
	}
	const most = 2
	names := f.Names
	if len(names) > most && !wide {
		names = append(names[:most:most], fmt.Sprintf("%d more", len(f.Names)-most))
	}
	if len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	return text
}

func (v *topView) poolsText(b *bars) string {
	g := columns.Rows{{"POOL", "FAMILY", "HELD", "INFRA", "COOLING", "QUARANT.", "FREE"}}
	if !b.off {
		g[0] = append(g[0], "USED")
	}
	for _, p := range v.Pools {
		u := usageOf(p.blocks)
		row := []string{
			p.Pool,
			p.Family,
			fmt.Sprint(p.Held),
			fmt.Sprint(p.Infra),
			fmt.Sprint(p.Cooling),
			fmt.Sprint(p.Quarantined),
			shortCount(p.Free),
		}
		if !b.off {
			row = append(row, b.text(u))
		}
		g = append(g, row)
	}
	return g.String()
}

// shortCount returns a number, or the power of two that a long one is near to.
func shortCount(n uint64) string {
	const most = 10_000_000
	if n < most {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("2^%d", bitsOf(n))
}

func (v *topView) nodesText(now time.Time, wide bool, b *bars) string {
	g := columns.Rows{{"NODE", "ID", "STATE", "LEASES", "SEEN"}}
	if !b.off {
		g[0] = append(g[0], "USED")
	}
	if wide {
		g[0] = append(g[0], "PODS")
	}
	for _, n := range v.Nodes {
		seen := "never"
		if n.LastSeen != nil {
			seen = age(now, *n.LastSeen)
		}
		row := []string{n.Name, fmt.Sprint(n.ID), nodeState(n), fmt.Sprint(leasesOf(n)), seen}
		if !b.off {
			row = append(row, b.text(usageOfNode(n)))
		}
		if wide {
			row = append(row, strings.Join(n.PodCIDRs, ","))
		}
		g = append(g, row)
	}
	return g.String()
}
