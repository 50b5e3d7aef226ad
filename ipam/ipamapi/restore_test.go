// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

func TestRestart(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	a, b := w.pool("", ""), w.pool("10.2.0.0/16", "10.2.2.0/24", ipamapi.GroupOption, "blue")
	c := w.pool("10.3.0.0/30", "", ipamapi.GroupOption, "blue")
	w.pool("10.3.0.0/30", "", ipamapi.GroupOption, "blue")
	w.get(a, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(a, "172.17.0.1", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(b, "", ipamapi.EndpointName, "web")
	w.get(c, "")
	w.get(c, "")
	w.get(c, "", ipamapi.EndpointName, "over")
	pools, leases := w.pools(), w.leases()
	w.restart()
	g.Expect(w.pools()).To(Equal(pools))
	g.Expect(w.leases()).To(Equal(leases))
	w.free(a, "172.17.0.1")
	_, err := w.ask(a, "172.17.0.1", ipamapi.EndpointName, "x")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "two networks had this gateway")
	g.Expect(w.get(a, "")).To(Equal("172.17.0.2/16"))
	g.Expect(w.get(c, "")).To(Equal("10.2.2.2/16"), "the group is as it was, and the numbers in keys go on")
	w.free(c, "10.2.2.1")
	g.Expect(w.get(b, "")).To(Equal("10.2.2.1/16"), "the part is as it was")
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/172.18.0.0/16"))
	g.Expect(w.ReleasePool(c)).To(Succeed())
	g.Expect(w.ReleasePool(c)).To(Succeed())
	g.Expect(w.ReleasePool(c)).To(MatchError(ipamapi.ErrBadPool))
}

func TestReplayIsAnsweredOnce(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/24", "")
	w.get(id, "", ipamapi.EndpointName, "web")
	w.get(id, "", ipamapi.EndpointName, "db")
	w.get(id, "")
	w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	taken := func(a string, pairs ...string) {
		_, err := w.ask(id, a, pairs...)
		g.ExpectWithOffset(1, err).To(MatchError(ipamapi.ErrIPAlreadyAllocated))
	}
	taken("10.1.0.1")
	w.restart()
	taken("10.1.0.1", ipamapi.EndpointName, "db")
	taken("10.1.0.3", ipamapi.EndpointName, "db")
	g.Expect(w.get(id, "10.1.0.1")).To(Equal("10.1.0.1/24"))
	taken("10.1.0.1")
	w.get(id, "10.1.0.2", ipamapi.EndpointName, "db")
	taken("10.1.0.2")
	w.get(id, "10.1.0.3")
	taken("10.1.0.3")
	w.get(id, "10.1.0.4")
	w.free(id, "10.1.0.1")
	w.get(id, "10.1.0.1")
	taken("10.1.0.1")
	w.restart()
	w.get(id, "10.1.0.1")
	taken("10.1.0.1")
}

func TestPoolIDWithoutRecords(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	a, b := w.pool("", ""), w.pool("10.2.0.0/16", "10.2.2.0/24")
	small := w.pool("10.4.0.0/31", "", ipamapi.GroupOption, "blue")
	more := w.pool("10.5.0.0/24", "", ipamapi.GroupOption, "blue")
	w.journal = journal.NewMemory()
	w.forget()
	w.restart()
	*w.host = host{pfx("172.17.0.0/16"), pfx("10.0.0.0/8")} // the engine's own bridges
	g.Expect(w.get(a, "", ipamapi.EndpointName, "web")).To(Equal("172.17.0.2/16"), "the first one is the gateway, most likely")
	g.Expect(w.get(b, "")).To(Equal("10.2.2.1/16"))
	w.get(b, "10.2.2.0", ipamapi.RequestAddressType, ipamapi.Gateway)
	g.Expect(w.get(more, "10.5.0.9")).To(Equal("10.5.0.9/24"))
	w.get(small, "10.4.0.1")
	g.Expect(w.get(small, "")).To(Equal("10.5.0.2/24"), "the group is in the ID, too")
	g.Expect(w.pools()).To(Equal(b + "*1 " + small + "*1 " + more + "*1 " + a + "*1"))
	w.restart()
	for _, id := range []string{a, b, small, more} {
		g.Expect(w.ReleasePool(id)).To(Succeed())
		_, err := w.ask(id, "")
		g.Expect(err).To(MatchError(ipamapi.ErrPoolNotFound), "released is not lost")
		g.Expect(w.ReleasePool(id)).To(MatchError(ipamapi.ErrBadPool))
	}
	g.Expect(w.leases()).To(BeEmpty())
	w.pool("10.2.0.0/15", "", ipamapi.OverlapOption, "true")
	w.restart()
	_, err := w.ask(b, "")
	g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap))
	g.Expect(w.ReleaseAddress(a, []byte{172, 17, 0, 2})).To(MatchError(ipamapi.ErrBadPool))
	g.Expect(w.pools()).To(Equal("LocalDefault/10.2.0.0/15*1"), "a release makes no pool")
	w.pool("10.7.0.0/16", "", ipamapi.OverlapOption, "true")
	_, err = w.ask("LocalDefault/10.7.0.0/16/10.7.1.0/24?pods=default", "")
	g.Expect(err).To(And(MatchError(ipamapi.ErrPoolOverlap), MatchError(ContainSubstring(`is of pool "docker/LocalDefault/10.7.0.0/16" of the ledger`))))
	g.Expect(w.ReleasePool("LocalDefault/10.7.0.0/16")).To(Succeed())
	_, err = w.ask("Elsewhere/10.77.0.0/16", "")
	g.Expect(err).To(MatchError(ipamapi.ErrBadPool))
}

