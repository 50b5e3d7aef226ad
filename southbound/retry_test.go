// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
)

func TestDelaysDoNotOverflow(t *testing.T) {
	g := NewWithT(t)
	for _, delay := range []time.Duration{0, time.Second, 24 * time.Hour} {
		a := &attempts{policy: controller.Retry{Delay: delay, ExponentialBackoff: true}, failed: 1000}
		g.Expect(a.next(time.Unix(0, 0)).due.Sub(time.Unix(0, 0))).To(And(BeNumerically(">=", delay), BeNumerically("<=", 24*time.Hour)))
	}
}

// TestAttemptsThatAreCutShort has a Run that ends during an attempt.
func TestAttemptsThatAreCutShort(t *testing.T) {
	g, w, now, failures := NewWithT(t), newWorld(), time.Unix(0, 0), 0
	s := New(Options{Now: func() time.Time { return now }, OnFailure: func(string, error) { failures++ }}, w.parts()...)
	w.fault = func(string, string) error { return errInjected }
	txn := update(is("a/1", "x"))
	txn.Retry = controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 1}
	g.Expect(s.Commit(t.Context(), txn)).To(MatchError(errInjected))
	now = now.Add(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.retry(ctx)
	g.Expect(failures).To(BeZero())
	s.retry(t.Context())
	g.Expect(failures).To(Equal(1))
	s.retry(t.Context())
	g.Expect(failures).To(Equal(1))
	g.Expect(s.Status().Failed).To(Equal([]Failed{{Key: "a/1", Error: "input/output error"}}))
}
