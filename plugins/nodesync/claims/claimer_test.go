// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// A node holds what its loop derives as soon as that has committed.
func TestTheLoopAsksForABlock(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk()).run()
		w.g.Expect(a.Hold(wide())).To(Equal(claims.Standing{}), "it is asked for, and not held yet")
		w.g.Expect(a.Waiting()).To(HaveKey(wide()))
		a.wants(wide())
		synctest.Wait() // no time passes
		standing := a.Hold(wide())
		w.g.Expect(standing.Held).To(BeTrue())
		w.g.Expect(standing.Since).To(Equal(time.Now()))
		w.g.Expect(a.Waiting()).To(BeEmpty())
		w.g.Expect(a.All()).To(HaveLen(1))
		w.g.Expect(a.told()).To(Equal(1))
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
		w.g.Expect(a.disk.values["claims"]).To(Equal(`[{"network":"default","prefix":"10.1.77.0/24"}]`))
		time.Sleep(3 * refresh)
		w.g.Expect(a.told()).To(Equal(1), "looks that find the same tell nothing")
		w.g.Expect(a.lines("this node holds a claim")).To(Equal(1))
	})
}

// A node that has no confirmed ID claims nothing.
func TestWithoutANodeIDNothingIsClaimed(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.unknown = true
		a.wants(wide())
		a.look()
		w.g.Expect(a.link.Count()).To(BeZero())
		w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
	})
}

// The log has one line for a claim that is blocked, and one for its end. It is
// held by itself, once the loop has seen that the holder gave it back.
func TestABlockedClaim(t *testing.T) {
	inWorld(t, func(w *world) {
		b := w.holding(node("b", 2), wide())
		a := w.starts(w.joins(node("a", 1)), newDisk()).run()
		a.wants(wide())
		synctest.Wait()
		waiting := a.Waiting()[wide()]
		w.g.Expect(waiting.Held).To(BeFalse())
		w.g.Expect(waiting.Blocker.String()).To(And(HavePrefix("node b holds 10.1.77.0/24;"), ContainSubstring("cadastre node release b")))
		w.g.Expect(a.All()[wide()]).To(Equal(waiting))
		w.g.Expect(a.told()).To(Equal(1), "what it waits for is news")
		for range 3 {
			time.Sleep(refresh)
			w.now = time.Now()
			w.beats(b.node)
		}
		w.g.Expect(a.lines("waits for a claim")).To(Equal(1), "later beats of the holder are not logged")
		w.g.Expect(a.Waiting()[wide()].Since).To(Equal(waiting.Since))
		w.g.Expect(a.disk.values["claims"]).To(BeEmpty())

		b.wants()
		b.look()
		a.Changed("a", &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.77.0/24", Node: "b"})
		synctest.Wait()
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
		w.g.Expect(a.told()).To(Equal(2))
		w.g.Expect(a.lines("this node holds a claim")).To(Equal(1))
	})
}

// The claim of a released node ends at a time that it says; the node that waits
// for it needs no event then.
func TestABlockedClaimEndsByItsTime(t *testing.T) {
	inWorld(t, func(w *world) {
		w.holding(node("b", 2), wide())
		a := w.starts(w.joins(node("a", 1)), newDisk()).run()
		w.g.Expect(w.register(w.store).End(context.Background(), "b", time.Now())).To(Succeed())
		a.wants(wide())
		synctest.Wait()
		w.g.Expect(a.Waiting()[wide()].Blocker.Ends).To(BeTemporally("==", time.Now().Add(expire)))
		time.Sleep(expire - time.Nanosecond)
		synctest.Wait()
		w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
	})
}

// What another node's change means for a node: nothing if it waits for no claim.
func TestWhichChangesMatter(t *testing.T) {
	own := func(held bool, ends int64) *kv.PrefixClaim {
		return &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.77.0/24", Node: "a", Held: held, Ends: ends}
	}
	for name, c := range map[string]struct {
		claim *kv.PrefixClaim
		looks bool
	}{
		"its claim, as it is":               {own(true, 0), false},
		"its claim was deleted":             {own(false, 0), true},
		"its claim was ended by a release":  {own(true, 7), true},
		"another node's claim":              {&kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.78.0/24", Node: "b"}, false},
		"a node record":                     {nil, false},
		"its claim, with a prefix of words": {&kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "ten", Node: "a", Held: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				a := w.holding(node("a", 1), wide()).run()
				synctest.Wait()
				looks := a.link.Count()
				a.Changed("a", c.claim)
				synctest.Wait()
				w.g.Expect(a.link.Count() > looks).To(Equal(c.looks))
			})
		})
	}
}