func TestLeasesWithoutRecords(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	a, b := w.pool("10.1.0.0/16", ""), w.pool("10.1.0.0/16", "10.1.2.0/24")
	c := w.pool("10.3.0.0/24", "")
	w.get(a, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(b, "", ipamapi.EndpointName, "web")
	leases := w.leases()
	w.forget()
	w.restart()
	g.Expect(w.leases()).To(Equal(leases))
	g.Expect(w.pools()).To(Equal(a+"*1 "+b+"*1"), "a pool without leases is known by its ID when it is used")
	g.Expect(w.ledger.Stats()).To(HaveLen(1))
	g.Expect(w.records.keys()).To(Equal([]string{a, b}), "and on record again")
	_, err := w.ask(a, "10.1.0.1", ipamapi.EndpointName, "gateway")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "a gateway is not an endpoint")
	g.Expect(w.get(c, "")).To(Equal("10.3.0.2/24"))
	w.forget()
	w.restart()
	g.Expect(w.pools()).To(Equal(a + "*1 " + b + "*1 " + c + "*1"))
}

func TestUnreadableRecords(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "")
	put := func(key, value string) {
		g.Expect(w.records.MemoryRecords.Commit(context.Background(), map[string][]byte{key: []byte(value)}, nil)).To(Succeed())
	}
	put(id, "{")
	put("LocalDefault/nonsense", "{}")
	put("Elsewhere/10.5.0.0/16", `{"version":1,"refs":2}`)
	put("LocalDefault/10.6.0.0/16", `{"version":1,"refs":-3}`)
	w.restart()
	g.Expect(w.pools()).To(Equal("LocalDefault/10.1.0.0/16*1 LocalDefault/10.6.0.0/16*1"), "the ID says what is needed")
	w.restart()
	g.Expect(w.pools()).To(Equal("LocalDefault/10.1.0.0/16*1 LocalDefault/10.6.0.0/16*1"))
	g.Expect(w.records.keys()).To(ContainElements("LocalDefault/nonsense", "Elsewhere/10.5.0.0/16"), "what is not ours to read is left alone")
	put(id, `{"version":2,"refs":1}`)
	g.Expect(w.begin()).To(MatchError(ContainSubstring("is of version 2, this program knows 1: install the newer program again")))
}

