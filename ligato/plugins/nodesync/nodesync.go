// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodesync is Cadastre's nodesync as a plugin of Ligato: this node's ID and the
// claims of its prefixes, whose claimers run from AfterInit to Close, and the other nodes.
package nodesync

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ligato/cn-infra/infra"
	"github.com/ligato/cn-infra/logging"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ligato/internal/background"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	Node      *node.Plugin
	EventLoop controller.EventLoop
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	*handler
	ids    *nodesync.IDClaimer
	claims *claims.Claimer
	group  *background.Group
}

// handler is embedded under a name that Ligato's look-up of plugins does not see.
type handler = nodesync.NodeSync

// Option changes a Plugin before it is initialised.
type Option func(*Plugin)

// UseDeps returns an Option that sets dependencies.
func UseDeps(set func(*Deps)) Option { return func(p *Plugin) { set(&p.Deps) } }

// NewPlugin returns the plugin.
func NewPlugin(opts ...Option) *Plugin {
	p := &Plugin{}
	p.PluginName = "cadastre-nodesync"
	for _, o := range opts {
		o(p)
	}
	if p.Log == nil {
		p.Log = logging.ForPlugin(p.String())
	}
	return p
}

// String returns the name of the plugin.
func (p *Plugin) String() string { return p.Deps.String() }

// IDs returns the claimer of the node's ID.
func (p *Plugin) IDs() *nodesync.IDClaimer { return p.ids }

// Claims returns the claimer of the node's prefixes.
func (p *Plugin) Claims() *claims.Claimer { return p.claims }

// Init makes the claimers and the event handler.
func (p *Plugin) Init() (err error) {
	log, conf := slogger.New(p.Log), p.Node.Conf().Cadastre
	ids := conf.NodeIDs
	register := &claims.Register{
		Store:   p.Node.Store(),
		Implied: ipam.Implied(p.Node.ContivConf()),
		Fresh:   ids.Fresh,
		Expire:  ids.Expire,
	}
	identity := nodesync.Identity{
		Name:     p.Node.GetAgentLabel(),
		Instance: p.Node.Instance(),
		Session:  p.Node.Session(),
		Machine:  nodesync.Machine{BootID: p.Node.BootID()},
		Pinned:   conf.NodeID,
		Limit:    ipam.NodeIDLimit(p.Node.ContivConf()),
		Fresh:    ids.Fresh,
		Expire:   ids.Expire,
		Random:   rand.Float64,
		Claims:   register,
		Explicit: ipam.ExplicitBlocks(p.Node.ContivConf()),
	}
	var firstWait time.Duration
	if !p.Node.Alone() {
		identity.Quarantine = ids.Quarantine
		firstWait = min(3*conf.Controller.RemoteDBProbingInterval, conf.Controller.StartupResyncDeadline/2)
	}
	p.ids, err = nodesync.NewIDClaimer(nodesync.IDClaimerDeps{
		Log:       log,
		Store:     p.Node.Store(),
		Disk:      p.Node.File(),
		EventLoop: p.EventLoop,
		Leases:    leases{p.Node.Ledger()},
		Identity:  identity,
		Refresh:   ids.Refresh,
		Expire:    ids.Expire,
		FirstWait: firstWait,
		Alone:     p.Node.Alone(),
		Now:       time.Now,
		Random:    rand.Float64,
	})
	if err != nil {
		return err
	}
	p.claims, err = claims.NewClaimer(claims.ClaimerDeps{
		Log:      log,
		Register: *register,
		Disk:     p.Node.File(),
		Node:     p.ids.Claimant,
		InUse:    p.inUse,
		Changed:  p.claimsChanged,
		Asked:    p.claimsAsked,
		Suspend:  func(why string) { p.Node.Ledger().Suspend("claims", why) },
		Initial:  p.initialClaims(),
		CoolDown: conf.CoolDown,
		Refresh:  ids.Refresh,
		Now:      time.Now,
		Random:   rand.Float64,
	})
	p.handler = nodesync.NewPlugin(nodesync.Deps{
		PluginDeps:   controller.PluginDeps{Log: log},
		ServiceLabel: p.Node,
		IDClaimer:    p.ids,
		Claims:       p.claims,
	})
	return err
}

// AfterInit starts the claimers.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Node.Fail)
	p.group.Go("node ID", p.ids.Run)
	p.group.Go("claims", p.claims.Run)
	return nil
}

// Close ends the claimers.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}

// Claim confirms the node's ID, and then its claims. A claim that cannot be confirmed does
// not keep the cluster's state from being followed.
func (p *Plugin) Claim(ctx context.Context) error {
	if err := p.ids.Confirm(ctx); err != nil {
		return err
	}
	if err := p.claims.Confirm(ctx); err != nil {
		p.Log.Warnf("the claims of this node cannot be confirmed now: %v", err)
	}
	return nil
}

// fullQueueRetry delays the next attempt to push an event into a full queue.
const fullQueueRetry = time.Second

// claimsChanged has the event loop look at the claims.
func (p *Plugin) claimsChanged() {
	err := p.EventLoop.PushEvent(&nodesync.ClaimChange{})
	if err == nil || errors.Is(err, controller.ErrClosedController) {
		return
	}
	p.Log.Warnf("the event loop did not take a change of this node's claims; trying again: %v", err)
	time.AfterFunc(fullQueueRetry, p.claimsChanged)
}

// claimsAsked lets the claims replace what the node's record implies, once each block that
// has leases has a claim.
func (p *Plugin) claimsAsked() {
	if !ipam.ExplicitBlocks(p.Node.ContivConf()) {
		return
	}
	for t := range p.claims.Waiting() {
		if p.inUse(t) {
			return
		}
	}
	p.ids.ClaimsBlocks()
}

// initialClaims returns the blocks that need claims before the first event.
func (p *Plugin) initialClaims() (all []claims.Target) {
	conf := p.Node.ContivConf()
	if !ipam.ExplicitBlocks(conf) {
		return nil
	}
	if p.Node.Conf().Cadastre.PodBlocks == contivconf.PodBlocksStatic {
		for _, b := range conf.StaticPodCIDRs() {
			all = append(all, claims.Block(b))
		}
	}
	for _, b := range p.Node.Ledger().Stats() {
		if b.Pool == ipam.PodPool && hasLeases(b) {
			all = append(all, claims.Block(b.Block))
		}
	}
	return all
}

// inUse reports whether addresses of a block are leased.
func (p *Plugin) inUse(t claims.Target) bool {
	return t.Network == kv.PodNetworkClaims &&
		slices.ContainsFunc(p.Node.Ledger().Stats(), func(b ledger.BlockStat) bool {
			return b.Pool == ipam.PodPool && b.Block == t.Prefix && hasLeases(b)
		})
}

func hasLeases(b ledger.BlockStat) bool { return b.Held+b.Cooling+b.Quarantined > 0 }

// leases shows and stops the leases of addresses that follow from the node ID.
type leases struct{ ledger *ledger.Ledger }

// InUse reports whether any address is leased.
func (l leases) InUse() bool { return slices.ContainsFunc(l.ledger.Stats(), hasLeases) }

// Suspend stops new leases; an empty reason allows them again.
func (l leases) Suspend(reason string) { l.ledger.Suspend("node ID", reason) }
