// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A pod's namespace and sandbox disappear without a DEL. Its neighbour stays.
func TestALeakedLeaseIsReleased(t *testing.T) {
	l := newLab(t, settings{undo: "1500ms"})
	leaked := l.add("leaked")
	used := l.add("used")
	l.rounds(8)
	l.g.Expect(l.state("leaked")).To(Equal("held"))
	l.g.Expect(l.witness("kernel")).To(ContainSubstring("kernel is present"))
	l.g.Expect(l.witness("runtime")).To(ContainSubstring("2 sandboxes"))

	l.vanish("leaked")
	l.sandboxes()
	l.becomes("leaked", "pending")
	l.g.Expect(l.cli("reclaim", "list")).To(And(
		ContainSubstring("pending"), ContainSubstring(leaked.String()), ContainSubstring("shop/leaked"),
		ContainSubstring("has no sandbox leaked"), ContainSubstring(", which had "+leaked.String())))
	l.becomes("leaked", "")
	l.g.Expect(l.cli("reclaim", "list")).To(ContainSubstring("reclaimed"))
	l.g.Expect(l.state("used")).To(Equal("held"))
	l.g.Expect(l.lease("used").IP).To(Equal(used.String()))
	metrics, err := l.agent.Get(t.Context(), "/metrics")
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Expect(metrics).To(And(
		ContainSubstring(`cadastre_reclaims_total{outcome="reclaimed"} 1`),
		ContainSubstring(`cadastre_witness_present{witness="kernel"} 1`)))
}

func TestAReclaimIsUndoneByHand(t *testing.T) {
	l := newLab(t, settings{})
	a := l.add("c1")
	l.vanish("c1")
	l.sandboxes()
	l.becomes("c1", "pending")
	l.g.Expect(l.cli("reclaim", "undo", a.String())).To(ContainSubstring("is held again by shop/c1"))
	l.g.Expect(l.state("c1")).To(Equal("held"))
	l.rounds(10)
	l.g.Expect(l.state("c1")).To(Equal("held"), "it is not reclaimed again by itself")
	l.g.Expect(l.cli("reclaim", "run", "--dry-run")).To(ContainSubstring("was undone by hand"))
	_, err := l.agent.CLI(t.Context(), "reclaim", "undo", a.String())
	l.g.Expect(err).To(MatchError(ContainSubstring("no reclaim of it is pending")))
}

// Whatever shows the lease in use, or leaves that open, keeps it.
func TestWhatIsNotReclaimed(t *testing.T) {
	for name, c := range map[string]struct {
		settings settings
		end      func(l *lab)
		waits    string
	}{
		"its sandbox is there":            {settings{}, func(l *lab) { l.vanish("c1"); l.sandboxes("c1") }, "1 claim is in use"},
		"its address is in its namespace": {settings{}, func(l *lab) { l.cri.Set() }, "1 claim is in use"},
		"the runtime is away":             {settings{}, func(l *lab) { l.vanish("c1"); l.cri.Stop() }, "witness runtime is missing"},
		"the runtime is not ready": {settings{}, func(l *lab) { l.vanish("c1"); l.sandboxes(); l.cri.SetNotReady("starting") },
			"witness runtime is missing"},
		"it is young": {settings{grace: "1h"}, func(l *lab) { l.vanish("c1"); l.sandboxes() }, "the grace period is 1h0m0s"},
		"there is no runtime": {settings{noRuntime: true}, func(l *lab) { l.vanish("c1") },
			"witness runtime is not applicable"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, c.settings)
			l.add("c1")
			l.rounds(5)
			c.end(l)
			l.rounds(12)
			l.g.Expect(l.state("c1")).To(Equal("held"))
			l.g.Expect(l.cli("reclaim", "run", "--dry-run")).To(ContainSubstring(c.waits))
		})
	}
}

// A witness that leaves while a reclaim is pending ends it, and its return begins it anew.
func TestTheRuntimeLeavesWhileAReclaimIsPending(t *testing.T) {
	l := newLab(t, settings{undo: "4s"})
	l.add("c1")
	l.vanish("c1")
	l.sandboxes()
	l.becomes("c1", "pending")
	l.cri.Stop()
	l.becomes("c1", "held")
	l.rounds(5)
	l.g.Expect(l.witness("runtime")).To(ContainSubstring("runtime is missing"))
	l.g.Expect(l.state("c1")).To(Equal("held"))
	l.g.Expect(l.cri.Start()).To(Succeed())
	l.becomes("c1", "pending")
	l.becomes("c1", "")
}

// A runtime that is restarted between two rounds may list only part of its sandboxes at
// first: one empty list is not enough, also not beside an earlier one.
func TestTheRuntimeIsRestarted(t *testing.T) {
	l := newLab(t, settings{interval: "1s"})
	l.add("c1")
	l.rounds(2)
	l.vanish("c1")
	l.sandboxes()
	l.becomes("c1", "pending")
	l.cri.Stop()
	l.g.Expect(l.cri.Start()).To(Succeed())
	l.becomes("c1", "held")
	l.becomes("c1", "pending")
}

