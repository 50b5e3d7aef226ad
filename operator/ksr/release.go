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

// Lookup returns the UID of the Node that the API server has under a name now;
// found is false if there is none.
type Lookup func(name string) (uid string, found bool, err error)

// ReleaserDeps holds the dependencies of a Releaser. Client, Release and EndClaims are needed.
type ReleaserDeps struct {
	Log    *slog.Logger // slog's default
	Client kubernetes.Interface
	Fence  func(context.Context) error // as that of a Reflector
	// Release gives up the IDs of nodes that are gone for good, and names them.
	Release func(ctx context.Context, node Lookup) ([]string, error)
	// EndClaims ends the claims of nodes that are gone for good, and names them.
	EndClaims   func(ctx context.Context, node Lookup) ([]string, error)
	Every       time.Duration // how often: 10 minutes
	CallTimeout time.Duration // of one request to the API server or to the fence: 10 s
}

// Releaser has the node IDs and the claims of nodes that are gone given up. It
// believes that there is no Node of a name only if the API server itself has said
// so twice, when asked for that one and in a whole list: a wrong answer would
// give away a node's addresses. While the API server does not answer nothing is
// given up.
type Releaser struct {
	deps     ReleaserDeps
	released prometheus.Counter
	ended    prometheus.Counter
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
		ended:    prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_claims_ended_total", Help: "Claims that have ended because their nodes are gone, or were released."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_node_ids_release_errors_total", Help: "Attempts to give up node IDs and claims that have failed, in part at least."}),
	}
}

// Metrics are to be registered once.
func (r *Releaser) Metrics() []prometheus.Collector {
	return []prometheus.Collector{r.released, r.ended, r.failures}
}

// Run works until ctx ends. It fails only where another process leads (ErrDeposed).
func (r *Releaser) Run(ctx context.Context) error {
	for sleep(ctx, r.deps.Every) {
		err := r.once(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ErrDeposed):
			return fmt.Errorf("give up the IDs and claims of nodes that are gone: %w", err)
		case err != nil:
			r.failures.Inc()
			r.deps.Log.Warn("not all IDs and claims of nodes that are gone could be given up; this is tried again", "in", r.deps.Every, "error", err)
		}
	}
	return nil
}

func (r *Releaser) once(ctx context.Context) error {
	if r.deps.Fence != nil {
		asking, cancel := context.WithTimeout(ctx, r.deps.CallTimeout)
		err := r.deps.Fence(asking)
		cancel()
		if err != nil {
			return err
		}
	}
	look := lookups{Releaser: r}
	node := func(name string) (string, bool, error) { return look.node(ctx, name) }
	names, err := r.deps.Release(ctx, node)
	if len(names) > 0 {
		r.released.Add(float64(len(names)))
		r.deps.Log.Info("nodes are gone for good; their IDs are given up", "nodes", names)
	}
	claims, endErr := r.deps.EndClaims(ctx, node)
	if len(claims) > 0 {
		r.ended.Add(float64(len(claims)))
		r.deps.Log.Info("nodes are gone for good, or were released; their claims have ended", "claims", claims)
	}
	return errors.Join(err, endErr)
}

// lookups are those of one run. The Nodes are listed once, and only if one of
// them seems to be gone.
type lookups struct {
	*Releaser
	uids map[string]string // by name; nil: not listed yet
}

func (l *lookups) node(ctx context.Context, name string) (uid string, found bool, err error) {
	asking, cancel := context.WithTimeout(ctx, l.deps.CallTimeout)
	defer cancel()
	n, err := l.deps.Client.CoreV1().Nodes().Get(asking, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return string(n.UID), true, nil
	case !apierrors.IsNotFound(err):
		return "", false, fmt.Errorf("look whether Node %q is gone: %w", name, err)
	}
	if l.uids == nil {
		if l.uids, err = l.nodes(ctx); err != nil {
			return "", false, err
		}
	}
	uid, found = l.uids[name]
	return uid, found, nil
}

// nodes returns the UIDs of all Nodes that there are now.
func (r *Releaser) nodes(ctx context.Context) (map[string]string, error) {
	uids := map[string]string{}
	for next := ""; ; {
		asking, cancel := context.WithTimeout(ctx, r.deps.CallTimeout)
		list, err := r.deps.Client.CoreV1().Nodes().List(asking, metav1.ListOptions{Limit: 500, Continue: next})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list the Nodes: %w", err)
		}
		for _, n := range list.Items {
			uids[n.Name] = string(n.UID)
		}
		if next = list.Continue; next == "" {
			return uids, nil
		}
	}
}
