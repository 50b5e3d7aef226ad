// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// watchReleases shows the judge each version of the NetResourceSets until the test ends.
func (l *Lab) watchReleases() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			l.watchOnce(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(Pace):
			}
		}
	})
	l.t.Cleanup(func() { cancel(); all.Wait() })
}

func (l *Lab) watchOnce(ctx context.Context) {
	w, err := l.Objects.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return // it is repeated
	}
	defer w.Stop()
	l.Judge.forget()
	for event := range w.ResultChan() {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type == watch.Deleted {
			continue
		}
		text, _, err := unstructured.NestedStringMap(object.Object, "status", "ipam", "releaseIPs")
		if err != nil {
			continue
		}
		states := map[string]handshake.State{}
		for key, state := range text {
			states[key] = handshake.State(state)
		}
		l.Judge.Releasing(time.Now(), object.GetName(), states)
	}
}

// Releasing records a version of the hand-over of a node's addresses. An address becomes
// released only after the agent has agreed, and no pod holds it then.
func (j *Judge) Releasing(now time.Time, node string, states map[string]handshake.State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before, known := j.releases[node]
	j.releases[node] = states
	if !known { // the first version after a gap
		return
	}
	for key, state := range states {
		if state != handshake.Released || before[key] == handshake.Released {
			continue
		}
		j.released++
		if before[key] != handshake.Ready {
			j.disagreed = append(j.disagreed, fmt.Sprintf("%s: %s of %s is released after %q: want %q",
				now.Format(clock), key, node, before[key], handshake.Ready))
		}
		p, err := handshake.ParseKey(key)
		if err != nil {
			continue
		}
		for a, h := range j.holds {
			if p.Contains(a) {
				j.disagreed = append(j.disagreed, fmt.Sprintf("%s: %s of %s is released while %s on %s holds it",
					now.Format(clock), key, node, h.pod, h.machine))
			}
		}
	}
}

// forget makes the next version of each node the first one.
func (j *Judge) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.releases)
}
