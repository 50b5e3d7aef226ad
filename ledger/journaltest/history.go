// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journaltest

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

// HistoryJournal is a Journal that keeps the records whose keys begin with H apart, for
// the ledger's history.
type HistoryJournal interface {
	Journal
	HistoryBounds(ctx context.Context) (oldest, newest string, err error)
	ReadHistory(ctx context.Context, end string, n int) ([]kvdb.KeyValue, error)
}

// RunHistory tests the history of a journal. open returns an empty one at each call.
func RunHistory(t *testing.T, open func(t *testing.T) HistoryJournal) {
	g, ctx, j := NewWithT(t), context.Background(), open(t)
	read := func(end string, n int) (found []string) {
		records, err := j.ReadHistory(ctx, end, n)
		g.Expect(err).NotTo(HaveOccurred())
		for _, r := range records {
			found = append(found, r.Key+"="+string(r.Value))
		}
		return found
	}
	bounds := func() [2]string {
		oldest, newest, err := j.HistoryBounds(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		return [2]string{oldest, newest}
	}
	g.Expect(bounds()).To(Equal([2]string{}))
	g.Expect(read("H~", 9)).To(BeEmpty())
	ops := []kvdb.Op{kvdb.Put("L1", []byte("lease"))}
	for n := range 5 {
		ops = append(ops, kvdb.Put(fmt.Sprint("H", n), []byte{'a' + byte(n)}))
	}
	g.Expect(j.Commit(ctx, ops)).To(Succeed())
	g.Expect(bounds()).To(Equal([2]string{"H0", "H4"}))
	g.Expect(read("H~", 9)).To(Equal([]string{"H4=e", "H3=d", "H2=c", "H1=b", "H0=a"}), "the highest key first")
	g.Expect(read("H3", 2)).To(Equal([]string{"H2=c", "H1=b"}), "end is not included")
	g.Expect(read("H0", 2)).To(BeEmpty())
	var loaded []string
	g.Expect(j.Load(ctx, func(r kvdb.KeyValue) error { loaded = append(loaded, r.Key); return nil })).To(Succeed())
	g.Expect(loaded).To(Equal([]string{"L1"}), "Load leaves the history out")
	g.Expect(j.Commit(ctx, []kvdb.Op{kvdb.Delete("H0"), kvdb.Put("H4", []byte("x")), kvdb.Delete("L1")})).To(Succeed())
	g.Expect(bounds()).To(Equal([2]string{"H1", "H4"}))
	g.Expect(read("H~", 1)).To(Equal([]string{"H4=x"}))
}
