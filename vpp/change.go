// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"fmt"

	"go.fd.io/govpp/api"
)

// change makes and removes objects over one connection, and keeps the state in step.
type change struct {
	ctx    context.Context
	client *client
	on     *session
	st     *state
}

// call sends a request. allowed numbers of a refusal are not errors.
func (x *change) call(what string, request api.Message, allowed ...api.VPPApiError) (api.Message, error) {
	reply, err := x.client.call(x.ctx, x.on, what, request)
	if len(allowed) > 0 && refused(err, allowed...) {
		err = nil
	}
	return reply, err
}

func (x *change) do(what string, request api.Message, allowed ...api.VPPApiError) error {
	_, err := x.call(what, request, allowed...)
	return err
}

// make makes all objects of a plan, or repairs those that differ.
func (x *change) make(p *plan) error {
	for _, t := range p.tables {
		if err := x.makeTable(t); err != nil {
			return err
		}
	}
	for _, d := range p.domains {
		if err := x.makeDomain(d); err != nil {
			return err
		}
	}
	for _, l := range p.links {
		if err := x.makeLink(l); err != nil {
			return fmt.Errorf("interface %s: %w", l.tag, err)
		}
	}
	if err := x.makeNeighbours(p.neighbours); err != nil {
		return err
	}
	for _, r := range p.routes {
		if err := x.makeRoute(r); err != nil {
			return err
		}
	}
	if p.nat != nil {
		return x.makeNAT(*p.nat)
	}
	return nil
}

// remove removes the objects of a plan, apart from those that kept has too. What is missing is
// not an error.
func (x *change) remove(p, kept *plan) error {
	if kept == nil {
		kept = &plan{}
	}
	if p.nat != nil && kept.nat == nil {
		if err := x.removeNAT(*p.nat); err != nil {
			return err
		}
	}
	places, tags, domains, tables := map[place]bool{}, map[string]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for _, r := range kept.routes {
		places[r.place] = true
	}
	for _, l := range kept.links {
		tags[l.tag] = true
	}
	for _, d := range kept.domains {
		domains[d.id] = true
	}
	for _, t := range kept.tables {
		tables[t.id] = true
	}
	for _, r := range p.routes {
		if !places[r.place] && !x.st.takenOver(r) {
			if err := x.removeRoute(r.place); err != nil {
				return err
			}
		}
	}
	if err := x.removeNeighbours(p.neighbours, kept.neighbours); err != nil {
		return err
	}
	for i := len(p.links) - 1; i >= 0; i-- {
		if a := x.st.byTag[p.links[i].tag]; a != nil && !tags[p.links[i].tag] {
			if err := x.removeLink(a); err != nil {
				return err
			}
		}
	}
	for _, d := range p.domains {
		if !domains[d.id] {
			if err := x.removeDomain(d.id); err != nil {
				return err
			}
		}
	}
	for _, t := range p.tables {
		if !tables[t.id] {
			if err := x.removeTable(t.id); err != nil {
				return err
			}
		}
	}
	return nil
}
