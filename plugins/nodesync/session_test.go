// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// dyingDisk is the disk of a process that dies with its n-th operation, of the
// disk or of the store.
type dyingDisk struct {
	*disk
	dies func() bool
}

func (d dyingDisk) SetLocal(name, value string) error {
	if d.dies() {
		return errors.New("the process is dead")
	}
	return d.disk.SetLocal(name, value)
}

// end stops a process at its n-th operation, which is done if torn is set
// and not otherwise.
type end struct {
	n    int
	torn bool
}

// crash confirms the node ID of w until the end. It reports whether the process
// came that far.
func crash(t *testing.T, store *faulty.Store, w nodesync.Identity, d *disk, at end) bool {
	t.Helper()
	n, torn := at.n, at.torn
	done := 0
	dies := func() bool { done++; return done > n || done == n && !torn }
	store.Reset(func(string, int) faulty.Fault {
		switch {
		case !dies():
			return faulty.Fault{}
		case done == n && torn:
			return faulty.Tear()
		}
		return faulty.Fail()
	})
	a := newNode(t, store, w, d, func(deps *nodesync.IDClaimerDeps) { deps.Disk = dyingDisk{d, dies} })
	_ = a.Confirm(t.Context())
	store.Reset()
	return done >= n
}

// An agent crashes at any two moments of two starts, one after the other. The first of
// them may be the very first start. The next start is a restart and does not wait.
func TestACrashAtAnyMomentIsFollowedByARestart(t *testing.T) {
	for _, before := range []bool{false, true} {
		for _, torn := range []bool{false, true} {
			for i := 1; ; i++ {
				reached := false
				for j := 1; ; j++ {
					more := false
					bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
						d, w := newDisk(), who("a")
						if before {
							newNode(t, store, w, d).confirm(t)
						}
						for _, n := range []int{i, j} {
							w = again(w)
							time.Sleep(time.Second)
							more = crash(t, store, w, d, end{n, torn})
							reached = reached || more
						}
						a := newNode(t, store, again(w), d).confirm(t)
						g.Expect(a.Problem()).To(BeEmpty(), "crashes at %d and %d, torn %t", i, j, torn)
						g.Expect(a.ID()).To(BeNumerically("==", 1))
						g.Expect(beatOf(g, store, 1).Session).To(Equal(again(w).Session))
					})
					if !more {
						break
					}
				}
				if !reached || i > 20 {
					NewWithT(t).Expect(i).To(BeNumerically(">", 6), "there are that many operations")
					break
				}
			}
		}
	}
}

// No session beats before the disk names it.
func TestTheSessionIsStoredBeforeItsFirstBeat(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		d := newDisk()
		newNode(t, store, who("a"), d).confirm(t)
		d.full = errors.New("no space left")
		next := newNode(t, store, again(who("a")), d)
		g.Expect(next.Confirm(t.Context())).To(MatchError(ContainSubstring("no space left")))
		g.Expect(beatOf(g, store, 1).Session).To(Equal("run-1-of-a"))
		d.full = nil
		g.Expect(next.confirm(t).Problem()).To(BeEmpty())
	})
}

// Starts without the store: the disk alone says whether this can be a clone.
func TestAStartWithoutTheStore(t *testing.T) {
	noUUID := func(boot string) nodesync.Machine { return nodesync.Machine{BootID: boot} }
	for name, c := range map[string]struct {
		first, second nodesync.Machine
		why           string // nothing new is allocated; "": it is
	}{
		"a restart":              {machineOf("a"), machineOf("a"), ""},
		"a reboot":               {machineOf("a"), nodesync.Machine{ProductUUID: "product-of-a", BootID: "boot-2"}, ""},
		"another machine":        {machineOf("a"), machineOf("b"), "on another machine"},
		"a restart, no UUIDs":    {noUUID("1"), noUUID("1"), ""},
		"a reboot, no UUIDs":     {noUUID("1"), noUUID("2"), "booted since"},
		"nothing was remembered": {nodesync.Machine{}, machineOf("a"), "does not say on which machine"},
	} {
		for _, alone := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
					w := with(who("a"), func(w *nodesync.Identity) { w.Machine = c.first })
					d := newDisk()
					newNode(t, store, w, d).confirm(t)
					time.Sleep(2 * fresh)
					store.Reset(away)
					a := newNode(t, store, on(w, c.second), d, func(deps *nodesync.IDClaimerDeps) { deps.Alone = alone }).run(t)
					synctest.Wait()
					if c.why == "" || alone {
						g.Expect(a.suspension()).To(BeEmpty())
						a.stop()
						return
					}
					g.Expect(a.suspension()).To(ContainSubstring(c.why))
					g.Expect(a.events()).To(HaveExactElements(ContainSubstring(c.why)))
					g.Expect(a.Use()).To(BeNumerically("==", 1), "what is allocated is served")
					time.Sleep(time.Hour)
					g.Expect(a.suspension()).NotTo(BeEmpty())
					store.Reset()
					time.Sleep(refresh)
					g.Expect(a.suspension()).To(BeEmpty(), "the store has confirmed it")
					a.stop()

					store.Reset(away)
					g.Expect(newNode(t, store, on(w, c.second), d).suspension()).To(BeEmpty(), "it is this machine's now")
				})
			})
		}
	}
}
