// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/cadastre/cadastre/operator/runner"
)

func count(c prometheus.Counter) float64 {
	var m dto.Metric
	must(c.Write(&m))
	return m.GetCounter().GetValue()
}

// TestReleases: IDs are released only on the word of an API server that answers,
// and only by the leader.
func TestReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld()
		w.put(node("a"))
		answers := make(chan string, 10)
		calls := func() (all []string) {
			for len(answers) > 0 {
				all = append(all, <-answers)
			}
			return all
		}
		var fence atomic.Value
		fence.Store([]error{nil})
		var meanwhile atomic.Value // what happens after the list
		meanwhile.Store(func() {})
		r := NewReleaser(ReleaserDeps{
			Client: w.client, Every: time.Hour, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Fence: func(context.Context) error { return fence.Load().([]error)[0] },
			Release: func(_ context.Context, node Lookup) ([]string, error) {
				meanwhile.Load().(func())()
				for _, name := range []string{"a", "gone"} {
					uid, found, err := node(name)
					answers <- fmt.Sprint(name, " ", uid != "", " ", found, " ", err != nil)
				}
				return []string{"gone"}, errDown
			},
			EndClaims: func(_ context.Context, node Lookup) ([]string, error) {
				_, found, err := node("gone")
				answers <- fmt.Sprint("claims ", found, " ", err != nil)
				return []string{"x", "y"}, nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		g.Expect(calls()).To(BeEmpty())
		advance(90 * time.Minute)
		g.Expect(calls()).To(Equal([]string{"a true true false", "gone false false false", "claims false false"}))
		g.Expect(count(r.released)).To(Equal(1.))
		g.Expect(count(r.ended)).To(Equal(2.))
		g.Expect(count(r.failures)).To(Equal(1.), "released nodes count, and so does the failure")

		for _, err := range []error{errDown, noSuchResource("nodes")} {
			w.lose("nodes", err)
			advance(time.Hour)
			g.Expect(calls()).To(HaveEach(HaveSuffix(" false true")), "the API server does not answer")
			w.lose("nodes", nil)
		}
		w.lose("list nodes", errDown)
		advance(time.Hour)
		g.Expect(calls()).To(Equal([]string{"a true true false", "gone false false true", "claims false true"}), "only the list would say that it is gone")
		w.lose("list nodes", nil)
		meanwhile.Store(func() { w.put(node("gone")) })
		advance(time.Hour)
		g.Expect(calls()).To(Equal([]string{"a true true false", "gone true true false", "claims true false"}), "it has just come")
		fence.Store([]error{errDown})
		advance(time.Hour)
		g.Expect(calls()).To(BeEmpty(), "another process may lead")
		fence.Store([]error{runner.ErrDeposed})
		advance(time.Hour)
		g.Expect(<-ended).To(MatchError(runner.ErrDeposed))
		g.Expect(calls()).To(BeEmpty())
	})
}
