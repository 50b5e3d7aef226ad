// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// diskOf is a Disk in memory.
type diskOf map[string]string

func (d diskOf) Local(name string) (string, error) { return d[name], nil }

func (d diskOf) SetLocal(name, value string) error { d[name] = value; return nil }

// A node whose blocks followed from its record has leases and no claim. The record kept
// another node waiting, whose pending claim is older than the first one of this node.
func TestLeasesThatAreOlderThanClaimsComeFirst(t *testing.T) {
	w := newWorld(t)
	a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
	record := &kv.NodeRecord{Id: a.ID, Name: a.Name, Instance: a.Instance, Generation: 1, PodCidrs: []string{wide().Prefix.String()}}
	w.put(kv.NodeRecordKey(a.ID), record)
	run(w.store, &every{}, w.check, w.asks(b, wide(), 1))
	w.g.Expect(w.held(wide())).To(BeEmpty())

	asked, doubt := 0, true
	c, err := claims.NewClaimer(claims.ClaimerDeps{
		Log: slog.New(slog.DiscardHandler), Register: w.register(w.store), Disk: diskOf{}, Node: func() (claims.Node, bool) { return a, !doubt },
		InUse: func(t claims.Target) bool { return t == wide() }, Initial: []claims.Target{wide()}, Refresh: time.Minute,
		Changed: func() {}, Suspend: func(string) {}, Asked: func() { asked++ }, Now: func() time.Time { return w.now }, Random: func() float64 { return 0 },
	})
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect(c.Confirm(context.Background())).To(Succeed())
	w.g.Expect(asked).To(BeZero(), "the node ID is in doubt: nothing was asked for, and the record still has to keep b out")
	doubt = false
	w.g.Expect(c.Confirm(context.Background())).To(Succeed())
	w.g.Expect(asked).To(Equal(1))
	w.g.Expect(c.Standing(wide()).Held).To(BeTrue())

	record.ExplicitBlocks, record.PodCidrs = true, nil
	w.put(kv.NodeRecordKey(a.ID), record)
	run(w.store, &every{}, w.check, func(s kvdb.Store) error { return w.asks(b, wide(), 2)(s) })
	w.g.Expect(w.held(wide())).To(BeEmpty(), "b waits for a's claim")
}
