// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
	"github.com/cadastre/cadastre/kvdb/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hopeless bounds the wait for an event that a broken store never delivers. A
// sound one is not waited for, so this being short makes no test unreliable.
const hopeless = 100 * time.Millisecond

// TestEveryBrokenStoreIsFound also shows that no check is idle: each finds one
// of the stores at least.
func TestEveryBrokenStoreIsFound(t *testing.T) {
	g := NewWithT(t)
	stores := map[string]func(kvdb.Store) kvdb.Store{}
	for _, some := range []map[string]func(kvdb.Store) kvdb.Store{
		wrongWrites(), wrongAnswers(), wrongReads(), wrongPrefixes(), wrongSeveral(), wrongBatches(), wrongWatches(), wrongEnds(),
	} {
		maps.Copy(stores, some)
	}
	idle := map[string]bool{}
	for _, check := range kvdbtest.Checks() {
		idle[check.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(stores)) {
		t.Run(name, func(t *testing.T) {
			var found []string
			for _, check := range kvdbtest.Checks() {
				if err := verify(t, check, stores[name], hopeless); err != nil {
					found = append(found, check.Name)
					delete(idle, check.Name)
				}
			}
			t.Logf("found by %q", found)
			NewWithT(t).Expect(found).NotTo(BeEmpty())
		})
	}
	g.Expect(slices.Sorted(maps.Keys(idle))).To(BeEmpty(), "checks that find nothing wrong")
}

func verify(t *testing.T, check kvdbtest.Check, spoil func(kvdb.Store) kvdb.Store, limit time.Duration) error {
	sound := mem.New()
	defer sound.Close() // for those that cannot
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return check.Verify(ctx, spoil(sound))
}

// TestFindings shows that a finding tells what is wrong. It waits longer: on a slow machine a
// check would find the end of its time instead.
func TestFindings(t *testing.T) {
	for _, c := range []struct {
		store func(kvdb.Store) kvdb.Store
		check string
		finds string
	}{
		{wrongWrites()["ignores conditions"], "lose no update of compare-and-swap", "n="},
		{wrongWrites()["ignores conditions"], "apply a transaction only if its conditions hold", "absent, but stored"},
		{wrongReads()["lists in the wrong order"], "list in order of bytes", "reads.go:"},
		{wrongBatches()["drops every third batch"], "watch from now on", "wait for the watch"},
		{wrongBatches()["drops the first batch"], "continue a list with a watch, without gap or repetition", "put"},
		{wrongSeveral()["lists each prefix at its revision"], "list several prefixes as of one revision", "half of a transaction"},
		{wrongEnds()["does not close"], "answer nothing after Close", "Get"},
	} {
		t.Run(c.check, func(t *testing.T) {
			g := NewWithT(t)
			i := slices.IndexFunc(kvdbtest.Checks(), func(check kvdbtest.Check) bool { return check.Name == c.check })
			g.Expect(i).To(BeNumerically(">=", 0))
			g.Expect(verify(t, kvdbtest.Checks()[i], c.store, 20*hopeless)).To(MatchError(And(ContainSubstring(c.check), ContainSubstring(c.finds))))
		})
	}
}

func TestPanicOfTheStoreIsNotHidden(t *testing.T) {
	g := NewWithT(t)
	spoil := func(s kvdb.Store) kvdb.Store {
		return &broken{Store: s, get: func(context.Context, string) (kvdb.KeyValue, bool, error) { panic("of the store") }}
	}
	g.Expect(func() { _ = verify(t, kvdbtest.Checks()[0], spoil, hopeless) }).To(PanicWith("of the store"))
}