// TestCrashDuringARelease stops in the middle of a release.
func TestCrashDuringARelease(t *testing.T) {
	g := NewWithT(t)
	j := journal.NewMemory()
	w := newWorld(g, j, ipamapi.Config{})
	id, other := w.pool("10.1.0.0/16", ""), w.pool("10.1.0.0/16", "10.1.2.0/24")
	w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(id, "")
	w.get(other, "")
	g.Expect(w.records.MemoryRecords.Commit(context.Background(), map[string][]byte{id: []byte(`{"version":1,"refs":1,"closing":true}`)}, nil)).To(Succeed())
	w.restart()
	g.Expect(w.pools()).To(Equal(other + "*1"))
	g.Expect(w.leases()).To(ContainSubstring("10.1.2.0:"))
	g.Expect(w.ledger.Leases()).To(HaveLen(1))
	g.Expect(w.records.MemoryRecords.Commit(context.Background(), map[string][]byte{other: []byte(`{"version":1,"refs":1,"closing":true}`)}, nil)).To(Succeed())
	w.restart()
	g.Expect(w.pools() + w.leases()).To(BeEmpty())
	g.Expect(w.ledger.Stats()).To(BeEmpty())
	g.Expect(w.records.keys()).To(BeEmpty())

	w.get(w.pool("10.1.0.0/16", ""), "")
	w.records.next = []journal.Fault{journal.None, journal.Fail}
	g.Expect(w.ReleasePool(id)).To(Succeed(), "it is decided; only the record is still there")
	g.Expect(w.records.keys()).To(Equal([]string{id}))
	w.restart()
	g.Expect(w.pools() + w.leases()).To(BeEmpty())
	g.Expect(w.records.keys()).To(BeEmpty())
}

// A pool that is served as its ID says, and cannot be recorded, is closed again
// with the next change.
func TestPoolWithoutRecordIsClosed(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
		w.records.next = []journal.Fault{fault}
		_, err := w.ask("LocalDefault/10.9.0.0/16", "")
		g.Expect(err).To(MatchError(journal.ErrInjected))
		g.Expect(w.pools()).To(BeEmpty())
		g.Expect(w.ledger.Stats()).NotTo(BeEmpty())
		id := w.pool("10.8.0.0/16", "")
		w.get(id, "")
		g.Expect(w.ledger.Stats()).To(HaveLen(1))
		w.free(id, "10.8.0.1")
		g.Expect(w.ReleasePool(id)).To(Succeed())
		g.Expect(w.ledger.Stats()).To(BeEmpty())
		g.Expect(w.records.keys()).To(BeEmpty())
	}
}

// The release of a part fails after the journal has taken it: a crash right after
// that finds the pool with its leases.
func TestCrashAfterAFailedRelease(t *testing.T) {
	g := NewWithT(t)
	fault := journal.None
	w := newWorld(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault {
		f := fault
		fault = journal.None
		return f
	}}, ipamapi.Config{})
	part := w.pool("10.1.0.0/16", "10.1.2.0/24")
	w.pool("10.1.0.0/16", "")
	w.get(part, "")
	before := w.text()
	fault = journal.Tear
	g.Expect(w.ReleasePool(part)).To(MatchError(journal.ErrInjected))
	w.restart()
	g.Expect(w.text()).To(Equal(before))
}

func TestLeasesOfOtherComponentsStay(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	st := w.ledger.Begin()
	for _, name := range []string{"default", "docker/Old/10.9.0.0/24", "docker/Old/10.8.0.0/24"} {
		g.Expect(st.SetPool(ledger.Pool{Name: name})).To(Succeed())
		g.Expect(st.SetBlocks(name, prefixes("10.9.0.0/24"))).To(Succeed())
	}
	g.Expect(st.Commit(context.Background())).To(Succeed())
	for i, name := range []string{"default", "docker/Old/10.9.0.0/24"} {
		_, _, err := w.ledger.Claim(context.Background(), ledger.Request{Pool: name, Key: ledger.Key{Network: "n", ContainerID: fmt.Sprint(i)}, Purpose: ledger.ForDocker})
		g.Expect(err).NotTo(HaveOccurred())
	}
	leases := w.leases()
	w.restart()
	g.Expect(w.leases()).To(Equal(leases))
	g.Expect(w.pools()).To(BeEmpty())
	var left []string
	for _, s := range w.ledger.Stats() {
		left = append(left, s.Pool+" "+s.State.String())
	}
	g.Expect(left).To(Equal([]string{"default active", "docker/Old/10.9.0.0/24 active"}), "a pool without leases is closed")
}

