// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// register returns the claims of the cluster store.
func (a *assembly) register() *claims.Register {
	ids := a.conf.Cadastre.NodeIDs
	return &claims.Register{
		Store:   a.store,
		Implied: ipam.Implied(a.contivconf),
		Fresh:   ids.Fresh,
		Expire:  ids.Expire,
	}
}

// idLeases shows and stops the leases of addresses that follow from the node ID.
type idLeases struct{ ledger *ledger.Ledger }

// InUse reports whether any address is leased.
func (l idLeases) InUse() bool { return slices.ContainsFunc(l.ledger.Stats(), hasLeases) }

// Suspend stops new leases; an empty reason allows them again.
func (l idLeases) Suspend(reason string) { l.ledger.Suspend("node ID", reason) }

// hasID reports whether the node has an ID.
func (a *assembly) hasID() bool { return a.idClaimer.ID() != 0 }

// claimsAsked lets the claims replace what the node's record implies, once each block
// that has leases has a claim. Other nodes must respect the record until then.
func (a *assembly) claimsAsked() {
	if !ipam.ExplicitBlocks(a.contivconf) {
		return
	}
	for t := range a.claimer.Waiting() {
		if a.leased(t) {
			return
		}
	}
	a.idClaimer.ClaimsBlocks()
}

// quarantine returns the quarantine of a node ID that was claimed in a new store. A
// store that only this node uses has none.
func quarantine(conf *contivconf.Config, d dependencies) time.Duration {
	if d.mirror == nil {
		return 0
	}
	return conf.Cadastre.NodeIDs.Quarantine
}

// fullQueueRetry delays the next attempt to push an event into a full queue.
const fullQueueRetry = time.Second

// claimsChanged has the event loop and the Node condition look at the claims. No other
// event makes the loop open the block, so claimsChanged tries a full queue again. It
// does not wait for room: the source of the cluster's state may call it before the
// first resync, without which the loop takes nothing from the queue.
func (a *assembly) claimsChanged() {
	a.conditions.look()
	err := a.loop.PushEvent(&nodesync.ClaimChange{})
	if err == nil || errors.Is(err, controller.ErrClosedController) {
		return
	}
	a.log.Warn("the event loop did not take a change of this node's claims; trying again",
		"error", err, "wait", fullQueueRetry)
	time.AfterFunc(fullQueueRetry, a.claimsChanged)
}

// initialClaims returns the blocks that need claims before the first event: those
// of the configuration, and those that have leases.
func (a *assembly) initialClaims() (all []claims.Target) {
	if !ipam.ExplicitBlocks(a.contivconf) {
		return nil
	}
	if a.conf.Cadastre.PodBlocks == contivconf.PodBlocksStatic {
		for _, p := range a.contivconf.StaticPodCIDRs() {
			all = append(all, claims.Block(p))
		}
	}
	for _, b := range a.ledger.Stats() {
		if t := claims.Block(b.Block); b.Pool == ipam.PodPool && hasLeases(b) {
			all = append(all, t)
		}
	}
	return all
}

// leased reports whether addresses of a block are leased.
func (a *assembly) leased(t claims.Target) bool {
	if t.Network != kv.PodNetworkClaims {
		return false
	}
	for _, b := range a.ledger.Stats() {
		if b.Pool == ipam.PodPool && b.Block == t.Prefix && hasLeases(b) {
			return true
		}
	}
	return false
}

func hasLeases(b ledger.BlockStat) bool { return b.Held+b.Cooling+b.Quarantined > 0 }

// claim confirms the node ID, and then the claims of this node. A claim that
// cannot be confirmed does not keep the cluster's state from being followed.
func (a *assembly) claim(ctx context.Context) error {
	if err := a.idClaimer.Confirm(ctx); err != nil {
		return err
	}
	if err := a.claimer.Confirm(ctx); err != nil {
		a.log.Warn("the claims of this node cannot be confirmed now", "error", err)
	}
	return nil
}

// claims returns the states of this node's claims, in order.
func (a *assembly) claims() []localapi.Claim {
	all := []localapi.Claim{}
	for t, s := range a.claimer.All() {
		c := localapi.Claim{Network: t.Network, Prefix: t.Prefix.String(), Held: s.Held, Since: s.Since.UTC()}
		if s.Blocker != nil {
			c.Reason = s.Blocker.String()
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b localapi.Claim) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Prefix, b.Prefix))
	})
	return all
}

// hasAddress fails if this node waits for its pinned node address: without it no
// other node reaches its pods.
func (a *assembly) hasAddress() error {
	for t, s := range a.claimer.Waiting() {
		if t.Network == kv.NodeNetworkClaims && s.Blocker != nil {
			return fmt.Errorf("waiting for the claim of node address %s: %s", t.Prefix.Addr(), s.Blocker)
		}
	}
	return nil
}
