// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// checkGrace is the longest age below which a check does not compare a lease with the
// witnesses. A CNI plugin makes the interface of a pod after it has the address.
const checkGrace = 30 * time.Second

// checks returns the comparison of the ledger with the witnesses.
func (a *assembly) checks() *restapi.Checks {
	conf := a.conf.Cadastre
	c := restapi.Checks{
		Node:      a.node.Name,
		Ledger:    a.ledger,
		Witnesses: a.reclaim,
		Subnets:   a.ipam,
		Repairs:   repairs{a},
		Grace:     min(checkGrace, conf.Reclaim.Grace),
		Private:   conf.PodBlocks == contivconf.PodBlocksNodeID,
		Routed:    conf.Transport != contivconf.TransportNone,
		Now:       a.clock.now,
	}
	if a.docker != nil {
		c.Docker = a.docker
	}
	if a.interfaces != nil {
		c.Cloud = a.cloudReading
	}
	return restapi.NewChecks(c)
}

// repairs makes the changes of repairs by hand.
type repairs struct{ a *assembly }

// Reclaim begins a reclaim, which can be undone.
func (r repairs) Reclaim(ctx context.Context, l ledger.Lease, reason string) (string, error) {
	until, err := r.a.reclaim.Begin(ctx, l, reason)
	if err != nil {
		return "", err
	}
	return " until " + until.Format(time.RFC3339), nil
}

// Quarantine quarantines an address in use. The quarantine ends as one that the agent
// began itself.
func (r repairs) Quarantine(ctx context.Context, pool string, f *findings.Finding) error {
	a := f.Subject.Addr
	fresh, err := r.a.ledger.Quarantine(ctx, pool, a, witness.QuarantineKey(a), "repair of "+f.Number+": "+f.Text)
	if err == nil && !fresh {
		return fmt.Errorf(
			"quarantine %s of pool %q: it is reserved or has a lease: want an address that a pod could get",
			a,
			pool,
		)
	}
	return err
}

// Release releases the lease of a pod through the event loop, and a quarantine directly.
func (r repairs) Release(ctx context.Context, l ledger.Lease, reason string) error {
	if l.Purpose == ledger.ForPod && l.State == ledger.Held {
		l.Reason = reason
		return r.a.podmanager.Delete(ctx, l)
	}
	_, err := r.a.ledger.Release(ctx, ledger.Selector{
		Addr:        l.Addr,
		Pool:        l.Pool,
		Purpose:     l.Purpose,
		Generation:  l.Generation,
		Quarantined: l.State == ledger.Quarantined,
		Reason:      reason,
	})
	return err
}
