// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// on is the next run of w, on a machine.
func on(w nodesync.Identity, m nodesync.Machine) nodesync.Identity {
	return with(again(w), func(w *nodesync.Identity) { w.Machine = m })
}

// Starts that find a fresh beat of this node's identity: those of this node
// allocate at once, those that may be a clone's not before the beat has stopped.
func TestARestartAndACloneAreToldApart(t *testing.T) {
	noUUID := func(boot string) nodesync.Machine { return nodesync.Machine{BootID: boot} }
	for name, c := range map[string]struct {
		first, second nodesync.Machine
		older         bool // the disk is of before the first run
		waits         bool
	}{
		"a restart":                        {machineOf("a"), machineOf("a"), false, false},
		"a reboot":                         {machineOf("a"), nodesync.Machine{ProductUUID: "product-of-a", BootID: "boot-2"}, false, false},
		"another machine":                  {machineOf("a"), machineOf("b"), false, true},
		"the same boot elsewhere":          {machineOf("a"), nodesync.Machine{ProductUUID: "product-of-b", BootID: "boot-1-of-a"}, false, true},
		"a restart without UUIDs":          {noUUID("1"), noUUID("1"), false, false},
		"a reboot without UUIDs":           {noUUID("1"), noUUID("2"), false, true},
		"an older copy on this machine":    {machineOf("a"), machineOf("a"), true, true},
		"an older copy on another machine": {machineOf("a"), machineOf("b"), true, true},
	} {
		for kind, through := range stores() {
			t.Run(name+", "+kind, func(t *testing.T) {
				attack.Begin(t, attack.Twin).Add(1)
				bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
					store := through(inner)
					w := with(who("a"), func(w *nodesync.Identity) { w.Machine = c.first })
					first := newNode(t, store, w, newDisk()).confirm(t)
					d := first.disk.copied()
					if c.older {
						w = again(w)
						newNode(t, store, w, first.disk).confirm(t)
					}
					written := beatOf(g, store, 1)
					time.Sleep(refresh)
					second := newNode(t, store, on(w, c.second), d).confirm(t)
					began := time.Now()
					if !c.waits {
						g.Expect(second.Problem()).To(BeEmpty())
						g.Expect(second.events()).To(BeEmpty())
						g.Expect(beatOf(g, store, 1).Session).To(Equal(on(w, c.second).Session))
						return
					}
					second.run(t)
					synctest.Wait()
					g.Expect(second.suspension()).To(ContainSubstring("may run with this node's identity"))
					g.Expect(second.ID()).To(BeNumerically("==", 1), "what is allocated is served")
					time.Sleep(time.Until(began.Add(fresh)) - 1)
					g.Expect(second.suspension()).NotTo(BeEmpty())
					g.Expect(proto.Equal(beatOf(g, store, 1), written)).To(BeTrue(), "nothing is written meanwhile")
					time.Sleep(2 * time.Nanosecond)
					synctest.Wait()
					g.Expect(
						second.suspension(),
					).To(
						BeEmpty(),
						"the beat has not continued for as long as beats are fresh",
					)
					g.Expect(second.Problem()).To(BeEmpty())
					second.stop()
				})
			})
		}
	}
}

// A clone on another machine never allocates while the original is there, and
// the original does not notice it.
func TestCloneBesideRunningOriginal(t *testing.T) {
	attack.Begin(t, attack.Twin).Add(1)
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		a.Use()
		time.Sleep(refresh / 2)
		clone := newNode(t, store, on(who("a"), machineOf("b")), a.disk.copied())
		g.Expect(
			clone.suspension(),
		).To(
			ContainSubstring("another machine (product UUID product-of-a; this machine: product UUID product-of-b)"),
			"before the store was asked",
		)
		clone.confirm(t).run(t)
		g.Expect(clone.suspension()).To(ContainSubstring("may run"))
		for range 3 * 60 {
			time.Sleep(refresh)
			g.Expect(clone.suspension()).NotTo(BeEmpty())
			g.Expect(a.Problem()).To(BeEmpty())
		}
		g.Expect(
			clone.Problem(),
		).To(
			HaveSuffix("another agent runs with this node's identity: was its disk copied, or a snapshot of its memory resumed? " +
				"Stop one of the two, and remove its state directory"),
		)
		g.Expect(a.events()).To(BeEmpty())
		g.Expect(
			clone.events(),
		).To(
			HaveExactElements(ContainSubstring("may run"), ContainSubstring("another agent runs")),
		)
		a.stop()
		time.Sleep(refresh)
		g.Expect(clone.Problem()).To(BeEmpty(), "the original says that it has ended")
		clone.stop()
	})
}

