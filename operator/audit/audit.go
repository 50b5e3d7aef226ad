// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/runner"
	"github.com/cadastre/cadastre/witness/findings"
)

// Deps holds the dependencies of an Auditor. Client, Store and Instance are needed.
type Deps struct {
	Log      *slog.Logger // nil: slog's default
	Client   kubernetes.Interface
	Dynamic  dynamic.Interface // reads NetResourceSets and AddressPools; nil: they are not compared
	Store    kvdb.Store
	Instance string                      // of this process, unique
	Fence    func(context.Context) error // called before every write; nil: no other process audits
	Services []netip.Prefix              // the cluster's service network; empty: not known
	Policies bool                        // no program of the cluster enforces NetworkPolicies: they are counted
	Every    time.Duration               // longest time between two comparisons; 0: 30 s
	Confirm  time.Duration               // least time between two comparisons; 0: 15 s
	Timeout  time.Duration               // of one request; 0: 10 s
	Now      func() time.Time            // nil: time.Now
}

// Auditor compares the objects of the cluster. Use New.
type Auditor struct {
	deps    Deps
	metrics *metrics
	nodes   *nodes
	sets    *sets         // nil: not read
	changed chan struct{} // full if an informer has seen a change

	// These belong to Run's goroutine.
	watch     kvdb.Watcher  // of the store, nil: none
	period    time.Duration // longest time to the next comparison
	rounds    int           // comparisons that have succeeded
	seen      findings.Twice[findings.About]
	open      bool            // the last comparison has findings that are not confirmed yet
	announced map[string]bool // signatures of findings that have an event
}

// New returns an Auditor that does nothing before Run.
func New(deps Deps) *Auditor {
	if deps.Log == nil {
		deps.Log = slog.Default()
	}
	if deps.Fence == nil {
		deps.Fence = func(context.Context) error { return nil }
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	deps.Every = cmp.Or(deps.Every, 30*time.Second)
	deps.Confirm = min(cmp.Or(deps.Confirm, 15*time.Second), deps.Every)
	deps.Timeout = cmp.Or(deps.Timeout, 10*time.Second)
	a := &Auditor{
		deps:      deps,
		metrics:   newMetrics(),
		changed:   make(chan struct{}, 1),
		seen:      findings.Twice[findings.About]{},
		announced: map[string]bool{},
	}
	a.period = deps.Every
	a.nodes = newNodes(deps.Client, a.poke)
	if deps.Dynamic != nil {
		a.sets = newSets(deps.Dynamic, a.poke)
	}
	return a
}

// Metrics returns the metrics of the Auditor, to be registered once.
func (a *Auditor) Metrics() prometheus.Collector { return a.metrics }

// poke requests a comparison soon.
func (a *Auditor) poke() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Run compares until ctx ends. It fails only if another process leads
// (runner.ErrDeposed), or if the store was closed.
func (a *Auditor) Run(ctx context.Context) error {
	work := a.audit
	if a.sets != nil {
		work = func(ctx context.Context) error { return a.sets.follow(ctx, a.audit) }
	}
	err := a.nodes.follow(ctx, work)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the context has ended: so has the work
	}
	return err
}

// audit compares again and again.
func (a *Auditor) audit(ctx context.Context) error {
	defer a.unwatch()
	for {
		began := a.deps.Now()
		err := a.round(ctx)
		took := a.deps.Now().Sub(began)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the context has ended
		case errors.Is(err, runner.ErrDeposed) || errors.Is(err, kvdb.ErrClosed):
			return fmt.Errorf("compare the objects of the cluster: %w", err)
		case err != nil:
			a.metrics.errors.Inc()
			a.deps.Log.Warn("the objects of the cluster cannot be compared, trying again", "error", err)
		default:
			a.metrics.took.Observe(took.Seconds())
			a.metrics.last.Set(float64(a.deps.Now().UnixMilli()) / 1000)
		}
		if !a.pause(ctx, took, err != nil || a.open || a.rounds < 2) {
			return nil
		}
	}
}

// Shares of the time that comparisons take at most.
const (
	leastPauses = 10 // the pause is at least as many times as long as a comparison
	mostPauses  = 20
)

// pause waits for the next comparison: Confirm if one is due or something changes,
// otherwise Every. In a large cluster both are longer. It returns false if ctx ends.
func (a *Auditor) pause(ctx context.Context, took time.Duration, due bool) bool {
	a.period = max(a.deps.Every, mostPauses*took)
	soon := time.NewTimer(max(a.deps.Confirm, leastPauses*took))
	late := time.NewTimer(a.period)
	defer soon.Stop()
	defer late.Stop()
	for early := false; !early || !due; {
		var events <-chan []kvdb.Event
		if a.watch != nil {
			events = a.watch.Events()
		}
		select {
		case <-ctx.Done():
			return false
		case <-late.C:
			return true
		case <-soon.C:
			early = true
		case <-a.changed:
			due = true
		case _, open := <-events:
			if due = true; !open {
				a.unwatch()
			}
		}
	}
	return true
}

// follow watches the store from a revision on, unless it does already. Without a watch
// changes are seen by the next periodic comparison.
func (a *Auditor) follow(ctx context.Context, rev int64) {
	if a.watch != nil {
		return
	}
	w, err := a.deps.Store.Watch(ctx, kv.ClusterPrefix, rev+1)
	if err != nil {
		a.deps.Log.Debug("changes of the cluster store are not followed", "error", err)
		return
	}
	a.watch = w
}

func (a *Auditor) unwatch() {
	if a.watch != nil {
		a.watch.Close()
		a.watch = nil
	}
}

// round compares once, and publishes what two comparisons have found.
func (a *Auditor) round(ctx context.Context) error {
	r, err := a.read(ctx)
	if err != nil {
		return err
	}
	confirmed := a.confirm(findings.CompareCluster(r.state))
	a.metrics.rounds.Inc()
	if a.rounds++; a.rounds < 2 {
		return nil
	}
	if err := a.publish(ctx, r, confirmed); err != nil {
		return err
	}
	a.metrics.show(confirmed)
	a.announce(ctx, r.state, confirmed)
	return nil
}

// confirmedFinding is a finding that two comparisons in a row have.
type confirmedFinding struct {
	findings.Finding
	since time.Time
}

// confirm returns the findings that the last comparison had, too. A finding whose facts
// have changed in the meantime is the same.
func (a *Auditor) confirm(found []findings.Finding) (confirmed []confirmedFinding) {
	twice := a.seen.Observe(findings.Seens(found, findings.Seen{Wall: a.deps.Now()}), 0)
	a.open = false
	for _, f := range found {
		if first, ok := twice[f.About()]; ok {
			confirmed = append(confirmed, confirmedFinding{f, first.Wall})
		} else {
			a.open = true
		}
	}
	return confirmed
}
