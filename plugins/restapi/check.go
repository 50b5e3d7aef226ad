// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// Witnesses reads the sources outside the ledger.
type Witnesses interface {
	// Round reads all witnesses anew.
	Round(ctx context.Context) (*witness.World, error)
	// Observe reads all witnesses anew. In contrast to Round nothing acts on what they show.
	Observe(ctx context.Context) (*witness.World, error)
}

// Subnets shows the subnets that this node should have, and the pools of the cluster.
type Subnets interface {
	Pools() []poolplan.Pool
	OpenBlocks() map[string][]netip.Prefix // nil before the first resync
	ConfigDiffers() string
}

// Checks compares the ledger with the witnesses, and repairs differences. It keeps no
// state.
type Checks struct {
	Node      string
	Ledger    *ledger.Ledger
	Witnesses Witnesses // nil: none
	Subnets   Subnets   // nil: the node has no pod network
	Docker    Docker    // nil: no driver
	Repairs   Repairs   // nil: no repair
	// Cloud returns the blocks as the cloud has them, nil if it was not read yet. nil: the
	// blocks are not of a cloud's interfaces.
	Cloud func() *findings.Cloud
	// Grace is the age below which a lease is not compared with the witnesses.
	Grace   time.Duration
	Private bool // blocks follow from the node ID
	Routed  bool // the agent makes the routes to other nodes

	Now   func() time.Time                     // nil: time.Now
	After func(time.Duration) <-chan time.Time // nil: time.After
}

// NewChecks returns c with the defaults of what is nil and has one.
func NewChecks(c Checks) *Checks {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.After == nil {
		c.After = time.After
	}
	return &c
}

// pause is the time between the two rounds of a check. A change in progress, such as the
// steps of a CNI plugin after its ADD, is over then, or within Grace.
const pause = 2 * time.Second

// Check compares the ledger with a fresh round of the witnesses. A difference is a finding
// if a second round has it too.
func (c *Checks) Check(ctx context.Context) (localapi.CheckReport, error) {
	contradictions, err := c.Ledger.Check(ctx)
	if err != nil {
		return localapi.CheckReport{}, err
	}
	book, world, err := c.round(ctx, contradictions)
	if err != nil {
		return localapi.CheckReport{}, err
	}
	found := findings.Compare(book, world)
	if len(found) > 0 {
		first := found
		select {
		case <-c.After(pause):
		case <-ctx.Done():
			return localapi.CheckReport{}, context.Cause(ctx)
		}
		if book, world, err = c.round(ctx, contradictions); err != nil {
			return localapi.CheckReport{}, err
		}
		found = findings.Confirm(first, findings.Compare(book, world))
	}
	return reportOf(&book, world, found), nil
}

// Observe reads all witnesses anew, and then the book. It acts on nothing. A program without
// witnesses gets a world without a report.
func (c *Checks) Observe(ctx context.Context) (findings.Book, *witness.World, error) {
	world := &witness.World{Taken: c.Now()}
	if c.Witnesses != nil {
		var err error
		if world, err = c.Witnesses.Observe(ctx); err != nil {
			return findings.Book{}, nil, err
		}
	}
	book, err := c.book()
	return book, world, err
}

// round reads the witnesses, and the book before and after them.
func (c *Checks) round(ctx context.Context, contradictions []string) (findings.Book, *witness.World, error) {
	before := c.Ledger.Leases()
	world := &witness.World{Taken: c.Now()}
	if c.Witnesses != nil {
		var err error
		if world, err = c.Witnesses.Round(ctx); world == nil {
			return findings.Book{}, nil, fmt.Errorf("read the witnesses: %w", err)
		} // with a world, err is that of an action of the round, which the next round repeats
	}
	book, err := c.book()
	book.Contradictions = contradictions
	book.Changing = changed(before, book.Leases)
	return book, world, err
}

// changed returns the addresses whose leases differ.
func changed(before, after []ledger.Lease) map[netip.Addr]bool {
	type claim struct {
		pool       string
		addr       netip.Addr
		state      ledger.State
		generation uint64
		since      int64
	}
	differ := map[claim]int{}
	count := func(leases []ledger.Lease, n int) {
		for _, l := range leases {
			differ[claim{l.Pool, l.Addr, l.State, l.Generation, l.Since.UnixNano()}] += n
		}
	}
	count(before, 1)
	count(after, -1)
	all := map[netip.Addr]bool{}
	for x, n := range differ {
		if n != 0 {
			all[x.addr] = true
		}
	}
	return all
}

