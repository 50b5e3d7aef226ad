// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// draining opens a pool whose /24 drains, with the addresses of three pods and
// two gateways, beside an active /28 within it.
func draining(g Gomega) *bench {
	b := open(g, journal.NewMemory())
	pool := ledger.Pool{Name: "default", CoolDown: time.Minute}
	b.pool(pool, "10.0.0.0/24")
	for n, a := range []string{"10.0.0.5", "10.0.0.6", "10.0.0.100"} {
		b.g.Expect(b.wanted(n, a, ledger.ForPod)).To(Succeed())
	}
	b.g.Expect(b.wanted(10, "10.0.0.1", ledger.ForInfra)).To(Succeed())
	b.g.Expect(b.wanted(11, "10.0.0.200", ledger.ForInfra)).To(Succeed())
	b.g.Expect(b.release(1)).To(Equal("10.0.0.6"), "it cools")
	b.pool(pool, "10.0.0.0/28")
	return b
}

func wantedRequest(n int, a string, purpose ledger.Purpose) ledger.Request {
	return ledger.Request{Pool: "default", Key: key(n), Purpose: purpose, Wanted: []netip.Addr{ip(a)}}
}

func (b *bench) wanted(n int, a string, purpose ledger.Purpose) error {
	_, _, err := b.Claim(context.Background(), wantedRequest(n, a, purpose))
	return err
}

func (b *bench) blocks() (all []string) {
	for _, s := range b.Stats() {
		all = append(all, s.Block.String()+" "+s.State.String())
	}
	return all
}

func TestUndoneClaimOfAnAddressOfAReleasedBlock(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		purpose    ledger.Purpose
		left       string
	}{
		{"cooling", "10.0.0.6", ledger.ForPod, "10.0.0.5:cooling:c0 10.0.0.6:cooling:c1"},
		{"gateway", "10.0.0.1", ledger.ForInfra, "10.0.0.5:cooling:c0 10.0.0.6:cooling:c1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := draining(NewWithT(t))
			st := b.Begin()
			_, _, err := st.Claim(wantedRequest(20, c.addr, c.purpose))
			b.g.Expect(err).NotTo(HaveOccurred())
			b.release(0)
			b.release(2)
			b.g.Expect(b.blocks()).To(Equal([]string{"10.0.0.0/28 active"}), "the /24 ends with its last pod")
			st.Undo()
			b.g.Expect(b.list()).To(Equal(c.left))
			b.consistent()
			b.g.Expect(b.wanted(21, c.addr, c.purpose)).To(Succeed())
			b.consistent()
		})
	}
}

func TestUndoEndsDrainingBlocks(t *testing.T) {
	b := draining(NewWithT(t))
	st := b.Begin()
	_, err := st.Release(ledger.Selector{Key: key(11)})
	b.g.Expect(err).NotTo(HaveOccurred())
	b.release(0)
	b.release(2)
	st.Undo()
	b.g.Expect(b.blocks()).To(Equal([]string{"10.0.0.0/28 active"}))
	b.consistent()
}

func TestExclusionEndsDrainingBlock(t *testing.T) {
	b := draining(NewWithT(t))
	st := b.Begin()
	b.g.Expect(st.Exclude(ledger.Exclusion{Pool: "default", Addr: ip("10.0.0.200"), Owner: "test"})).To(Succeed())
	b.release(0)
	b.release(2)
	b.g.Expect(st.Commit(context.Background())).To(Succeed())
	b.g.Expect(b.blocks()).To(Equal([]string{"10.0.0.0/28 active"}))
	b.consistent()
}

func TestSmallerBlockKeepsTheCoolDown(t *testing.T) {
	b := draining(NewWithT(t))
	b.release(0)
	b.release(2)
	b.g.Expect(b.blocks()).To(Equal([]string{"10.0.0.0/28 active"}))
	b.g.Expect(b.list()).To(Equal("10.0.0.5:cooling:c0 10.0.0.6:cooling:c1"))
	b.consistent()
	b.reopen()
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute}, "10.0.0.0/28")
	b.g.Expect(b.list()).To(Equal("10.0.0.5:cooling:c0 10.0.0.6:cooling:c1"))
	b.uptime += time.Minute
	b.g.Expect(b.list()).To(BeEmpty())
	b.consistent()
}

func TestFirstFreeCountsTheCoolDownInASmallerBlock(t *testing.T) {
	b := draining(NewWithT(t))
	for n := range 13 { // all but .1, .5 and .6
		_, err := b.claim(100 + n)
		b.g.Expect(err).NotTo(HaveOccurred())
	}
	_, wait, ok := b.FirstFree(ledger.IPv4, []string{"default"})
	b.g.Expect(ok).To(BeFalse())
	b.g.Expect(wait).To(Equal(time.Minute))
}

func TestMoveEndsDrainingBlock(t *testing.T) {
	b := draining(NewWithT(t))
	ctx := context.Background()
	b.pool(ledger.Pool{Name: "other"}, "10.0.0.0/24")
	for _, a := range []string{"10.0.0.5", "10.0.0.100"} {
		b.g.Expect(b.Move(ctx, "default", "other", ip(a))).To(Succeed())
	}
	b.g.Expect(b.blocks()).To(Equal([]string{"10.0.0.0/28 active", "10.0.0.0/24 active"}))
	b.consistent()
}

func TestCanceledChangesOfARestoreAreReported(t *testing.T) {
	b := draining(NewWithT(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.pool(ledger.Pool{Name: "other"}, "10.0.0.0/24")
	b.g.Expect(b.Cool(ctx, "default", ip("10.0.0.9"), b.uptime)).To(MatchError(context.Canceled))
	b.g.Expect(b.Move(ctx, "default", "other", ip("10.0.0.5"))).To(MatchError(context.Canceled))
	b.consistent()
}

// A pod's address was claimed from a block that was not committed before the crash.
func TestLeaseOfALostBlockWithinADrainingOne(t *testing.T) {
	b := draining(NewWithT(t))
	pool := ledger.Pool{Name: "default", CoolDown: time.Minute}
	st := b.Begin()
	b.g.Expect(st.SetBlocks("default", []netip.Prefix{pfx("10.0.0.128/26")})).To(Succeed())
	_, err := b.claim(30)
	b.g.Expect(err).NotTo(HaveOccurred())
	leases := b.list()
	b.reopen()
	b.consistent()
	b.g.Expect(b.list()).To(Equal(leases))
	b.g.Expect(b.blocks()).To(ConsistOf("10.0.0.0/24 draining", "10.0.0.0/28 active", "10.0.0.128/26 draining"))
	b.pool(pool, "10.0.0.128/26")
	b.consistent()
}
