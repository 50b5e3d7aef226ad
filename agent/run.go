// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// progress records how far the agent has come.
type progress struct {
	answering atomic.Bool // CNI requests are answered
	recovered atomic.Bool // the DELs that waited are applied
}

// serve runs the agent until ctx ends or a part of it fails. api serves the API. All
// goroutines of the agent start here, and serve awaits them.
func (a *assembly) serve(ctx context.Context, api func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	start := func(name string, f func(context.Context) error) {
		wg.Go(func() {
			err := f(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("it returned before it was stopped")
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				mu.Unlock()
			}
			cancel() // all parts end together
		})
	}
	a.log.Info("the agent starts",
		"node", a.node.Name, "nodeID", a.claimers.IDs.ID(), "instance", a.instance, "version", version.Current(),
		"stateDir", a.node.StateDir, "socket", a.socket())
	if n := a.ledger.Rebooted(); n > 0 {
		a.log.Info("the machine was booted: leases of its sandboxes have ended", "count", n)
	}
	start("event loop", a.loop.Run)
	start("cluster state", a.source.Run)
	start("start without the cluster store", a.source.StartLocal)
	start("node ID", a.claimers.IDs.Run)
	start("claims", a.claimers.Prefixes.Run)
	if a.conditions != nil {
		start("Node conditions", a.conditions.run)
	}
	if a.warner != nil {
		start("events on pods", a.warner.run)
	}
	if a.cniList != nil {
		start("CNI list", a.cniList.run)
	}
	start("southbound", a.sink.Run)
	if a.returned != nil {
		start("data plane", a.healReturned)
	}
	if a.ipnet.Dataplane != nil {
		start("underlay", func(ctx context.Context) error { return a.ipnet.Watch(ctx, a.loop, time.After) })
	}
	if a.reporter != nil {
		start("NetResourceSet", a.reporter.Run)
	}
	if a.interfaces != nil {
		start("interfaces", a.interfaces.Run)
	}
	start("ledger", a.ledger.Run)
	if a.file != nil {
		start("database", func(ctx context.Context) error {
			return a.file.Watch(ctx, cmp.Or(a.node.CheckInterval, DefaultCheckInterval))
		})
	}
	start("podmanager", a.podmanager.Run)
	start("witnesses", a.reclaim.Run)
	start("API", api)
	if a.docker != nil {
		if watch := a.watchEngine; watch != nil {
			start("Docker engine", func(ctx context.Context) error {
				watch(ctx, a.reclaim.Wake)
				return nil
			})
		}
		start("Docker driver", a.docker.Run)
		start("Docker", a.docker.Serve)
	}
	start("recovery", func(ctx context.Context) error {
		select { // every caller that has found no socket is done or nearly: podmanager.Run applies what it still writes
		case <-a.listening:
		case <-ctx.Done():
			return nil
		}
		if err := a.recover(ctx); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	wg.Wait()
	return errors.Join(errs...)
}

// recover applies the DELs that waited for the agent. They go through the loop, so they
// wait for its first resync. Until they are applied the agent answers no CNI request.
func (a *assembly) recover(ctx context.Context) error {
	for {
		err := a.podmanager.Recover(ctx)
		if err == nil {
			a.progress.answering.Store(true)
			// Once more for those that came to wait meanwhile; podmanager.Run tries again what fails.
			if err := a.podmanager.Recover(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("DELs that wait for the agent cannot be applied yet", "error", err)
			}
			a.progress.recovered.Store(true)
			return nil
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the agent ends
		}
		a.log.Warn("DELs that waited for the agent cannot be applied yet", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// pods serves CNI requests once the DELs that waited are applied.
type pods struct {
	*podmanager.PodManager
	a *assembly
}

// Serve serves a CNI request.
func (p pods) Serve(ctx context.Context, req cni.Request) (cni.Reply, error) {
	if !p.a.progress.answering.Load() {
		return cni.Reply{}, fmt.Errorf("%s: %w: %w", req.Command, podmanager.ErrAway, p.a.ready())
	}
	if err := p.a.away(); err != nil && req.Main && req.Command == "ADD" {
		// An ADD that failed at its commit would hold an address until its cool-down is over.
		return cni.Reply{}, fmt.Errorf("ADD: %w: %w", podmanager.ErrAway, err)
	}
	reply, err := p.PodManager.Serve(ctx, req)
	if err == nil && req.Command == "DEL" {
		p.a.strays.ended(ctx, ledger.Key{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName})
	}
	return reply, err
}

// close closes what open has opened.
func (a *assembly) close() error {
	err := errors.Join(a.store.Close(), a.sink.Close())
	closeTraces(a.traces, a.log)
	if a.file != nil {
		err = errors.Join(err, a.file.Close())
	}
	if a.lock != nil {
		err = errors.Join(err, a.lock.Close())
	}
	return err
}