// book reads the agent's side of the comparison.
func (c *Checks) book() (findings.Book, error) {
	b := findings.Book{
		Node:       c.Node,
		Now:        c.Now(),
		Grace:      c.Grace,
		Leases:     c.Ledger.Leases(),
		Blocks:     c.Ledger.Stats(),
		Exclusions: c.Ledger.Exclusions(),
		Private:    c.Private,
		Routed:     c.Routed,
		DockerOn:   c.Docker != nil,
	}
	if c.Subnets != nil {
		b.Differs = c.Subnets.ConfigDiffers()
		for _, p := range c.Subnets.Pools() {
			if p.State == poolplan.Removed {
				continue
			}
			pool := findings.Pool{Name: p.Name, Network: p.Network}
			for _, r := range p.Ranges {
				pool.Ranges = append(pool.Ranges, r.CIDR)
			}
			b.Pools = append(b.Pools, pool)
		}
		if open := c.Subnets.OpenBlocks(); open != nil {
			b.Subnets = []findings.Subnet{}
			for _, name := range slices.Sorted(maps.Keys(open)) {
				for _, p := range open[name] {
					b.Subnets = append(b.Subnets, findings.Subnet{Pool: name, Prefix: p})
				}
			}
		}
	}
	if c.Cloud != nil {
		b.Cloud = c.Cloud()
	}
	if c.Docker == nil {
		return b, nil
	}
	pools, err := c.Docker.Pools()
	for _, p := range pools {
		b.Docker = append(b.Docker, findings.DockerPool{
			ID:         p.ID,
			Prefix:     p.Prefix,
			LedgerPool: p.LedgerPool,
			FromPods:   p.FromPods,
			Global:     strings.Contains(p.Space, "Global"),
		})
	}
	return b, err
}

func reportOf(book *findings.Book, world *witness.World, found []findings.Finding) localapi.CheckReport {
	r := localapi.CheckReport{
		Node:      book.Node,
		Taken:     world.Taken.UTC(),
		Leases:    len(book.Leases),
		Young:     book.Young(),
		Findings:  make([]localapi.Finding, 0, len(found)),
		Witnesses: []localapi.Witness{},
	}
	for i := range book.Leases {
		if book.Leases[i].State == ledger.Pending {
			r.Pending++
		}
	}
	for i := range found {
		r.Findings = append(r.Findings, findingOf(&found[i]))
	}
	for _, name := range witness.Names() {
		r.Witnesses = append(r.Witnesses, WitnessOf(world.Report(name)))
	}
	return r
}

// findingOf returns a finding as the API shows it.
func findingOf(f *findings.Finding) localapi.Finding {
	out := localapi.Finding{
		Number:    f.Number,
		Name:      f.Name,
		Subject:   localapi.Subject(f.Subject),
		Text:      f.Text,
		Evidence:  make([]localapi.Evidence, 0, len(f.Evidence)),
		Repair:    f.Repair,
		Fix:       f.Fix,
		Facts:     f.Facts,
		Signature: f.Signature,
	}
	for _, e := range f.Evidence {
		out.Evidence = append(out.Evidence, localapi.Evidence{Witness: string(e.Witness), Text: e.Text})
	}
	return out
}

// checks returns the Check of the plugin's dependencies. Without one only the ledger is
// compared with itself, and every witness is missing.
func (p *RESTAPI) checks() Checker {
	if p.Checker != nil {
		return p.Checker
	}
	return NewChecks(Checks{Ledger: p.Ledger, Docker: p.Docker})
}

// checkLedger compares the ledger with itself and its file.
func (p *RESTAPI) checkLedger(w http.ResponseWriter, r *http.Request) {
	contradictions, err := p.Ledger.Check(r.Context())
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	book := findings.Book{Contradictions: contradictions, Leases: p.Ledger.Leases()}
	report := reportOf(&book, &witness.World{}, findings.Compare(book, &witness.World{}))
	report.Node, report.Young, report.LedgerOnly = p.Agent.Status().NodeName, 0, true
	report.Findings = slices.DeleteFunc(report.Findings, func(f localapi.Finding) bool {
		return f.Name == localapi.FindingWitnessMissing
	})
	report.Witnesses = []localapi.Witness{}
	writeJSON(w, http.StatusOK, report)
}

func (p *RESTAPI) check(w http.ResponseWriter, r *http.Request) {
	report, err := p.checks().Check(r.Context())
	if err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	p.keepFindings(report) // what is shown after a check is not older than it
	writeJSON(w, http.StatusOK, report)
}

func (p *RESTAPI) repair(w http.ResponseWriter, r *http.Request) {
	var req localapi.RepairRequest
	if !readJSON(w, r, &req) {
		return
	}
	if req.Finding.Number == "" || req.Finding.Signature == "" {
		writeError(
			w,
			http.StatusBadRequest,
			errors.New("finding: has no number or no signature: send one of /v1/check"),
		)
		return
	}
	reply, err := p.checks().Repair(r.Context(), req)
	if err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	if reply.Done {
		p.Log.Info("repaired by hand",
			"finding", reply.Finding.Number, "text", reply.Finding.Text, "change", reply.Change)
	}
	writeJSON(w, http.StatusOK, reply)
}