// The original may be killed instead of stopped: the clone goes on once it has not
// beaten for as long as beats are fresh.
func TestCloneAfterOriginalDies(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
		original := faulty.New(inner)
		a := newNode(t, original, who("a"), newDisk()).confirm(t).run(t)
		clone := newNode(t, inner, on(who("a"), machineOf("b")), a.disk.copied()).confirm(t).run(t)
		time.Sleep(10 * refresh)
		original.Reset(away)
		last := time.Unix(0, beatOf(g, inner, 1).At)
		time.Sleep(time.Until(last.Add(fresh)) - 1)
		g.Expect(clone.suspension()).NotTo(BeEmpty())
		time.Sleep(refresh + 1)
		g.Expect(clone.suspension()).To(BeEmpty())
		original.Reset()
		time.Sleep(refresh)
		g.Expect(
			a.suspension(),
		).To(
			ContainSubstring("another agent runs"),
			"it was cut off, not dead, and it finds the clone",
		)
		a.stop()
		clone.stop()
	})
}

// A snapshot of a machine's memory is resumed twice: both processes have one
// session. The one whose beat comes later finds the other's, and allocates nothing.
func TestAResumedSnapshot(t *testing.T) {
	tried := attack.Begin(t, attack.Twin)
	for kind, through := range stores() {
		for clocks, skew := range map[string]time.Duration{"one clock": 0, "a clock behind": -time.Hour, "a clock ahead": time.Hour} {
			tried.Add(1)
			t.Run(kind+", "+clocks, func(t *testing.T) {
				bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
					store := through(inner)
					a := newNode(t, store, who("a"), newDisk()).confirm(t)
					a.Use()
					time.Sleep(refresh)
					a.confirm(t)
					resumed := a.resume(t, store)
					resumed.jump(skew)
					a.run(t)
					time.Sleep(time.Second)
					resumed.run(t)
					time.Sleep(2 * refresh)
					g.Expect(
						(a.suspension() == "") != (resumed.suspension() == ""),
					).To(
						BeTrue(),
						"%q, %q",
						a.suspension(),
						resumed.suspension(),
					)
					time.Sleep(24 * time.Hour)
					g.Expect(
						(a.suspension() == "") != (resumed.suspension() == ""),
					).To(
						BeTrue(),
						"%q, %q",
						a.suspension(),
						resumed.suspension(),
					)
					loser, winner := a, resumed
					if a.suspension() == "" {
						loser, winner = resumed, a
					}
					g.Expect(loser.Problem()).To(ContainSubstring("snapshot of its memory"))
					loser.stop()
					g.Expect(beatOf(g, store, 1).Stopped).To(BeFalse(), "it does not say lastBeatTimeout for the other one")
					time.Sleep(2 * refresh)
					g.Expect(winner.Problem()).To(BeEmpty())
					winner.stop()
				})
			})
		}
	}
}

// A beat whose reply is lost, or that is written late, is found at a revision that
// this process does not know. It is still its own.
func TestABeatWithoutAReply(t *testing.T) {
	for kind, through := range stores() {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			w := &world{}
			link := newLink(mem.New(), 5, &w.late)
			defer link.Close()
			a := newNode(t, through(link), who("a"), newDisk()).confirm(t).run(t)
			a.Use()
			link.set(rough)
			for range 600 {
				time.Sleep(refresh / 10)
				a.Poke()
				g.Expect(a.Problem()).To(BeEmpty(), kind)
			}
			link.set(fine)
			w.late.Wait()
			a.stop()
		})
	}
}

// A claim does not write over the beat of a twin that is alive, where nothing but
// the beat tells of it: the record was released or lost.
func TestAClaimAndTheBeatOfATwin(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, Gomega, kvdb.Store){
		"released": func(t *testing.T, g Gomega, s kvdb.Store) {
			_, err := nodesync.Release(t.Context(), s, nodesync.Gone{Name: "a", Force: true, Fresh: fresh}, time.Now())
			g.Expect(err).NotTo(HaveOccurred())
		},
		"lost": func(t *testing.T, g Gomega, s kvdb.Store) {
			_, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.NodeRecordKey(1))})
			g.Expect(err).NotTo(HaveOccurred())
		},
		"wiped": func(_ *testing.T, g Gomega, s kvdb.Store) { wipe(g, s) },
	} {
		for kind, through := range stores() {
			t.Run(name+", "+kind, func(t *testing.T) {
				bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
					store := through(inner)
					a := newNode(t, store, who("a"), newDisk()).confirm(t)
					a.Use()
					lose(t, g, inner)
					clone := newNode(t, store, on(who("a"), machineOf("b")), a.disk.copied()).confirm(t).run(t)
					g.Expect(clone.suspension()).To(ContainSubstring("may run"))
					time.Sleep(refresh)
					a.confirm(t).run(t)
					g.Expect(a.Problem()).To(BeEmpty())
					for range 60 {
						time.Sleep(refresh)
						g.Expect(clone.suspension()).NotTo(BeEmpty())
						g.Expect(a.suspension()).To(BeEmpty())
					}
					a.stop()
					clone.stop()
				})
			})
		}
	}
}

