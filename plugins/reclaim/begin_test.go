// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"context"
	"testing"
	"time"

	"github.com/cadastre/cadastre/witness"

	. "github.com/onsi/gomega"
)

func TestAReclaimByHand(t *testing.T) {
	n := newNode(t)
	g := n.g
	l := n.add("c1")
	until, err := n.Begin(t.Context(), l, "by hand")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(until).To(Equal(n.wall.Add(10 * time.Minute)))
	g.Expect(n.state("c1")).To(Equal("pending"), "it needs neither a second observation nor the grace period")
	g.Expect(n.Pending()[0].Lease.Reason).To(Equal("by hand"))
	n.rounds(10*time.Minute - 20*time.Second)
	g.Expect(n.state("c1")).To(Equal("pending"))
	n.rounds(20 * time.Second)
	g.Expect(n.state("c1")).To(BeEmpty())
}

func TestARoundThatShowsTheOwnerUndoesAReclaimByHand(t *testing.T) {
	n := newNode(t)
	_, err := n.Begin(t.Context(), n.add("c1"), "by hand")
	n.g.Expect(err).NotTo(HaveOccurred())
	n.sandboxes = []witness.Sandbox{{ID: "c1"}}
	n.rounds(20 * time.Second)
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

func TestAReclaimByHandFollowsAnUndo(t *testing.T) {
	n := newNode(t)
	l := n.add("c1")
	_, err := n.Begin(t.Context(), l, "by hand")
	n.g.Expect(err).NotTo(HaveOccurred())
	_, err = n.Undo(t.Context(), l.Addr, "")
	n.g.Expect(err).NotTo(HaveOccurred())
	_, err = n.Begin(t.Context(), l, "again")
	n.g.Expect(err).NotTo(HaveOccurred())
	n.rounds(40 * time.Second)
	n.g.Expect(n.state("c1")).To(Equal("pending"))
}

func TestWhatIsNotReclaimedByHand(t *testing.T) {
	n := newNode(t)
	l := n.add("c1")
	n.busy = true
	_, err := n.Begin(t.Context(), l, "by hand")
	n.g.Expect(err).To(MatchError(ContainSubstring("a request for pods/c1/eth0 is in progress")))
	n.busy = false
	other := l
	other.Generation++
	_, err = n.Begin(t.Context(), other, "by hand")
	n.g.Expect(err).To(HaveOccurred(), "a lease of another claim")
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

func TestNoReclaimByHandWithoutRoundsThatDecide(t *testing.T) {
	n := newNode(t)
	l := n.add("c1")
	n.Config.Enabled = false
	_, err := n.Begin(t.Context(), l, "by hand")
	n.g.Expect(err).To(MatchError(ContainSubstring("cadastre.reclaim.enabled is false")))
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

func TestTheTimeAloneReleasesNothing(t *testing.T) {
	n := newNode(t)
	g := n.g
	l := n.add("c1")
	n.rounds(2 * time.Minute)
	g.Expect(n.state("c1")).To(Equal("pending"))
	n.wall, n.uptime = n.wall.Add(24*time.Hour), n.uptime+24*time.Hour // the process stood still
	g.Expect(n.state("c1")).To(Equal("pending"), "no round has agreed")
	n.places[l.Addr] = "/var/run/netns/c1"
	_, err := n.Round(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.state("c1")).To(Equal("held"))
}

func TestAnUndoAfterTheProcessStoodStill(t *testing.T) {
	n := newNode(t)
	g := n.g
	l := n.add("c1")
	n.rounds(2 * time.Minute)
	n.wall, n.uptime = n.wall.Add(24*time.Hour), n.uptime+24*time.Hour
	_, err := n.Undo(t.Context(), l.Addr, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.state("c1")).To(Equal("held"))
}

// A caller that leaves while the witnesses are read leaves no round open: the next one begins.
func TestACallerThatLeavesEndsItsRound(t *testing.T) {
	n := newNode(t)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range 20 { // it may find the round free
		_, err := n.Observe(gone)
		n.g.Expect(err).To(MatchError(context.Canceled))
	}
	limited, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := n.Observe(limited)
	n.g.Expect(err).NotTo(HaveOccurred())
}

// Nobody decides while a round reads the witnesses. A caller that does not wait is told so.
func TestARoundExcludesOthers(t *testing.T) {
	n := newNode(t)
	l := n.add("c1")
	gone, leave := context.WithCancel(t.Context())
	leave()
	n.during = func() {
		n.during = nil
		for name, call := range map[string]func() error{
			"round":   func() error { _, err := n.Round(gone); return err },
			"observe": func() error { _, err := n.Observe(gone); return err },
			"preview": func() error { _, _, err := n.Preview(gone); return err },
			"begin":   func() error { _, err := n.Begin(gone, l, "by hand"); return err },
			"undo":    func() error { _, err := n.Undo(gone, l.Addr, ""); return err },
		} {
			for range 5 { // it may find the round free
				err := call()
				n.g.Expect(err).To(MatchError(context.Canceled), name)
				n.g.Expect(err).To(MatchError(ContainSubstring("the round of the witnesses in progress")), name)
			}
		}
	}
	_, err := n.Round(t.Context())
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.state("c1")).To(Equal("held"))
}
