// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// ClaimersDeps holds the dependencies of Claimers.
type ClaimersDeps struct {
	Log        *slog.Logger
	Config     contivconf.Cadastre
	ContivConf contivconf.API
	Store      kvdb.Store
	Alone      bool // only this node uses the store, on the same disk
	Disk       nodesync.Disk
	EventLoop  controller.EventLoop
	Ledger     *ledger.Ledger
	// Identity has Name, Instance, Session and Machine; the rest follows from the
	// configuration.
	Identity nodesync.Identity
	Docker   func() []netip.Prefix // as nodesync.IDClaimerDeps has it; may be nil
	Changed  func()                // called when the claims have changed; may be nil
	Now      func() time.Time
	Random   func() float64
}

// Claimers are the claimers of this node's ID, and of the prefixes that it allocates from.
// They run beside the event loop, and pass it what changes. Any goroutine may call the
// methods.
type Claimers struct {
	ClaimersDeps
	IDs      *nodesync.IDClaimer
	Prefixes *claims.Claimer
}

// NewClaimers returns the claimers, whose Run the caller calls.
func NewClaimers(deps ClaimersDeps) (*Claimers, error) {
	c, ids := &Claimers{ClaimersDeps: deps}, deps.Config.NodeIDs
	identity := deps.Identity
	identity.Pinned = deps.Config.NodeID
	identity.Limit = NodeIDLimit(deps.ContivConf)
	identity.Fresh, identity.Expire = ids.Fresh, ids.Expire
	identity.Random = deps.Random
	identity.Claims = c.Register()
	identity.Explicit = ExplicitBlocks(deps.ContivConf)
	if !deps.Alone {
		identity.Quarantine = ids.Quarantine
	}
	var firstWait time.Duration
	if deps.Config.KVDB.Type != contivconf.KVDBBolt { // otherwise no node knows more
		loop := deps.Config.Controller
		firstWait = min(3*loop.RemoteDBProbingInterval, loop.StartupResyncDeadline/2)
	}
	var err error
	c.IDs, err = nodesync.NewIDClaimer(nodesync.IDClaimerDeps{
		Log:       deps.Log,
		Store:     deps.Store,
		Disk:      deps.Disk,
		EventLoop: deps.EventLoop,
		Leases:    idLeases{deps.Ledger},
		Docker:    deps.Docker,
		Identity:  identity,
		Refresh:   ids.Refresh,
		Expire:    ids.Expire,
		FirstWait: firstWait,
		Alone:     deps.Alone,
		Now:       deps.Now,
		Random:    deps.Random,
	})
	if err != nil {
		return nil, err
	}
	c.Prefixes, err = claims.NewClaimer(claims.ClaimerDeps{
		Log:      deps.Log,
		Register: *c.Register(),
		Disk:     deps.Disk,
		Node:     c.IDs.Claimant,
		InUse:    c.leased,
		Changed:  c.changed,
		Asked:    c.asked,
		Suspend:  func(why string) { deps.Ledger.Suspend("claims", why) },
		Initial:  c.initial(),
		CoolDown: deps.Config.CoolDown,
		Refresh:  ids.Refresh,
		Now:      deps.Now,
		Random:   deps.Random,
	})
	return c, err
}

// Register returns the claims of the cluster store.
func (c *Claimers) Register() *claims.Register {
	return &claims.Register{
		Store:   c.Store,
		Implied: Implied(c.ContivConf),
		Fresh:   c.Config.NodeIDs.Fresh,
		Expire:  c.Config.NodeIDs.Expire,
	}
}

// Confirm confirms the node ID, and then the claims of this node. A claim that cannot be
// confirmed does not keep the cluster's state from being followed.
func (c *Claimers) Confirm(ctx context.Context) error {
	if err := c.IDs.Confirm(ctx); err != nil {
		return err
	}
	if err := c.Prefixes.Confirm(ctx); err != nil {
		c.Log.Warn("the claims of this node cannot be confirmed now", "error", err)
	}
	return nil
}

// asked lets the claims replace what the node's record implies, once each block that has
// leases has a claim. Other nodes must respect the record until then.
func (c *Claimers) asked() {
	if !ExplicitBlocks(c.ContivConf) {
		return
	}
	for t := range c.Prefixes.Waiting() {
		if c.leased(t) {
			return
		}
	}
	c.IDs.ClaimsBlocks()
}

// fullQueueRetry delays the next attempt to push an event into a full queue.
const fullQueueRetry = time.Second

// changed has the event loop look at the claims. No other event makes the loop open the
// block, so changed tries a full queue again. It does not wait for room: the source of the
// cluster's state may call it before the first resync, without which the loop takes nothing
// from the queue.
func (c *Claimers) changed() {
	if c.Changed != nil {
		c.Changed()
	}
	err := c.EventLoop.PushEvent(&nodesync.ClaimChange{})
	if err == nil || errors.Is(err, controller.ErrClosedController) {
		return
	}
	c.Log.Warn("the event loop did not take a change of this node's claims; trying again",
		"error", err, "wait", fullQueueRetry)
	time.AfterFunc(fullQueueRetry, c.changed)
}

// initial returns the blocks that need claims before the first event: those of the
// configuration, and those that have leases.
func (c *Claimers) initial() (all []claims.Target) {
	if !ExplicitBlocks(c.ContivConf) {
		return nil
	}
	if c.Config.PodBlocks == contivconf.PodBlocksStatic {
		for _, p := range c.ContivConf.StaticPodCIDRs() {
			all = append(all, claims.Block(p))
		}
	}
	for _, b := range c.Ledger.Stats() {
		if b.Pool == PodPool && hasLeases(b) {
			all = append(all, claims.Block(b.Block))
		}
	}
	return all
}

// leased reports whether addresses of a block are leased.
func (c *Claimers) leased(t claims.Target) bool {
	return t.Network == kv.PodNetworkClaims &&
		slices.ContainsFunc(c.Ledger.Stats(), func(b ledger.BlockStat) bool {
			return b.Pool == PodPool && b.Block == t.Prefix && hasLeases(b)
		})
}

func hasLeases(b ledger.BlockStat) bool { return b.Held+b.Cooling+b.Quarantined > 0 }

// idLeases shows and stops the leases of addresses that follow from the node ID.
type idLeases struct{ ledger *ledger.Ledger }

// InUse reports whether any address is leased.
func (l idLeases) InUse() bool { return slices.ContainsFunc(l.ledger.Stats(), hasLeases) }

// Suspend stops new leases; an empty reason allows them again.
func (l idLeases) Suspend(reason string) { l.ledger.Suspend("node ID", reason) }
