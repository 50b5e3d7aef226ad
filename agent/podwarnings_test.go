// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// podObjects is an API server that may be away.
type podObjects struct {
	mu    sync.Mutex
	err   error
	hangs bool
	tries int
	wrote []apistore.PodWarning
}

func (p *podObjects) WarnPod(ctx context.Context, w apistore.PodWarning) error {
	p.mu.Lock()
	hangs := p.hangs
	p.tries++
	p.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.wrote = append(p.wrote, w)
	}
	return p.err
}

func (p *podObjects) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// warned runs f with a podWarner; counts are the outcomes.
func warned(t *testing.T, store *podObjects, f func(g Gomega, w *podWarner, counts map[string]int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		counts := map[string]int{}
		var mu sync.Mutex
		count := func(outcome string) {
			mu.Lock()
			defer mu.Unlock()
			counts[outcome]++
		}
		w := newPodWarner(slog.New(slog.DiscardHandler), store, func() float64 { return 0 }, count)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- w.run(ctx) }()
		f(NewWithT(t), w, counts)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func refusal(pod string) podmanager.Refusal {
	return podmanager.Refusal{Pod: kv.PodID{Namespace: "ns", Name: pod}, UID: "u", Reason: podmanager.NoAddress, Text: "full", Total: 3}
}

func TestAnEventIsWrittenOnceTheAPIServerIsBack(t *testing.T) {
	store := &podObjects{err: errors.New("connection refused")}
	warned(t, store, func(g Gomega, w *podWarner, counts map[string]int) {
		w.refused(refusal("web"))
		synctest.Wait()
		g.Expect(store.tries).To(Equal(1))
		store.fail(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		g.Expect(store.wrote).To(Equal([]apistore.PodWarning{{Namespace: "ns", Name: "web", UID: "u", Reason: "NoAddress", Message: "full", Count: 3}}))
		g.Expect(counts).To(Equal(map[string]int{"written": 1}))
	})
}

func TestAnEventThatCannotBeWrittenIsGivenUp(t *testing.T) {
	gone := fmt.Errorf("write: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"))
	for name, c := range map[string]struct {
		err   error
		tries int
	}{"away": {errors.New("connection refused"), warningAttempts}, "the namespace is gone": {gone, 1}} {
		store := &podObjects{err: c.err}
		warned(t, store, func(g Gomega, w *podWarner, counts map[string]int) {
			w.refused(refusal("web"))
			time.Sleep(time.Hour)
			synctest.Wait()
			g.Expect(store.tries).To(Equal(c.tries), name)
			g.Expect(counts).To(Equal(map[string]int{"failed": 1}), name)
		})
	}
}

// An API server that does not answer neither delays a refusal nor fills the memory.
func TestEventsThatWaitAreBounded(t *testing.T) {
	store := &podObjects{hangs: true}
	warned(t, store, func(g Gomega, w *podWarner, counts map[string]int) {
		w.refused(refusal("first"))
		synctest.Wait()
		began := time.Now()
		for i := range 1000 {
			w.refused(refusal(fmt.Sprint("pod-", i)))
		}
		g.Expect(time.Now()).To(Equal(began), "nothing waited")
		g.Expect(counts).To(Equal(map[string]int{"dropped": 1000 - maxWarnings}))
	})
}
