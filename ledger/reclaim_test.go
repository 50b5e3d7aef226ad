// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// reclaims is a ledger with one pool over a journal that survives it.
type reclaims struct {
	*ledger.Ledger
	g      Gomega
	memory *journal.Memory
	faulty *journal.Faulty
	uptime time.Duration
}

func newReclaims(t *testing.T) *reclaims {
	t.Helper()
	memory := journal.NewMemory()
	r := &reclaims{g: NewWithT(t), memory: memory, faulty: &journal.Faulty{Journal: memory}, uptime: time.Hour}
	r.open()
	return r
}

func (r *reclaims) open() {
	var err error
	r.Ledger, err = ledger.Open(context.Background(), r.faulty, ledger.Options{
		Uptime: func() time.Duration { return r.uptime }, BootID: "b1",
	})
	r.g.Expect(err).NotTo(HaveOccurred())
	st := r.Begin()
	r.g.Expect(st.SetPool(ledger.Pool{Name: "p", CoolDown: time.Minute, ReserveEdges: true})).To(Succeed())
	r.g.Expect(st.SetBlocks("p", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")})).To(Succeed())
	r.g.Expect(st.Commit(context.Background())).To(Succeed())
}

func (r *reclaims) claim(container string) ledger.Lease {
	leases, _, err := r.Claim(context.Background(), r.request(container))
	r.g.Expect(err).NotTo(HaveOccurred())
	return leases[0]
}

func (r *reclaims) request(container string) ledger.Request {
	return ledger.Request{Pool: "p", Key: ledger.Key{Network: "n", ContainerID: container, IfName: "eth0"}}
}

func (r *reclaims) begin(l ledger.Lease) {
	err := r.StartExpiry(context.Background(), ledger.Selector{Key: l.Key, Generation: l.Generation, Reason: "gone"},
		ledger.Expiry{Token: ledger.ReclaimToken, After: time.Minute})
	r.g.Expect(err).NotTo(HaveOccurred())
}

func (r *reclaims) lease(l ledger.Lease) *ledger.Lease {
	found, ok := r.Lookup("p", l.Addr)
	r.g.Expect(ok).To(BeTrue())
	return &found
}

func (r *reclaims) clean(t *testing.T) {
	t.Helper()
	r.g.Expect(r.Check(t.Context())).To(BeEmpty())
}

func TestAReclaimKeepsItsReason(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	r.begin(l)
	x := r.lease(l)
	r.g.Expect(x.Reclaiming()).To(BeTrue())
	r.g.Expect(x.InUse()).To(BeTrue())
	r.g.Expect(x.Reason).To(Equal("gone"))
	r.clean(t)
	r.g.Expect(r.StopExpiry(t.Context(), ledger.Selector{Key: l.Key}, ledger.ReclaimToken)).To(Succeed())
	r.g.Expect(r.lease(l).Reason).To(BeEmpty())
	r.clean(t)
}

// However long its caller does not decide, the ledger keeps the lease: no witness has agreed
// since.
func TestTheLedgerEndsNoReclaim(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	r.begin(l)
	r.g.Expect(r.lease(l).Expires).To(Equal(r.uptime + time.Minute))
	r.uptime += 1000 * time.Hour
	r.g.Expect(r.lease(l).Reclaiming()).To(BeTrue())
	r.g.Expect(r.Expired()).To(BeZero())
	_, err := r.Release(t.Context(), ledger.Selector{Key: l.Key})
	r.g.Expect(err).NotTo(HaveOccurred())
	r.clean(t)
}

// An expiry is of one claim: that of another generation is not touched.
func TestAnExpiryOfAnotherGeneration(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	e := ledger.Expiry{Token: ledger.ReclaimToken, After: time.Minute}
	other := ledger.Selector{Key: l.Key, Generation: l.Generation + 1}
	r.g.Expect(r.StartExpiry(t.Context(), other, e)).To(MatchError(ledger.ErrNoLease))
	r.g.Expect(r.lease(l).State).To(Equal(ledger.Held))
	r.begin(l)
	r.g.Expect(r.StopExpiry(t.Context(), other, ledger.ReclaimToken)).To(MatchError(ledger.ErrNoLease))
	r.g.Expect(r.lease(l).Reclaiming()).To(BeTrue())
}

// A repeated claim makes the lease held again, durably, through every form of a claim.
func TestAClaimStopsAReclaim(t *testing.T) {
	for name, again := range map[string]func(r *reclaims) error{
		"at once": func(r *reclaims) error { _, _, err := r.Claim(context.Background(), r.request("c1")); return err },
		"one address": func(r *reclaims) error {
			req := r.request("c1")
			req.Families = []ledger.Family{ledger.IPv4}
			_, _, err := r.ClaimAddr(context.Background(), &req)
			return err
		},
		"in a stage, twice": func(r *reclaims) error {
			st := r.Begin()
			for range 2 {
				if _, _, err := st.Claim(r.request("c1")); err != nil {
					return err
				}
			}
			if n := len(st.Staged()); n != 1 {
				return fmt.Errorf("%d changes are staged, want 1", n)
			}
			return st.Commit(context.Background())
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReclaims(t)
			l := r.claim("c1")
			r.begin(l)
			commits := r.memory.Commits()
			r.g.Expect(again(r)).To(Succeed())
			r.g.Expect(r.memory.Commits()).To(Equal(commits+1), "the answer is durable")
			r.g.Expect(r.lease(l).State).To(Equal(ledger.Held))
			r.g.Expect(r.lease(l).Reason).To(BeEmpty())
			r.clean(t)
			r.uptime += time.Hour
			r.g.Expect(r.lease(l).State).To(Equal(ledger.Held), "no expiry is left")
			r.g.Expect(r.lease(l).Generation).To(Equal(l.Generation))
		})
	}
}

// If that commit fails, the lease is pending as before, and the claim fails.
func TestAClaimThatCannotStopAReclaim(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	r.begin(l)
	r.faulty.Plan = journal.At(r.faulty.Commits()+1, journal.Fail)
	_, _, err := r.Claim(t.Context(), r.request("c1"))
	r.g.Expect(err).To(HaveOccurred())
	r.g.Expect(r.lease(l).Reclaiming()).To(BeTrue())
	r.claim("c1")
	r.g.Expect(r.lease(l).State).To(Equal(ledger.Held))
	r.clean(t)
}

// An event that is undone leaves the reclaim as it was; one that claims and releases frees.
func TestAStageThatStopsAReclaim(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	r.begin(l)
	st := r.Begin()
	_, fresh, err := st.Claim(r.request("c1"))
	r.g.Expect(err).NotTo(HaveOccurred())
	r.g.Expect(fresh).To(BeFalse())
	st.Undo()
	r.g.Expect(r.lease(l).Reclaiming()).To(BeTrue())
	_, _, err = st.Claim(r.request("c1"))
	r.g.Expect(err).NotTo(HaveOccurred())
	freed, err := st.Release(ledger.Selector{Key: l.Key})
	r.g.Expect(err).NotTo(HaveOccurred())
	r.g.Expect(freed).To(HaveLen(1))
	r.g.Expect(st.Commit(t.Context())).To(Succeed())
	r.g.Expect(r.lease(l).State).To(Equal(ledger.Cooling))
	r.clean(t)
}

// A claim repeated through another door confirms nothing that is pending for another
// reason.
func TestAClaimDoesNotStopAnotherExpiry(t *testing.T) {
	r := newReclaims(t)
	req := r.request("c1")
	req.Expiry = ledger.Expiry{Token: "t", After: time.Minute}
	leases, _, err := r.Claim(t.Context(), req)
	r.g.Expect(err).NotTo(HaveOccurred())
	x := leases[0]
	r.g.Expect(x.InUse()).To(BeFalse())
	r.claim("c1")
	r.g.Expect(r.lease(x).State).To(Equal(ledger.Pending))
}

// The evidence does not survive the process, however long that was away.
func TestARestartEndsAReclaim(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	r.begin(l)
	r.uptime += time.Hour
	r.open()
	x := r.lease(l)
	r.g.Expect(x.State).To(Equal(ledger.Held))
	r.g.Expect(x.Reason).To(BeEmpty())
	r.clean(t)
	r.claim("c2") // writes what is left
	r.clean(t)
	r.open()
	r.g.Expect(r.lease(l).State).To(Equal(ledger.Held))
	r.begin(*r.lease(l))
	r.clean(t)
}

func TestQuarantineOfAnAddressInUse(t *testing.T) {
	r := newReclaims(t)
	l := r.claim("c1")
	key := ledger.Key{Network: ledger.WitnessNetwork, ContainerID: "kernel", IfName: "x"}
	r.g.Expect(r.Exclude(t.Context(), ledger.Exclusion{Pool: "p", Addr: netip.MustParseAddr("10.0.0.9"), Owner: "o", Reason: "r"})).To(Succeed())
	cooling := r.claim("c2")
	_, err := r.Release(t.Context(), ledger.Selector{Key: cooling.Key})
	r.g.Expect(err).NotTo(HaveOccurred())
	fresh, err := r.Quarantine(t.Context(), "p", cooling.Addr, key, "seen")
	r.g.Expect(err).NotTo(HaveOccurred())
	r.g.Expect(fresh).To(BeTrue(), "an address in use must not go to another pod when it has cooled")
	r.clean(t)
	r.open()
	kept, _ := r.Lookup("p", cooling.Addr)
	r.g.Expect(kept.State).To(Equal(ledger.Quarantined))
	_, err = r.Release(t.Context(), ledger.Selector{Key: key})
	r.g.Expect(err).NotTo(HaveOccurred())
	for _, a := range []netip.Addr{l.Addr, netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.0.0.15"), netip.MustParseAddr("10.0.0.9")} {
		fresh, err := r.Quarantine(t.Context(), "p", a, key, "seen")
		r.g.Expect(err).NotTo(HaveOccurred())
		r.g.Expect(fresh).To(BeFalse(), a.String())
	}
	_, err = r.Quarantine(t.Context(), "p", netip.MustParseAddr("10.0.1.1"), key, "seen")
	r.g.Expect(err).To(MatchError(ledger.ErrOutside))
	_, err = r.Quarantine(t.Context(), "q", netip.MustParseAddr("10.0.1.1"), key, "seen")
	r.g.Expect(err).To(MatchError(ledger.ErrNoPool))

	a := netip.MustParseAddr("10.0.0.7")
	fresh, err = r.Quarantine(t.Context(), "p", a, key, "seen")
	r.g.Expect(err).NotTo(HaveOccurred())
	r.g.Expect(fresh).To(BeTrue())
	r.clean(t)
	r.open()
	x, _ := r.Lookup("p", a)
	r.g.Expect([]any{x.State, x.Reason, x.Key}).To(Equal([]any{ledger.Quarantined, "seen", key}))
	freed, err := r.Release(t.Context(), ledger.Selector{Key: key})
	r.g.Expect(err).NotTo(HaveOccurred())
	r.g.Expect(freed).To(HaveLen(1))
	st := r.Begin()
	r.g.Expect(st.SetBlocks("p", nil)).To(Succeed())
	r.g.Expect(st.Commit(t.Context())).To(Succeed())
	_, err = r.Quarantine(t.Context(), "p", netip.MustParseAddr("10.0.0.8"), key, "seen")
	r.g.Expect(err).To(MatchError(ledger.ErrOutside), "the block drains")
	r.clean(t)
}
