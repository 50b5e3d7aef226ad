// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// careful is a node that quarantines an ID which it claims in a young store.
func careful(name string) nodesync.Identity {
	return with(who(name), func(w *nodesync.Identity) { w.Quarantine = 10 * time.Minute })
}

// The first nodes of a new store wait together, and then allocate without a
// person's help. A node that joins later does not wait.
func TestANewStore(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, careful("a"), newDisk()).confirm(t)
		g.Expect(a.Problem()).To(And(ContainSubstring("new or wiped"), ContainSubstring("allocated from 2000-01-01T00:10:00Z on")))
		g.Expect(a.suspension()).To(ContainSubstring("new or wiped"))
		time.Sleep(4 * time.Minute)
		b := newNode(t, store, careful("b"), newDisk()).confirm(t)
		g.Expect(b.Problem()).To(ContainSubstring("allocated from 2000-01-01T00:10:00Z on"), "the store is as young for the second one")
		time.Sleep(6*time.Minute - time.Second)
		synctest.Wait()
		g.Expect(a.confirm(t).Problem()).NotTo(BeEmpty())
		time.Sleep(time.Second)
		g.Expect(a.confirm(t).Problem()).To(BeEmpty())
		g.Expect(b.confirm(t).Problem()).To(BeEmpty())
		g.Expect(a.suspension()).To(BeEmpty())
		c := newNode(t, store, careful("c"), newDisk()).confirm(t)
		g.Expect(c.Problem()).To(BeEmpty())
	})
}

// The store was wiped with all agents down, and a new node came first. The node
// that had the ID takes it back, and the new one, which has allocated nothing, ends
// and claims another one.
func TestANewNodeComesFirstIntoAWipedStore(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		disk := newDisk()
		newNode(t, store, who("old"), disk).confirm(t)
		time.Sleep(time.Hour)
		wipe(g, store)
		fresh := newDisk()
		late := newNode(t, store, careful("new"), fresh).confirm(t)
		g.Expect(late.ID()).To(BeNumerically("==", 1))
		g.Expect(late.Problem()).NotTo(BeEmpty())
		late.Use()

		old := newNode(t, store, careful("old"), disk).confirm(t)
		g.Expect(old.ID()).To(BeNumerically("==", 1), "it takes its ID back")
		g.Expect(old.Problem()).To(BeEmpty(), "and allocates at once")
		g.Expect(late.Confirm(t.Context())).To(MatchError(controller.ErrFatal), "it ends, having allocated nothing")
		again := newNode(t, store, careful("new"), fresh)
		g.Expect(again.ID()).To(BeZero(), "it does not begin with that ID from its mirror")
		again.confirm(t)
		g.Expect(again.ID()).To(BeNumerically("==", 2))
	})
}

// Once the quarantine has ended the new node has the ID, whatever clock the old
// one has: that serves what it has leased, and allocates nothing new.
func TestTheOldNodeComesBackTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		disk := newDisk()
		newNode(t, store, who("old"), disk).confirm(t)
		time.Sleep(time.Hour)
		wipe(g, store)
		late := newNode(t, store, careful("new"), newDisk()).confirm(t)
		time.Sleep(10 * time.Minute)
		g.Expect(late.confirm(t).Problem()).To(BeEmpty())
		old := newNode(t, store, careful("old"), disk)
		old.Use()
		g.Expect(old.confirm(t).Problem()).To(ContainSubstring("node ID 1 is of node new"))
		g.Expect(late.confirm(t).Problem()).To(BeEmpty())
		g.Expect(records(g, store)).To(HaveKeyWithValue(uint32(1), HaveField("Name", "new")))
	})
}

// A start without the store remembers the quarantine.
func TestTheDiskRemembersTheQuarantine(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		disk := newDisk()
		newNode(t, store, careful("a"), disk).confirm(t)
		g.Expect(newNode(t, store, careful("a"), disk).Problem()).To(ContainSubstring("new or wiped"))
	})
}
