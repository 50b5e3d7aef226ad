// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// inspector is a southbound that compares one wanted value with the actual state.
type inspector interface {
	// Inspect returns the difference, nil if there is none.
	Inspect(ctx context.Context, key string) error
}

// wires tells podmanager about the wires of pods.
type wires struct{ a *assembly }

// makesWires returns the wires of the agent, nil if other plugins make the interfaces.
func (a *assembly) makesWires() podmanager.Wires {
	if a.conf.Cadastre.Dataplane == contivconf.DataplaneNone {
		return nil
	}
	return wires{a}
}

// Ready returns the reason why no pod can be connected: no resync has succeeded yet, or the
// node's own network is not made.
func (w wires) Ready() error {
	if s := w.a.loop.Status(); !s.Resynced {
		return w.a.noResync(s)
	}
	if s, ok := w.a.sink.(interface{ Problem(key string) error }); ok {
		if err := s.Problem(kv.SinkNode); err != nil {
			return fmt.Errorf("the network of this node: %w", err)
		}
	}
	return nil
}

// Check compares the wire of an attachment with the kernel. A southbound that is set by an
// option may not offer that.
func (w wires) Check(ctx context.Context, key ledger.Key) error {
	if s, ok := w.a.sink.(inspector); ok {
		return s.Inspect(ctx, kv.SinkPodPrefix+key.String())
	}
	return nil
}

// Collect compares the southbound with what is wanted of it soon.
func (w wires) Collect() {
	if err := w.a.loop.PushEvent(&controller.HealingResync{Type: controller.Periodic}); err != nil {
		w.a.log.Warn("stray wires are not removed now, but with the next resync", "error", err)
	}
}
