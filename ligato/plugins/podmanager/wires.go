// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"context"
	"errors"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// wires tells the event handler about the wires of pods.
type wires struct{ p *Plugin }

// Ready returns the reason why no pod can be connected.
func (w wires) Ready() error {
	if !w.p.EventLoop.Status().Resynced {
		return errors.New("no resync has succeeded yet")
	}
	return nil
}

// Check compares the wire of an attachment with the kernel.
func (w wires) Check(ctx context.Context, key ledger.Key) error {
	if w.p.Inspector == nil {
		return nil
	}
	return w.p.Inspector.Inspect(ctx, kv.SinkPodPrefix+key.String())
}

// Collect has the southbound compared with what is wanted of it.
func (w wires) Collect() {
	if err := w.p.EventLoop.PushEvent(&controller.HealingResync{Type: controller.Periodic}); err != nil {
		w.p.Log.Warnf("stray wires are not removed now, but with the next resync: %v", err)
	}
}