// A store that is wiped has no trace of the twin either, which is no less alive.
func TestAWipedStoreHidesNoTwin(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		a.Use()
		twin := newNode(t, store, again(who("a")), a.disk.copied()).confirm(t)
		a.confirm(t)
		g.Expect(a.suspension()).NotTo(BeEmpty())
		wipe(g, store)
		time.Sleep(refresh)
		a.confirm(t)
		g.Expect(a.suspension()).To(ContainSubstring("the store has lost the beat"))
		twin.confirm(t).run(t)
		a.run(t)
		for range 60 {
			time.Sleep(refresh)
			g.Expect(a.suspension()).NotTo(BeEmpty())
			g.Expect(twin.suspension()).To(BeEmpty())
		}
		a.stop()
		twin.stop()
	})
}

// A beat that cannot be read may be a twin's: it is not written over before it
// has stayed the same for as long as beats are fresh.
func TestABeatThatCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.BeatKey(1), []byte{0xff})})
		g.Expect(err).NotTo(HaveOccurred())
		next := newNode(t, store, again(who("a")), a.disk).confirm(t).run(t)
		g.Expect(next.suspension()).To(ContainSubstring("beat of node ID 1 cannot be read"))
		time.Sleep(fresh + 1)
		synctest.Wait()
		g.Expect(next.suspension()).To(BeEmpty())
		g.Expect(beatOf(g, store, 1).Session).To(Equal("run-1-of-a+"))
		next.stop()
	})
}

// A store that comes back with an earlier beat of this process has no twin in it.
func TestAnEarlierBeatOfThisProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		store := newPast()
		before := newNode(t, store, who("a"), newDisk()).confirm(t)
		kept := []copyOf{store.copied()}
		time.Sleep(time.Second)
		a := newNode(t, store, again(who("a")), before.disk).confirm(t)
		kept = append(kept, store.copied())
		for range 10 {
			time.Sleep(time.Second)
			a.confirm(t)
			kept = append(kept, store.copied())
		}
		for _, older := range kept {
			store.restore(older)
			a.confirm(t)
			g.Expect(a.Problem()).To(BeEmpty())
			g.Expect(a.events()).To(BeEmpty())
		}
	})
}

// What a claim has concluded from a beat must still be so when it is written: the
// original is back at the very moment when the clone would go on.
func TestCloneWhenOriginalComesBack(t *testing.T) {
	for kind, through := range stores() {
		bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
			a := newNode(t, inner, who("a"), newDisk()).confirm(t)
			store := &between{Store: inner, n: 1, work: func() { a.confirm(t) }}
			clone := newNode(t, through(store), on(who("a"), machineOf("b")), a.disk.copied()).confirm(t)
			time.Sleep(fresh)
			g.Expect(store.n).To(Equal(1), "it has written nothing yet")
			clone.confirm(t)
			g.Expect(clone.Problem()).To(ContainSubstring("another agent runs"), kind)
			g.Expect(beatOf(g, inner, 1).Session).To(Equal("run-1-of-a"))
			a.confirm(t)
			g.Expect(a.Problem()).To(BeEmpty())
		})
	}
}

// A beat that comes after one of this process is another process's, whatever
// session it has and whatever time it tells.
func TestABeatThatComesAfterOneOfThisProcess(t *testing.T) {
	for name, change := range map[string]func(*kv.NodeBeat){
		"by a clock that is behind": func(m *kv.NodeBeat) { m.At = time.Now().Add(-time.Hour).UnixNano() },
		"by a clock that is ahead":  func(m *kv.NodeBeat) { m.At = time.Now().Add(time.Hour).UnixNano() },
		"of the run before":         func(m *kv.NodeBeat) { m.At, m.Session = time.Now().UnixNano(), "run-1-of-a" },
		"of another session":        func(m *kv.NodeBeat) { m.At, m.Session = time.Now().UnixNano(), "another" },
	} {
		bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
			before := newNode(t, store, who("a"), newDisk()).confirm(t)
			a := newNode(t, store, again(who("a")), before.disk).confirm(t)
			time.Sleep(refresh)
			beat := beatOf(g, store, 1)
			change(beat)
			put(g, store, kv.BeatKey(1), beat)
			a.confirm(t)
			g.Expect(a.Problem()).To(ContainSubstring("another agent runs"), name)
			time.Sleep(fresh - 1)
			a.confirm(t)
			g.Expect(a.Problem()).NotTo(BeEmpty(), name)
			time.Sleep(time.Nanosecond)
			a.confirm(t)
			g.Expect(a.Problem()).To(BeEmpty(), "%s: it has stopped", name)
		})
	}
}

// A clone names the address at which the other machine is.
func TestACloneNamesTheAddressOfTheOriginal(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.PublishUnderlay(addrs("10.200.2.2", "fd00:200::2"), "")
		p.commit(t)
		clone := newNode(t, p.store, on(who("a"), machineOf("b")), p.disk.copied()).confirm(t).run(t)
		const where = "with this node's identity, at 10.200.2.2 and fd00:200::2 according to the cluster store: "
		g.Expect(clone.Problem()).To(ContainSubstring("another agent may run " + where))
		time.Sleep(3 * refresh)
		g.Expect(clone.Problem()).To(ContainSubstring("another agent runs " + where))
		clone.stop()
	})
}
