// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// slow is a Committer that takes three seconds.
type slow struct{}

func (slow) Commit(context.Context) error { <-time.After(3 * time.Second); return nil }
func (slow) Undo()                        {}

func TestTheRecordHasTheTimesOfTheCommits(t *testing.T) {
	loopWith(t, nil, func(d *Deps) { d.Committers = []Committer{slow{}} }, func(g Gomega, r *rig) {
		r.sink.Fault = func(Transaction) error { <-time.After(5 * time.Second); return nil }
		r.a.update["x"] = func(txn UpdateOperations) error { txn.Put("k", wrapperspb.Bool(true)); return nil }
		r.sync()
		r.wait(time.Minute)
		r.push(&event{name: "x"})
		r.wait(time.Minute)
		r.push(&event{name: "nothing for the sink"})
		r.wait(time.Minute)
		all, err := r.Query(HistoryQuery{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(3))
		g.Expect([]time.Duration{all[1].CommitTook, all[1].SinkTook}).To(Equal([]time.Duration{3 * time.Second, 5 * time.Second}))
		g.Expect([]time.Duration{all[2].CommitTook, all[2].SinkTook}).To(Equal([]time.Duration{3 * time.Second, 0}))
	})
}
