// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"context"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// Busy reports whether a request for an attachment is in progress. Any goroutine may call it.
func (p *PodManager) Busy(k ledger.Key) bool { return p.seq.busy(k) }

// Reclaim ends the attachment of a lease whose reclaim is pending. It does nothing if the
// reclaim was undone, if the attachment has a newer lease, or if an ADD of it is in
// progress. It reports whether the lease is released.
func (p *PodManager) Reclaim(ctx context.Context, l ledger.Lease, reason string) (freed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	k := l.Key
	ticket, ok := p.seq.beginReclaim(k)
	if !ok {
		return false, nil
	}
	ev := &DeletePod{
		Key:        k,
		Generation: l.Generation,
		Reason:     reason,
		wanted:     func() bool { return !p.Ledger.AnsweredAfter(k, ticket) && p.reclaiming(l) },
		ended:      func() { p.seq.delDone(k) },
	}
	err = p.push(ctx, ev)
	return err == nil && len(ev.Freed) > 0, err
}

// reclaiming reports whether the reclaim of a lease is still pending.
func (p *PodManager) reclaiming(l ledger.Lease) bool {
	return slices.ContainsFunc(p.Ledger.ByKey(l.Key), func(x ledger.Lease) bool {
		return x.Generation == l.Generation && x.Reclaiming()
	})
}
