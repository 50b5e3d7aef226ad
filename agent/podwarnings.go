// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// Limits of the events on pods.
const (
	maxWarnings     = 64 // that wait to be written
	warningAttempts = 5  // of writing one
)

// podObject is implemented by a cluster store that has the Pod objects.
type podObject interface {
	WarnPod(context.Context, apistore.PodWarning) error
}

// podWarner writes an event on the pod for each refusal that podmanager reports. Any
// goroutine may call refused, which never waits; one goroutine runs run.
type podWarner struct {
	log    *slog.Logger
	store  podObject
	random func() float64
	count  func(outcome string) // written, failed, or dropped
	queue  chan podmanager.Refusal
}

func newPodWarner(log *slog.Logger, store podObject, random func() float64, count func(string)) *podWarner {
	return &podWarner{
		log:    log,
		store:  store,
		random: random,
		count:  count,
		queue:  make(chan podmanager.Refusal, maxWarnings),
	}
}

// refused has a refusal written soon. It is dropped if too many wait.
func (w *podWarner) refused(r podmanager.Refusal) {
	select {
	case w.queue <- r:
	default:
		w.count("dropped")
	}
}

// run writes events until ctx ends.
func (w *podWarner) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-w.queue:
			w.write(ctx, r)
		}
	}
}

func (w *podWarner) write(ctx context.Context, r podmanager.Refusal) {
	wait := backoff.Policy{First: time.Second, Limit: 30 * time.Second, Random: w.random}
	for failures := 0; ; {
		err := w.store.WarnPod(ctx, apistore.PodWarning{
			Namespace: r.Pod.Namespace,
			Name:      r.Pod.Name,
			UID:       r.UID,
			Reason:    string(r.Reason),
			Message:   r.Text,
			Count:     r.Total,
			At:        r.At,
		})
		failures++
		switch {
		case err == nil:
			w.count("written")
			return
		case ctx.Err() != nil:
			return
		case failures == warningAttempts || apistore.Permanent(err):
			w.count("failed")
			w.log.Warn("the refusal of a pod is in this log only", "pod", r.Pod.String(), "error", err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.After(failures)):
		}
	}
}
