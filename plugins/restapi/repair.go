// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness/findings"
)

// Repairs makes the changes that a repair needs. The reason of each is the finding.
type Repairs interface {
	// Reclaim makes a lease pending, as a reclaim that can be undone; it describes until
	// when.
	Reclaim(ctx context.Context, l ledger.Lease, reason string) (until string, err error)
	// Quarantine keeps an address in use without a lease from being allocated.
	Quarantine(ctx context.Context, pool string, f *findings.Finding) error
	// Release releases a lease through its own door.
	Release(ctx context.Context, l ledger.Lease, reason string) error
}

// errNoRepairs is the error of a repair without Repairs.
var errNoRepairs = errors.New("this program has no repair: see the fix of the finding")

// Repair looks for a finding in a fresh round of the witnesses and makes the change that
// ends it. It refuses a finding that has changed. One round suffices: the report that has
// the finding is another one.
func (c *Checks) Repair(ctx context.Context, req localapi.RepairRequest) (localapi.RepairReply, error) {
	contradictions, err := c.Ledger.Check(ctx)
	if err != nil {
		return localapi.RepairReply{}, err
	}
	book, world, err := c.round(ctx, contradictions)
	if err != nil {
		return localapi.RepairReply{}, err
	}
	found := findings.Compare(book, world)
	i := slices.IndexFunc(found, func(f findings.Finding) bool { return f.Signature == req.Finding.Signature })
	if i < 0 {
		return localapi.RepairReply{Finding: req.Finding, Refused: difference(&req.Finding, found, &book)}, nil
	}
	f := &found[i]
	reply := localapi.RepairReply{Finding: findingOf(f)}
	l := leaseAt(&book, f)
	if req.All && f.Number == findings.MissingAddress && l != nil {
		if why := findings.WhyKept(l, world); why != "" {
			return localapi.RepairReply{Finding: reply.Finding, Refused: why}, nil
		}
		f.Repair = findings.RepairRelease
	}
	if f.Repair == "" {
		return reply, nil
	}
	if l == nil && f.Repair != findings.RepairQuarantine {
		return reply, fmt.Errorf("repair %s: %s has no lease", f.Number, f.Subject.Addr)
	}
	reply.Change = describeRepair(f, l)
	if f.Repair != findings.RepairQuarantine && !req.Force {
		in := inUseOf(findings.UsesOf(book, world, []ledger.Lease{*l}), world)
		if refuseInUse(&in, "nothing was changed") {
			return localapi.RepairReply{Finding: reply.Finding, Refused: in.Refused}, nil
		}
	}
	if req.DryRun {
		return reply, nil
	}
	if c.Repairs == nil {
		return reply, &localapi.StatusError{Status: http.StatusNotImplemented, Err: errNoRepairs}
	}
	if err := c.change(ctx, f, l, &reply); err != nil {
		return reply, fmt.Errorf("repair %s (%s): %w", f.Number, f.Text, err)
	}
	reply.Done = true
	return reply, nil
}

func (c *Checks) change(ctx context.Context, f *findings.Finding, l *ledger.Lease, reply *localapi.RepairReply) error {
	reason := "repair of " + f.Number + ": " + f.Text
	switch f.Repair {
	case findings.RepairReclaim:
		until, err := c.Repairs.Reclaim(ctx, *l, reason)
		reply.Change += until
		return err
	case findings.RepairQuarantine:
		return c.Repairs.Quarantine(ctx, f.Subject.Pool, f)
	case findings.RepairEndQuarantine, findings.RepairRelease:
		return c.Repairs.Release(ctx, *l, reason)
	}
	return fmt.Errorf("it has no action %q", f.Repair)
}

// leaseAt returns the lease that a finding is about, nil for none.
func leaseAt(book *findings.Book, f *findings.Finding) *ledger.Lease {
	for i := range book.Leases {
		l := &book.Leases[i]
		if l.Pool == f.Subject.Pool && l.Addr == f.Subject.Addr && l.Generation == f.Subject.Generation {
			return l
		}
	}
	return nil
}

// describeRepair describes the change that ends a finding.
func describeRepair(f *findings.Finding, l *ledger.Lease) string {
	switch f.Repair {
	case findings.RepairReclaim:
		return fmt.Sprintf("reclaim %s of pool %q from %s: it becomes pending, and is released if it is not undone",
			l.Addr, l.Pool, l.Key)
	case findings.RepairQuarantine:
		return fmt.Sprintf("quarantine %s of pool %q: it is not allocated", f.Subject.Addr, f.Subject.Pool)
	case findings.RepairEndQuarantine:
		return fmt.Sprintf("end the quarantine of %s of pool %q: it may be allocated again", l.Addr, l.Pool)
	}
	return fmt.Sprintf("release %s of pool %q from %s", l.Addr, l.Pool, l.Key)
}

// difference describes how a finding of a report has changed.
func difference(old *localapi.Finding, found []findings.Finding, book *findings.Book) string {
	same := findings.Finding{Number: old.Number, Subject: findings.Subject(old.Subject)}
	i := slices.IndexFunc(found, func(f findings.Finding) bool { return f.About() == same.About() })
	if i >= 0 {
		return "it has changed: " + factsChanged(old.Facts, found[i].Facts)
	}
	text := "the witnesses do not show it any more"
	if !old.Subject.Addr.IsValid() {
		return text
	}
	for _, f := range found {
		if f.Subject.Addr == old.Subject.Addr {
			return fmt.Sprintf("it has changed: now it is %s %s: %s", f.Number, f.Name, f.Text)
		}
	}
	state := "free"
	for _, l := range book.Leases {
		if l.Addr == old.Subject.Addr && l.Pool == old.Subject.Pool {
			state = l.State.String() + " by " + l.Key.String()
		}
	}
	return fmt.Sprintf("%s: %s is %s", text, old.Subject.Addr, state)
}

func factsChanged(old, now []string) string {
	var all []string
	for _, x := range old {
		if !slices.Contains(now, x) {
			all = append(all, "no longer "+x)
		}
	}
	for _, x := range now {
		if !slices.Contains(old, x) {
			all = append(all, "now "+x)
		}
	}
	if len(all) == 0 {
		return "its signature is another one"
	}
	return strings.Join(all, "; ")
}
