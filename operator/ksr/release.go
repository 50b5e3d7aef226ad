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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/operator/runner"
)

// Lookup returns the UID of the Node that the API server has under a name now;
// found is false if there is none.
type Lookup func(name string) (uid string, found bool, err error)

// ReleaserDeps holds the dependencies of a Releaser. Client, Release and EndClaims are needed.
type ReleaserDeps struct {
	Log    *slog.Logger // slog's default
	Client kubernetes.Interface
	Fence  func(context.Context) error // as that of a Reflector
	// Release releases the IDs of nodes that are gone for good, and returns the names of these nodes.
	Release func(ctx context.Context, node Lookup) ([]string, error)
	// EndClaims ends the claims of nodes that are gone for good, and returns their names.
	EndClaims   func(ctx context.Context, node Lookup) ([]string, error)
	Every       time.Duration // between two passes: 10 minutes
	callTimeout time.Duration // limit of one request to the API server and of one call of the fence: 10 s
}

// Releaser releases the node IDs and the claims of nodes that are gone. A Node is
// gone only if the API server itself has answered so twice, to a Get of its name
// and with a list of all Nodes. After a wrong answer another node would get
// addresses that are in use. While the API server does not answer nothing is
// released.
type Releaser struct {
	deps     ReleaserDeps
	gate     *runner.Gate
	metrics  *runner.Metrics
	released prometheus.Counter
	ended    prometheus.Counter
	failures prometheus.Counter
}

// NewReleaser returns a Releaser that does nothing before Run.
func NewReleaser(deps ReleaserDeps) *Releaser {
	if deps.Log == nil {
		deps.Log = slog.Default()
	}
	deps.Every = cmp.Or(deps.Every, 10*time.Minute)
	deps.callTimeout = cmp.Or(deps.callTimeout, 10*time.Second)
	m := runner.NewMetrics("cadastre_")
	counter := func(name, help string) prometheus.Counter { return m.Counter(name, help).WithLabelValues() }
	return &Releaser{
		deps:     deps,
		gate:     runner.NewGate(deps.Fence, deps.callTimeout),
		metrics:  m,
		released: counter("node_ids_released_total", "Released node IDs of nodes that are gone."),
		ended:    counter("claims_ended_total", "Ended claims of nodes that are gone, or whose ID was released."),
		failures: counter("node_ids_release_errors_total", "Failed attempts to release node IDs and claims."),
	}
}

// Metrics returns the metrics of the Releaser, to be registered once.
func (r *Releaser) Metrics() prometheus.Collector { return r.metrics }

// Run works until ctx ends. It fails only if another process leads (runner.ErrDeposed).
func (r *Releaser) Run(ctx context.Context) error {
	for runner.Wait(ctx, r.deps.Every) == nil {
		err := r.pass(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, runner.ErrDeposed):
			return fmt.Errorf("release the IDs and claims of nodes that are gone: %w", err)
		case err != nil:
			r.failures.Inc()
			r.deps.Log.Warn("not all IDs and claims of nodes that are gone are released, trying again",
				"in", r.deps.Every, "error", err)
		}
	}
	return nil
}

// pass releases, once, what belongs to nodes that are gone.
func (r *Releaser) pass(ctx context.Context) error {
	if err := r.gate.Check(ctx); err != nil {
		return err
	}
	look := lookups{Releaser: r}
	node := func(name string) (string, bool, error) { return look.node(ctx, name) }
	names, err := r.deps.Release(ctx, node)
	if len(names) > 0 {
		r.released.Add(float64(len(names)))
		r.deps.Log.Info("nodes are gone for good; their IDs are released", "nodes", names)
	}
	claims, endErr := r.deps.EndClaims(ctx, node)
	if len(claims) > 0 {
		r.ended.Add(float64(len(claims)))
		r.deps.Log.Info("nodes are gone for good, or were released; their claims have ended", "claims", claims)
	}
	return errors.Join(err, endErr)
}

// lookups holds the answers of the API server for one pass. The Nodes are listed
// once, and only if one of them seems to be gone.
type lookups struct {
	*Releaser
	uids map[string]string // by name; nil: not listed yet
}

func (l *lookups) node(ctx context.Context, name string) (uid string, found bool, err error) {
	n, err := runner.Within(ctx, l.deps.callTimeout, func(ctx context.Context) (*corev1.Node, error) {
		return l.deps.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case err == nil:
		return string(n.UID), true, nil
	case !apierrors.IsNotFound(err):
		return "", false, fmt.Errorf("read Node %q to see if it is gone: %w", name, err)
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
		list, err := runner.Within(ctx, r.deps.callTimeout, func(ctx context.Context) (*corev1.NodeList, error) {
			return r.deps.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 500, Continue: next})
		})
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
