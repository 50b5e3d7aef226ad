// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ReleaserDeps are what a Releaser is given. Client and Release are needed.
type ReleaserDeps struct {
	Log    *slog.Logger // slog's default
	Client kubernetes.Interface
	Fence  func(context.Context) error // as that of a Reflector
	// Release gives up the IDs of nodes that are gone for good, and names them.
	Release     func(ctx context.Context, exists func(name string) (bool, error)) ([]string, error)
	Every       time.Duration // how often: 10 minutes
	CallTimeout time.Duration // of one request to the API server or to the fence: 10 s
}

// Releaser has the node IDs of nodes that are gone given up. That there is no
// Node of a name it believes only where the API server itself has said so twice,
// in a whole list and when asked for that one: a wrong answer would give away a
// node's addresses. While the API server does not answer nothing is given up.
type Releaser struct {
	deps     ReleaserDeps
	released prometheus.Counter
	failures prometheus.Counter
}

// NewReleaser makes a Releaser, which does nothing before Run.
func NewReleaser(deps ReleaserDeps) *Releaser {
	if deps.Log == nil {
		deps.Log = slog.Default()
	}
	deps.Every = cmp.Or(deps.Every, 10*time.Minute)
	deps.CallTimeout = cmp.Or(deps.CallTimeout, 10*time.Second)
	return &Releaser{
		deps:     deps,
		released: prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_node_ids_released_total", Help: "Node IDs of nodes that are gone and were given up."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_node_ids_release_errors_total", Help: "Attempts to give up node IDs that have failed, in part at least."}),
	}
}

// Metrics are to be registered once.
func (r *Releaser) Metrics() []prometheus.Collector {
	return []prometheus.Collector{r.released, r.failures}
}

// Run works until ctx ends. It fails only where another process leads (ErrDeposed).
func (r *Releaser) Run(ctx context.Context) error {
	for sleep(ctx, r.deps.Every) {
		err := r.once(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrDeposed):
			return fmt.Errorf("give up the IDs of nodes that are gone: %w", err)
		case err != nil:
			r.failures.Inc()
			r.deps.Log.Warn("not all IDs of nodes that are gone could be given up; this is tried again", "in", r.deps.Every, "error", err)
		}
	}
	return nil
}

func (r *Releaser) once(ctx context.Context) error {
	nodes, err := r.nodes(ctx)
	if err != nil {
		return err
	}
	if r.deps.Fence != nil {
		asking, cancel := context.WithTimeout(ctx, r.deps.CallTimeout)
		err := r.deps.Fence(asking)
		cancel()
		if err != nil {
			return err
		}
	}
	names, err := r.deps.Release(ctx, func(name string) (bool, error) { return r.exists(ctx, nodes, name) })
	if len(names) > 0 {
		r.released.Add(float64(len(names)))
		r.deps.Log.Info("nodes are gone for good; their IDs are given up", "nodes", names)
	}
	return err
}

// nodes are the names of all Nodes that there are now.
func (r *Releaser) nodes(ctx context.Context) (map[string]bool, error) {
	names := map[string]bool{}
	for next := ""; ; {
		asking, cancel := context.WithTimeout(ctx, r.deps.CallTimeout)
		list, err := r.deps.Client.CoreV1().Nodes().List(asking, metav1.ListOptions{Limit: 500, Continue: next})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list the Nodes: %w", err)
		}
		for _, n := range list.Items {
			names[n.Name] = true
		}
		if next = list.Continue; next == "" {
			return names, nil
		}
	}
}

func (r *Releaser) exists(ctx context.Context, nodes map[string]bool, name string) (bool, error) {
	if nodes[name] {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.deps.CallTimeout)
	defer cancel()
	_, err := r.deps.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether Node %q is gone: %w", name, err)
	}
	return true, nil
}