// A claim is given back when the loop wants it no more and its last lease is gone.
func TestAClaimIsKeptUntilItsLastLeaseIsGone(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.holding(node("a", 1), wide())
		other := block("10.1.78.0/24")
		a.leases(wide(), true)
		a.wants(other)
		a.look()
		w.g.Expect(a.Standing(wide()).Held).To(BeTrue(), "it has leases")
		w.g.Expect(a.Standing(other).Held).To(BeTrue())
		w.g.Expect(a.All()).To(HaveLen(2))
		a.leases(wide(), false)
		told := a.told()
		a.look()
		w.g.Expect(w.stored(wide())).To(BeEmpty())
		w.g.Expect(w.stored(other)).To(ConsistOf("a/i-a"))
		w.g.Expect(a.All()).To(HaveLen(1))
		w.g.Expect(a.told()).To(Equal(told + 1))
		w.g.Expect(a.disk.values["claims"]).NotTo(ContainSubstring("10.1.77.0"))
		w.takes(w.joins(node("b", 2)), wide())
	})
}

// A pending claim is given back, too: it would keep other nodes waiting.
func TestAPendingClaimIsGivenBack(t *testing.T) {
	inWorld(t, func(w *world) {
		w.holding(node("b", 2), wide())
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.wants(wide())
		a.look()
		w.g.Expect(w.stored(wide())).To(ConsistOf("b/i-b", "a/i-a pending"))
		a.wants()
		a.look()
		w.g.Expect(w.stored(wide())).To(ConsistOf("b/i-b"))
		w.g.Expect(a.Waiting()).To(BeEmpty())
	})
}

// The wants of one network say nothing of another one.
func TestNetworksAreApart(t *testing.T) {
	inWorld(t, func(w *world) {
		a, pin := w.holding(node("a", 1), wide()), address("192.168.16.9")
		a.Hold(pin)
		a.Want(kv.NodeNetworkClaims, []claims.Target{pin})
		a.look()
		a.Want(kv.NodeNetworkClaims, nil)
		a.look()
		w.g.Expect(a.Standing(wide()).Held).To(BeTrue())
		w.g.Expect(w.stored(pin)).To(BeEmpty())
	})
}

// A start without the store serves the claims that the disk remembers, and no
// claim that was given back.
func TestAStartWithoutTheStore(t *testing.T) {
	inWorld(t, func(w *world) {
		before := w.holding(node("a", 1), wide())
		before.wants(wide(), block("10.1.78.0/24"))
		before.look()
		before.wants(wide())
		before.look()

		a := w.starts(node("a", 1), before.disk)
		a.unknown = true // no node ID is confirmed without the store
		a.look()
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
		w.g.Expect(a.Hold(block("10.1.78.0/24")).Held).To(BeFalse())
		w.g.Expect(a.told()).To(BeZero())
	})
}

// A disk that cannot be read says nothing of the claims: the agent does not start.
func TestADiskThatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	d := newDisk()
	d.values["claims"] = `[{"network":"pods"`
	_, err := claims.NewClaimer(claims.ClaimerDeps{Log: slog.New(slog.DiscardHandler), Disk: d, Now: time.Now})
	w.g.Expect(err).To(MatchError(ContainSubstring(`read the claims that this node remembers: "[{`)))
}

// Blocks with leases are claimed by the first look, before there is an event, and
// nothing is given back before the loop has committed what it wants.
func TestBlocksWithLeasesAreClaimedAtTheStart(t *testing.T) {
	inWorld(t, func(w *world) {
		w.holding(node("a", 1), block("10.1.78.0/24")) // without leases
		a := w.starts(node("a", 1), newDisk(), wide()) // it ended before the disk had it
		w.g.Expect(a.Waiting()).To(HaveKey(wide()))
		a.leases(wide(), true)
		a.look()
		w.g.Expect(a.Standing(wide()).Held).To(BeTrue())
		w.g.Expect(w.stored(block("10.1.78.0/24"))).To(ConsistOf("a/i-a"), "the loop may be about to want it")
		a.wants()
		a.look()
		w.g.Expect(w.stored(block("10.1.78.0/24"))).To(BeEmpty())
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
	})
}

// A machine that was set up anew under the same name has its predecessor's claims once
// that may not allocate any more. It keeps those that it wants, the others go.
func TestThePredecessorsClaims(t *testing.T) {
	inWorld(t, func(w *world) {
		other := block("10.1.78.0/24")
		before := w.holding(node("a", 1), wide())
		before.wants(wide(), other)
		before.look()
		a := w.starts(w.joins(claims.Node{Name: "a", Instance: "i-a2", ID: 3}), newDisk()).run()
		a.wants(wide())
		synctest.Wait()
		w.g.Expect(a.Waiting()[wide()].Blocker.Expires).To(BeTemporally("==", time.Now().Add(expire)))
		time.Sleep(expire - time.Nanosecond)
		synctest.Wait()
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"), "it may still allocate")
		w.g.Expect(w.stored(other)).To(ConsistOf("a/i-a"), "from what is not wanted here, too")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a2"))
		time.Sleep(refresh)
		synctest.Wait()
		w.g.Expect(w.stored(other)).To(BeEmpty(), "it is inherited first, and then given back")
		w.g.Expect(a.All()).To(HaveLen(1))
	})
}

// A node whose claims stand as they should does not list the store with each look.
func TestAQuietNodeListsSeldom(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.wants(wide())
		a.look()
		a.look()
		before := a.link.Count()
		for range 10 {
			a.look()
		}
		w.g.Expect(a.link.Count()-before).To(BeNumerically("==", 10), "one Get of the claim each")
	})
}
