// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Row 3, with the cool-down that yields where nothing else is free.
func TestAReleasedAddressCoolsDownBeforeItIsAllocatedAgain(t *testing.T) {
	g := NewWithT(t)
	n := running(t, fourPods(), 1)
	g.Expect(n.allocate("p1")).To(Equal("1.2.128.10"))
	g.Expect(n.allocate("p2")).To(Equal("1.2.128.11"))
	g.Expect(n.ReleasePodIP(pod("p2"))).To(Succeed())
	g.Expect(n.allocate("p3")).To(Equal("1.2.128.12"), "not the one that was just released")
	g.Expect(n.allocate("p4")).To(Equal("1.2.128.13"))
	g.Expect(n.leases(ledger.ForPod, ledger.Cooling)).To(Equal([]string{"1.2.128.11"}))
	g.Expect(n.allocate("p2")).To(Equal("1.2.128.11"), "nothing else is left")
	n.sound()
}

// The address that cools longest is allocated early first, and after the cool-down
// the order is the pool's again.
func TestCoolDown(t *testing.T) {
	g := NewWithT(t)
	n := running(t, fourPods(), 1)
	for _, p := range []string{"p1", "p2", "p3", "p4"} {
		n.allocate(p)
	}
	g.Expect(n.ReleasePodIP(pod("p3"))).To(Succeed())
	g.Expect(n.ReleasePodIP(pod("p1"))).To(Succeed())
	g.Expect(n.allocate("p5")).To(Equal("1.2.128.12"), "released before .10")
	n.clock.now = n.clock.now.Add(time.Minute)
	g.Expect(n.leases(ledger.ForPod, ledger.Cooling)).To(BeEmpty())
	g.Expect(n.allocate("p6")).To(Equal("1.2.128.10"))
	_, err := n.AllocatePodIP(pod("p7"), "", "")
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
}

// Rows 4 and 5.
func TestAPodHasOneAddress(t *testing.T) {
	g := NewWithT(t)
	n := running(t, fourPods(), 1)
	first := n.allocate("p1")
	commits := n.journal.Commits()
	g.Expect(n.allocate("p1")).To(Equal(first))
	g.Expect(n.journal.Commits()).To(Equal(commits), "a repetition writes nothing")
	all := map[string]string{"p1": first}
	for _, p := range []string{"p2", "p3", "p4"} {
		all[p] = n.allocate(p)
	}
	g.Expect(n.ReleasePodIP(pod("p2"))).To(Succeed())
	g.Expect(n.ReleasePodIP(pod("p4"))).To(Succeed())
	g.Expect([]string{n.allocate("p5"), n.allocate("p6")}).To(ConsistOf(all["p2"], all["p4"]))
	_, err := n.AllocatePodIP(pod("p7"), "", "")
	var full *ledger.Exhausted
	g.Expect(errors.As(err, &full)).To(BeTrue())
	g.Expect(*full).To(Equal(ledger.Exhausted{Pool: ipam.PodPool, Family: ledger.IPv4, Size: 8, Held: 4, Infra: 2, Reserved: 2}))
	g.Expect(err).To(MatchError(ContainSubstring("default/p7")))
}

func TestReleasingAllMakesAllFree(t *testing.T) {
	g := NewWithT(t)
	n := running(t, fourPods(), 1)
	names := []string{"p1", "p2", "p3", "p4"}
	for range 3 {
		given := map[string]bool{}
		for _, p := range names {
			given[n.allocate(p)] = true
		}
		g.Expect(given).To(HaveLen(4))
		for _, p := range names {
			g.Expect(n.ReleasePodIP(pod(p))).To(Succeed())
		}
	}
	n.sound()
}

func TestTheAddressOfAPod(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	g.Expect(n.GetPodIP(pod("p1"))).To(BeNil(), "it has none yet")
	n.allocate("p1")
	g.Expect(n.GetPodIP(pod("p1")).String()).To(Equal("10.1.5.2/32"))
	g.Expect(n.GetPodIP(pod("p2"))).To(BeNil())
	g.Expect(n.ReleasePodIP(pod("p1"))).To(Succeed())
	g.Expect(n.GetPodIP(pod("p1"))).To(BeNil())
	commits := n.journal.Commits()
	g.Expect(n.ReleasePodIP(pod("p1"))).To(Succeed(), "a pod without an address is not an error")
	g.Expect(n.ReleasePodIP(pod("never-seen"))).To(Succeed())
	g.Expect(n.journal.Commits()).To(Equal(commits))
}

// The Go API speaks of the newest sandbox that is known, else of a key of its own.
func TestTheAPIFindsThePodsSandbox(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	own := n.allocate("p1")
	g.Expect(n.Ledger.ByKey(ledger.Key{Network: "contiv", ContainerID: "pod:default/p1", IfName: "eth0"})).To(HaveLen(1))

	n.sandboxes[pod("p2")] = key("c2")
	ip := n.allocate("p2")
	g.Expect(n.Ledger.ByKey(key("c2"))).To(HaveLen(1))
	g.Expect(n.GetPodIP(pod("p2")).String()).To(Equal(ip + "/32"))

	n.sandboxes[pod("p2")] = key("c2-again")
	g.Expect(n.GetPodIP(pod("p2"))).To(BeNil(), "the new sandbox has none yet")
	g.Expect(n.ReleasePodIP(pod("p2"))).To(Succeed())
	g.Expect(n.Ledger.ByKey(key("c2"))).To(HaveLen(1), "the address of the old sandbox is not the new one's to release")

	g.Expect(n.ReleasePodIP(pod("p1"))).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{ip}))
	g.Expect(n.leases(ledger.ForPod, ledger.Cooling)).To(Equal([]string{own}))
}

// An address is in the journal before a caller gets it.
func TestTheAPIAnswersWhatIsDurable(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	ip := n.allocate("p1")
	n.start(defaults)
	g.Expect(n.GetPodIP(pod("p1")).String()).To(Equal(ip + "/32"))
	g.Expect(n.ReleasePodIP(pod("p1"))).To(Succeed())
	n.start(defaults)
	g.Expect(n.GetPodIP(pod("p1"))).To(BeNil())
}
