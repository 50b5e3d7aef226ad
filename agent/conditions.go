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

// nodeObject is implemented by a cluster store that has a Node object for this node.
type nodeObject interface {
	SetNodeCondition(context.Context, apistore.NodeCondition) error
	WarnNode(context.Context, apistore.NodeWarning) error
}

// conditionWriter writes the Node conditions and events. One goroutine runs it.
type conditionWriter struct {
	a      *assembly
	store  nodeObject
	poke   chan struct{}
	wrote  map[string]string // the text of each condition without its times, by type; absent: not written in this run
	warned string            // the difference that the last warning event in this run is about
}

func newConditionWriter(a *assembly, store nodeObject) *conditionWriter {
	return &conditionWriter{a: a, store: store, poke: make(chan struct{}, 1), wrote: map[string]string{}}
}

// look has the conditions compared with the agent's state soon.
func (w *conditionWriter) look() {
	if w == nil {
		return
	}
	select {
	case w.poke <- struct{}{}:
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
			a.conditions.look()
		}
	}
}

// run writes the conditions whenever they differ, until ctx ends. It repeats
// a write that failed after a refresh.
func (w *conditionWriter) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.poke:
		case <-time.After(w.a.conf.Cadastre.NodeIDs.Refresh):
		}
		if err := w.write(ctx); err != nil && ctx.Err() == nil {
			w.a.log.Warn("the Node object does not show the claims and the configuration of this node; trying again",
				"error", err)
		}
	}
}

func (w *conditionWriter) write(ctx context.Context) error {
	err := errors.Join(w.set(ctx, w.held), w.set(ctx, w.configured))
	differs := w.a.ipam.ConfigDiffers()
	if differs != "" && differs != w.warned {
		if warning := w.store.WarnNode(
			ctx,
			apistore.NodeWarning{Reason: configWarning, Message: differs, At: w.a.clock.now()},
		); warning != nil {
			return errors.Join(err, warning)
		}
	}
	w.warned = differs
	return err
}

// set writes a condition whose content differs from the last one of its type. says
// identifies the content; it is empty if there is nothing to write.
func (w *conditionWriter) set(ctx context.Context, state func() (c apistore.NodeCondition, says string)) error {
	c, says := state()
	if says == "" || says == w.wrote[c.Type] {
		return nil
	}
	c.Since = w.a.clock.now()
	if err := w.store.SetNodeCondition(ctx, c); err != nil {
		return err
	}
	w.wrote[c.Type] = says
	return nil
}

// held returns the condition of the claims of this node.
func (w *conditionWriter) held() (c apistore.NodeCondition, says string) {
	all := w.a.claims()
	if len(all) == 0 && w.wrote[claimsCondition] == "" {
		return c, "" // this node claims nothing
	}
	c = apistore.NodeCondition{
		Type:    claimsCondition,
		OK:      true,
		Reason:  "ClaimsHeld",
		Message: "this node holds the claims of all its prefixes",
	}
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
func (w *conditionWriter) configured() (c apistore.NodeCondition, says string) {
	c = apistore.NodeCondition{
		Type:    configCondition,
		OK:      true,
		Reason:  "PoolsEqual",
		Message: "the cluster uses the pod network of this node's contiv.conf",
	}
	if !w.a.loop.Status().Resynced {
		return c, ""
	}
	if differs := w.a.ipam.ConfigDiffers(); differs != "" {
		c.OK, c.Reason, c.Message = false, "PoolsDiffer", differs
	} else if mode := w.a.conf.Cadastre.PodBlocks; mode != contivconf.PodBlocksNodeID {
		c.Reason, c.Message = "NoPools", fmt.Sprintf(
			"podBlocks is %s: the pod blocks of this node are not taken from pools of the cluster",
			mode,
		)
	}
	return c, c.Message
}

func claimMessage(c localapi.Claim) string {
	if c.Reason == "" {
		return fmt.Sprintf("the claim of %s is asked for", c.Prefix)
	}
	return fmt.Sprintf("waiting for the claim of %s: %s", c.Prefix, c.Reason)
}
