// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/engine"
	"github.com/cadastre/cadastre/witness/kernel"
	"github.com/cadastre/cadastre/witness/rebuild"
	"github.com/cadastre/cadastre/witness/runtime"
)

// driverName returns the name under which the Docker engine knows the agent's driver: that
// of its socket.
func driverName(socket string) string { return strings.TrimSuffix(filepath.Base(socket), ".sock") }

// cniPlugin is the name of our plugin in CNI configurations.
const cniPlugin = "cadastre-cni"

// readersOf returns the readers of the sources on this machine.
func readersOf(conf contivconf.Cadastre) reclaim.Readers {
	return reclaim.Readers{
		Results: rebuild.NewResults(conf.Witnesses.Results, cniPlugin).Read,
		Kernel:  kernel.New(kernel.Options{Dirs: conf.Witnesses.NetNS}),
		Runtime: runtime.New(runtime.Options{Endpoint: conf.Witnesses.Runtime}),
		Engine: engine.New(engine.Options{
			Endpoint: conf.Witnesses.Engine,
			Driver:   driverName(conf.Docker.Socket),
			Needed:   conf.Docker.Enabled,
			Random:   mathrand.Float64,
		}),
	}
}

// sandboxes reads the container runtime with the details of its sandboxes. Without any
// runtime the witness is not applicable, unless pods have leases.
type sandboxes struct {
	*runtime.Reader
	ledger *ledger.Ledger
}

// Read lists all sandboxes.
func (s sandboxes) Read(ctx context.Context) (*witness.RuntimeView, error) {
	view, err := s.ReadDetailed(ctx)
	if !errors.Is(err, runtime.ErrNoRuntime) {
		return view, err
	}
	for l := range s.ledger.All() {
		if l.Purpose == ledger.ForPod && l.InUse() && !l.Key.OfAPI() {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w, and no pod has a lease: %w", err, witness.ErrNotApplicable)
}

// makeReclaim makes the plugin that reads the witnesses.
func (a *assembly) makeReclaim(d dependencies) {
	conf, readers := a.conf.Cadastre, d.readers
	if r, ok := readers.Runtime.(*runtime.Reader); ok {
		readers.Runtime = sandboxes{r, a.ledger}
	}
	readers.Cluster = a.cluster
	doors := map[ledger.Purpose]reclaim.Door{ledger.ForPod: a.podmanager}
	var observers []reclaim.Observer
	if a.docker != nil {
		doors[ledger.ForDocker] = a.docker
		observers = append(observers, a.docker)
	}
	if r, ok := readers.Engine.(*engine.Reader); ok {
		a.watchEngine = r.Watch
	}
	a.reclaim = reclaim.NewPlugin(reclaim.Deps{
		PluginDeps: controller.PluginDeps{Log: a.log},
		Config: reclaim.Config{
			Enabled:  conf.Reclaim.Enabled,
			Interval: conf.Witnesses.Interval,
			Grace:    conf.Reclaim.Grace,
			Undo:     conf.Reclaim.Undo,
		},
		Ledger:  a.ledger,
		Readers: readers,
		Driver:  driverName(conf.Docker.Socket),
		Doors:   doors,

		Observers: observers,
		Now:       a.clock.now,
		Uptime:    a.clock.uptime,
		BootID:    a.readBootID,
		Degraded:  a.degraded,
		Starting:  a.beginning,
	})
	a.metrics.WatchReclaims(a.reclaim.Counts, a.reclaim.Reports, a.clock.now)
}

// readBootID returns the boot ID of the machine as it is now.
func (a *assembly) readBootID() (string, error) {
	if a.node.BootIDFile == "" { // in a simulation
		return a.clock.bootID, nil
	}
	id, err := os.ReadFile(a.node.BootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// beginning returns why the ledger may lack leases that the agent is about to claim, ""
// if it does not.
func (a *assembly) beginning() string {
	switch s := a.loop.Status(); {
	case !s.Resynced:
		return a.noResync(s).Error()
	case !a.progress.recovered.Load():
		return "DELs that waited for the agent are being applied"
	}
	return ""
}

// degraded returns why the ledger may be wrong, or may not be written, "" if it is
// neither.
func (a *assembly) degraded() string {
	if why := a.beginning(); why != "" {
		return why
	}
	if why := a.ledger.Suspended(); why != "" {
		return why
	}
	if a.file != nil && a.file.Doubt() != nil {
		return "the database is in doubt: " + a.file.Doubt().Reason
	}
	for _, err := range []error{a.live(), a.healthy()} {
		if err != nil {
			return err.Error()
		}
	}
	return ""
}

// reclaims passes what the container runtime says on to the plugin, which is made after
// podmanager.
type reclaims struct{ a *assembly }

// Unlisted takes the leases that a GC did not list.
func (r reclaims) Unlisted(ctx context.Context, network string, leases []ledger.Lease) ([]string, error) {
	return r.a.reclaim.Unlisted(ctx, network, leases)
}

// Claimed notes that the runtime has added an attachment.
func (r reclaims) Claimed(k ledger.Key) { r.a.reclaim.Claimed(k) }

// identify returns the identity of the network namespace that a file names, the zero one if
// the agent does not see a namespace there.
func (a *assembly) identify(netns string) kv.NetNSID {
	id, err := kernel.Identify(netns, a.clock.bootID)
	if err != nil {
		a.log.Debug("a network namespace is not known", "error", err)
	}
	return id
}

// kernelLinks reads the interfaces of pods.
type kernelLinks struct{ a *assembly }

// Interface returns the addresses of an interface in a network namespace.
func (i kernelLinks) Interface(
	ctx context.Context,
	netns, ifName string,
) (addrs []netip.Prefix, exists, known bool, err error) {
	return i.a.reclaim.Interface(ctx, netns, ifName)
}
