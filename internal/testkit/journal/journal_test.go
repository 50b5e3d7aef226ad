// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger/journaltest"
)

func TestMemory(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journaltest.Journal { return NewMemory() })
}

func TestHistory(t *testing.T) {
	journaltest.RunHistory(t, func(*testing.T) journaltest.HistoryJournal { return NewMemory() })
}

func TestFaultyWithoutFaults(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journaltest.Journal { return &Faulty{Journal: NewMemory()} })
}

func TestFaults(t *testing.T) {
	ctx := context.Background()
	put := []kvdb.Op{kvdb.Put("a", []byte("1"))}
	for _, c := range []struct {
		fault   Fault
		fails   bool
		applied int
	}{{None, false, 1}, {Fail, true, 0}, {Tear, true, 1}, {Delay, false, 1}} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			m := NewMemory()
			j := &Faulty{Journal: m, Plan: At(1, c.fault), Lag: time.Minute}
			began := time.Now()
			err := j.Commit(ctx, put)
			g.Expect(err != nil).To(Equal(c.fails))
			g.Expect(m.Commits()).To(Equal(c.applied))
			if c.fault == Delay {
				g.Expect(time.Since(began)).To(Equal(time.Minute))
			}
			g.Expect(j.Commit(ctx, put)).To(Succeed(), "only the first one meets it")
			g.Expect(j.Commits()).To(BeNumerically("==", 2))
		})
	}
}
