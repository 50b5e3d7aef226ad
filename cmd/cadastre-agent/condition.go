// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// conditionType is the type of the Node condition that the agent writes where the
// API server is the cluster store.
const conditionType = "CadastrePrefixesHeld"

// conditioned is a cluster store that has a Node object for this node.
type conditioned interface {
	SetNodeCondition(context.Context, apistore.NodeCondition) error
}

// reporter writes the Node condition. One goroutine runs it.
type reporter struct {
	a     *agent
	store conditioned
	poke  chan struct{}
	wrote string // what the condition says, without the times in it; "": not written in this run
}

func newReporter(a *agent, store conditioned) *reporter {
	return &reporter{a: a, store: store, poke: make(chan struct{}, 1)}
}

// look has the condition compared with the claims soon.
func (r *reporter) look() {
	if r == nil {
		return
	}
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// run writes the condition whenever it differs, until ctx ends. What cannot be
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
			r.a.log.Warn("the Node object does not say how the claims of this node are", "error", err)
		}
	}
}

func (r *reporter) write(ctx context.Context) error {
	all := r.a.claims()
	if len(all) == 0 && r.wrote == "" {
		return nil // this node claims nothing
	}
	condition := apistore.NodeCondition{
		Type: conditionType, OK: true, Reason: "ClaimsHeld", Message: "this node holds the claims of all its prefixes", Since: r.a.clock.now(),
	}
	said := condition.Reason
	for _, c := range all {
		if !c.Held {
			condition.OK, condition.Reason, condition.Message = false, "WaitingForClaim", claimMessage(c)
			said = c.Prefix + " " + c.Since.String()
			break
		}
	}
	if said == r.wrote {
		return nil
	}
	if err := r.store.SetNodeCondition(ctx, condition); err != nil {
		return err
	}
	r.wrote = said
	return nil
}

func claimMessage(c localapi.Claim) string {
	if c.Reason == "" {
		return fmt.Sprintf("the claim of %s is asked for", c.Prefix)
	}
	return fmt.Sprintf("waiting for the claim of %s: %s", c.Prefix, c.Reason)
}
