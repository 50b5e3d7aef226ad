// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Types of the Node conditions that the agent writes where the API server is the
// cluster store.
const (
	claimsCondition = "CadastrePrefixesHeld"
	configCondition = "CadastreConfigurationApplied"
)

// configWarning is the reason of the warning event about a configuration that the
// cluster does not use.
const configWarning = "ConfigurationDiffers"

// conditioned is a cluster store that has a Node object for this node.
type conditioned interface {
	SetNodeCondition(context.Context, apistore.NodeCondition) error
	WarnNode(context.Context, apistore.NodeWarning) error
}

// reporter writes the Node conditions and events. One goroutine runs it.
type reporter struct {
	a      *assembly
	store  conditioned
	poke   chan struct{}
	wrote  map[string]string // by type what the condition says, without the times in it; absent: not written in this run
	warned string            // the difference that the last warning event in this run is about
}

func newReporter(a *assembly, store conditioned) *reporter {
	return &reporter{a: a, store: store, poke: make(chan struct{}, 1), wrote: map[string]string{}}
}

// look has the conditions compared with the agent's state soon.
func (r *reporter) look() {
	if r == nil {
		return
	}
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// observe returns the observer of the event loop. The conditions are compared with
// the agent's state after the first resync, and after an event that changed how
// contiv.conf differs from the cluster's pools.
func (a *assembly) observe() func(*controller.Record) {
	before, resynced := "", false
	return func(r *controller.Record) {
		a.metrics.Event(r)
		was := resynced
		resynced = was || a.loop.Status().Resynced
		if now := a.ipam.ConfigDiffers(); now != before || resynced != was {
			before = now
			a.told.look()
		}
	}
}

// run writes the conditions whenever they differ, until ctx ends. What cannot be
// written is tried again after a refresh.
func (r *reporter) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.poke:
		case <-time.After(r.a.conf.Cadastre.NodeIDs.Refresh):
		}
		if err := r.write(ctx); err != nil && ctx.Err() == nil {
			r.a.log.Warn("the Node object does not show the claims and the configuration of this node; this is tried again", "error", err)
		}
	}
}

func (r *reporter) write(ctx context.Context) error {
	err := errors.Join(r.set(ctx, r.held), r.set(ctx, r.configured))
	differs := r.a.ipam.ConfigDiffers()
	if differs != "" && differs != r.warned {
		if warning := r.store.WarnNode(ctx, apistore.NodeWarning{Reason: configWarning, Message: differs, At: r.a.clock.now()}); warning != nil {
			return errors.Join(err, warning)
		}
	}
	r.warned = differs
	return err
}

// set writes a condition that says something else than the last one of its type;
// says identifies what it says, "" for nothing to write.
func (r *reporter) set(ctx context.Context, state func() (c apistore.NodeCondition, says string)) error {
	c, says := state()
	if says == "" || says == r.wrote[c.Type] {
		return nil
	}
	c.Since = r.a.clock.now()
	if err := r.store.SetNodeCondition(ctx, c); err != nil {
		return err
	}
	r.wrote[c.Type] = says
	return nil
}

// held returns the condition of the claims of this node.
func (r *reporter) held() (c apistore.NodeCondition, says string) {
	all := r.a.claims()
	if len(all) == 0 && r.wrote[claimsCondition] == "" {
		return c, "" // this node claims nothing
	}
	c = apistore.NodeCondition{Type: claimsCondition, OK: true, Reason: "ClaimsHeld", Message: "this node holds the claims of all its prefixes"}
	for _, claim := range all {
		if !claim.Held {
			c.OK, c.Reason, c.Message = false, "WaitingForClaim", claimMessage(claim)
			return c, claim.Prefix + " " + claim.Since.String()
		}
	}
	return c, c.Reason
}

// configured returns the condition of the configuration of this node, once the
// pools of the cluster are known.
func (r *reporter) configured() (c apistore.NodeCondition, says string) {
	c = apistore.NodeCondition{Type: configCondition, OK: true, Reason: "PoolsEqual", Message: "the cluster uses the pod network of this node's contiv.conf"}
	if !r.a.loop.Status().Resynced {
		return c, ""
	}
	if differs := r.a.ipam.ConfigDiffers(); differs != "" {
		c.OK, c.Reason, c.Message = false, "PoolsDiffer", differs
	} else if mode := r.a.conf.Cadastre.PodBlocks; mode != contivconf.PodBlocksNodeID {
		c.Reason, c.Message = "NoPools", fmt.Sprintf("podBlocks is %s: the pod blocks of this node are not taken from pools of the cluster", mode)
	}
	return c, c.Message
}

func claimMessage(c localapi.Claim) string {
	if c.Reason == "" {
		return fmt.Sprintf("the claim of %s is asked for", c.Prefix)
	}
	return fmt.Sprintf("waiting for the claim of %s: %s", c.Prefix, c.Reason)
}