// TestFailedCallChangesNothing lets each commit of each call fail, in both
// ways, and the process go on or crash.
func TestFailedCallChangesNothing(t *testing.T) {
	calls := map[string]func(*world) error{
		"a new pool":       func(w *world) error { _, err := w.request("10.9.0.0/16", ""); return err },
		"a chosen pool":    func(w *world) error { _, err := w.request("", ""); return err },
		"a pool again":     func(w *world) error { _, err := w.request("10.1.0.0/16", ""); return err },
		"a part":           func(w *world) error { _, err := w.request("10.1.0.0/16", "10.1.9.0/24"); return err },
		"one request less": func(w *world) error { return w.ReleasePool("LocalDefault/10.2.0.0/16") },
		"an idle pool":     func(w *world) error { return w.ReleasePool("LocalDefault/10.3.0.0/16") },
		"a used pool":      func(w *world) error { return w.ReleasePool("LocalDefault/10.4.0.0/16") },
		"a used part":      func(w *world) error { return w.ReleasePool("LocalDefault/10.1.0.0/16/10.1.2.0/24") },
		"any address":      func(w *world) error { _, err := w.ask("LocalDefault/10.1.0.0/16", ""); return err },
		"any of a part":    func(w *world) error { _, err := w.ask("LocalDefault/10.1.0.0/16/10.1.2.0/24", ""); return err },
		"a named address":  func(w *world) error { _, err := w.ask("LocalDefault/10.1.0.0/16", "10.1.7.7"); return err },
		"a shared gateway": func(w *world) error {
			_, err := w.ask("LocalDefault/10.1.0.0/16", "10.1.0.1", ipamapi.RequestAddressType, ipamapi.Gateway)
			return err
		},
		"a released address": func(w *world) error { return w.ReleaseAddress("LocalDefault/10.4.0.0/16", []byte{10, 4, 0, 1}) },
		"a released gateway": func(w *world) error { return w.ReleaseAddress("LocalDefault/10.1.0.0/16", []byte{10, 1, 0, 1}) },
	}
	for name, call := range calls {
		failed := 0
		for n := range 12 {
			g := NewWithT(t)
			var ledgerFaults []journal.Fault
			memory := journal.NewMemory()
			w := newWorld(g, &journal.Faulty{Journal: memory, Plan: func(int64) journal.Fault {
				if len(ledgerFaults) == 0 {
					return journal.None
				}
				f := ledgerFaults[0]
				ledgerFaults = ledgerFaults[1:]
				return f
			}}, ipamapi.Config{})
			for _, p := range []string{"10.1.0.0/16", "10.2.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16"} {
				w.pool(p, "")
			}
			w.pool("10.1.0.0/16", "10.1.2.0/24")
			w.get("LocalDefault/10.1.0.0/16", "", ipamapi.RequestAddressType, ipamapi.Gateway)
			w.get("LocalDefault/10.1.0.0/16/10.1.2.0/24", "")
			w.get("LocalDefault/10.4.0.0/16", "")
			before := w.text()
			faults := append(make([]journal.Fault, n/4), []journal.Fault{journal.Fail, journal.Tear}[n%2])
			if n%4 < 2 {
				ledgerFaults = faults
			} else {
				w.records.next = faults
			}
			err := call(w)
			ledgerFaults, w.records.next = nil, nil
			if err == nil {
				continue
			}
			failed++
			g.Expect(err).To(MatchError(journal.ErrInjected), "%s, fault %d", name, n)
			g.Expect(w.text()).To(Equal(before), "%s, fault %d", name, n)
			g.Expect(w.check()).To(Succeed())
			g.Expect(call(w)).To(Succeed(), "%s, after fault %d", name, n)
			after := w.text()
			w.restart()
			g.Expect(w.text()).To(Equal(after), "%s, after fault %d and a restart", name, n)
		}
		NewWithT(t).Expect(failed).To(BeNumerically(">", 0), name)
	}
}