// The evidence of a process ends with it.
func TestTheAgentIsKilled(t *testing.T) {
	t.Run("between the two observations", func(t *testing.T) {
		l := newLab(t, settings{interval: "1s"})
		l.add("c1")
		l.rounds(1)
		l.vanish("c1")
		l.sandboxes()
		l.rounds(1)
		l.kill()
		l.g.Expect(l.state("c1")).To(Equal("held"))
		l.becomes("c1", "pending")
	})
	t.Run("between the begin and the release", func(t *testing.T) {
		l := newLab(t, settings{undo: "1s"})
		a := l.add("c1")
		l.vanish("c1")
		l.sandboxes()
		l.becomes("c1", "pending")
		l.cri.Stop() // so that the new process cannot decide
		l.kill()
		l.g.Expect(l.state("c1")).To(Equal("held"))
		l.rounds(15) // longer than the time to undo it
		l.g.Expect(l.state("c1")).To(Equal("held"))
		l.g.Expect(l.lease("c1").IP).To(Equal(a.String()))
		l.g.Expect(l.cri.Start()).To(Succeed())
		l.becomes("c1", "pending")
		l.becomes("c1", "")
	})
}

// The runtime repeats the ADD of a pod whose reclaim is pending: the lease is held again
// before the answer, and stays so after a crash.
func TestTheADDIsRepeated(t *testing.T) {
	l := newLab(t, settings{})
	a := l.add("c1")
	l.vanish("c1")
	l.sandboxes()
	l.becomes("c1", "pending")
	l.g.Expect(l.addAgain("c1")).To(Equal(a))
	l.g.Expect(l.proc.Kill()).To(Succeed())
	l.sandboxes("c1")
	l.start()
	l.g.Expect(l.state("c1")).To(Equal("held"))
	l.g.Expect(l.lease("c1").IP).To(Equal(a.String()))
}

// GC without a runtime's socket: what it does not list waits for the kernel, twice, and
// then for the time to undo it.
func TestGC(t *testing.T) {
	l := newLab(t, settings{noRuntime: true, undo: "1s"})
	gone, there, listed := l.add("gone"), l.add("there"), l.add("listed")
	l.rounds(6)
	l.vanish("gone")
	// The kernel ends a namespace some time after its last file and process.
	l.g.Eventually(func() string {
		_, failure := l.request(cni.Request{
			Command:     "GC",
			Network:     "pods",
			Attachments: []cni.Attachment{{ContainerID: "listed", IfName: "eth0"}},
		})
		l.g.Expect(failure).To(BeNil())
		log, err := os.ReadFile(l.agent.Log())
		l.g.Expect(err).NotTo(HaveOccurred())
		last := ""
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "GC: attachments are not listed") {
				last = line
			}
		}
		return last
	}).WithTimeout(time.Minute).Should(And(
		Or(ContainSubstring(gone.String()+": it waits: a second observation"),
			ContainSubstring(gone.String()+": it is released in 1s")),
		ContainSubstring(there.String()+": it is in use"),
		Not(ContainSubstring(listed.String()+":"))))
	l.g.Expect(l.state("gone")).NotTo(BeEmpty())
	l.becomes("gone", "")
	l.g.Expect(l.lease("there").IP).To(Equal(there.String()))
	l.g.Expect(l.lease("listed").IP).To(Equal(listed.String()))
}

// CHECK looks into the namespace.
func TestCHECK(t *testing.T) {
	l := newLab(t, settings{})
	a := l.add("c1")
	_, failure := l.request(l.requestFor("CHECK", "c1"))
	l.g.Expect(failure).To(BeNil())
	other := a.Next()
	l.g.Expect(l.pods["c1"].Do(func() error { return setAddress("net1", other) })).To(Succeed())
	_, failure = l.request(l.requestFor("CHECK", "c1"))
	l.g.Expect(failure).To(BeNil(), "another interface is not this attachment")

	l.g.Expect(l.pods["c1"].Do(func() error { return changeAddress("eth0", a, other) })).To(Succeed())
	_, failure = l.request(l.requestFor("CHECK", "c1"))
	l.g.Expect(failure).NotTo(BeNil())
	l.g.Expect(failure.Code).To(BeEquivalentTo(cni.CodeDiffers))
	l.g.Expect(failure.Msg).To(And(ContainSubstring("holds "+a.String()), ContainSubstring("["+other.String()+"]")))
	l.g.Expect(l.pods["c1"].Do(func() error { return changeAddress("eth0", netip.Addr{}, a) })).To(Succeed())
	_, failure = l.request(l.requestFor("CHECK", "c1"))
	l.g.Expect(failure.Msg).To(ContainSubstring("has "+other.String()), "one more than the lease")
	l.g.Expect(l.pods["c1"].Do(func() error { return removeLink("eth0") })).To(Succeed())
	_, failure = l.request(l.requestFor("CHECK", "c1"))
	l.g.Expect(failure.Msg).To(ContainSubstring("has no interface eth0"))
}

// An address that a namespace has without a lease is not given to a pod. The quarantine
// ends with its cause.
func TestAnAddressInUseWithoutALease(t *testing.T) {
	l := newLab(t, settings{})
	a := l.add("c1")
	next := a.Next()
	l.connect(l.home, "stray", l.pods["c1"], "stray")
	l.ip(l.pods["c1"], fmt.Sprintf("addr add %s/32 dev stray", next))
	l.ip(l.home, fmt.Sprintf("route add %s dev stray", next))
	l.g.Eventually(func() string { return l.cli("leases") }).WithTimeout(time.Minute).Should(ContainSubstring("quarantined"))
	l.g.Expect(l.cli("leases")).To(MatchRegexp(`%s .*quarantined`, next))
	l.g.Expect(l.add("c2")).NotTo(Equal(next))
	l.g.Expect(l.pods["c1"].Do(func() error { return removeLink("stray") })).To(Succeed())
	l.g.Eventually(func() string { return l.cli("leases") }).WithTimeout(time.Minute).ShouldNot(ContainSubstring("quarantined"))
	l.g.Expect(l.state("c1")).To(Equal("held"))
}
