// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

func TestCoolDown(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{CoolDown: time.Hour})
	whole, part := w.pool("10.1.0.0/29", ""), w.pool("10.2.0.0/16", "10.2.2.0/30")
	for _, x := range []struct{ id, first, second, third string }{
		{whole, "10.1.0.2", "10.1.0.1", "10.1.0.3"}, {part, "10.2.2.1", "10.2.2.0", "10.2.2.2"},
	} {
		w.get(x.id, "")
		w.get(x.id, "")
		w.free(x.id, x.first)
		g.Expect(w.get(x.id, "")).To(HavePrefix(x.third+"/"), "the one just released has to cool")
		w.free(x.id, x.second)
		g.Expect(w.get(x.id, x.second)).To(HavePrefix(x.second+"/"), "a request for it by name gets it")
		w.free(x.id, x.second)
		got := []string{}
		for a, err := w.ask(x.id, ""); err == nil; a, err = w.ask(x.id, "") {
			got = append(got, a)
		}
		g.Expect(got[len(got)-2:]).To(HaveExactElements(HavePrefix(x.first+"/"), HavePrefix(x.second+"/")), "before the pool is full, the oldest first")
	}
	g.Expect(w.ReleasePool(part)).To(Succeed())
	w.pool("10.2.0.0/16", "10.2.2.0/30")
	g.Expect(w.get(part, "")).To(Equal("10.2.2.0/16"), "nothing cools longer than its pool lives")
}

func TestSerialOrderFromTheConfiguration(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{Serial: true})
	for _, id := range []string{w.pool("10.1.0.0/29", ""), w.pool("10.2.0.0/29", "10.2.0.0/30")} {
		first := w.get(id, "")
		second := w.get(id, "")
		a, _ := netip.ParsePrefix(first)
		w.free(id, a.Addr().String())
		g.Expect(w.get(id, "")).NotTo(Or(Equal(first), Equal(second)))
		g.Expect(w.get(id, "", ipamapi.AllocSerialPrefix, "true")).NotTo(Equal(second))
	}
}

// An address that was released behind the driver's back is found when nothing
// else is left.
func TestReleaseBesideTheDriver(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "10.1.2.0/28")
	for range 16 {
		w.get(id, "")
	}
	l, ok := w.ledger.Lookup("docker/LocalDefault/10.1.0.0/16", ip("10.1.2.7"))
	g.Expect(ok).To(BeTrue())
	_, err := w.ledger.Release(context.Background(), ledger.Selector{Key: l.Key})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.get(id, "")).To(Equal("10.1.2.7/16"))
	_, err = w.ask(id, "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoAvailableIPs))
	w.free(id, "10.1.2.7")
	w.free(id, "10.1.2.7")
	g.Expect(w.ReleasePool(id)).To(Succeed())
	g.Expect(w.ledger.Leases()).To(BeEmpty())
}

// An address that an event has staged is not allocated.
func TestStagedAddressIsNotAllocated(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "10.1.2.0/30")
	w.get(id, "")
	st := w.ledger.Begin()
	_, _, err := st.Claim(ledger.Request{
		Pool: "docker/LocalDefault/10.1.0.0/16", Key: ledger.Key{Network: "n", ContainerID: "c"}, Wanted: []netip.Addr{ip("10.1.2.1")},
	})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = w.ask(id, "10.1.2.1", ipamapi.EndpointName, "web")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated))
	g.Expect(w.get(id, "")).To(Equal("10.1.2.2/16"))
	st.Undo()
	g.Expect(w.get(id, "")).To(Equal("10.1.2.1/16"), "an address whose claim was undone is free")
	g.Expect(w.get(id, "")).To(Equal("10.1.2.3/16"))
}

// opener is a PoolOpener that can be made to fail: without doing it, after
// having done it, or late, before the next change.
type opener struct {
	*ipamapi.DirectPools
	before, after error
	late          []error // of the next changes
	waiting       []ipamapi.PoolChange
	changes       []ipamapi.PoolChange
}

func (o *opener) Change(ctx context.Context, c ipamapi.PoolChange) error {
	o.changes = append(o.changes, c)
	if o.before != nil {
		return o.before
	}
	if len(o.late) > 0 {
		err := o.late[0]
		o.late, o.waiting = o.late[1:], append(o.waiting, c)
		return err
	}
	for _, c := range append(o.waiting, c) {
		if err := o.DirectPools.Change(ctx, c); err != nil {
			return err
		}
	}
	o.waiting = nil
	return o.after
}

func unsureWorld(g Gomega) (*world, *opener) {
	l, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	o := &opener{DirectPools: ipamapi.NewDirectPools(l)}
	w := &world{g: g, ledger: l}
	w.Driver, err = ipamapi.New(context.Background(), ipamapi.Deps{Ledger: l, Pools: o})
	g.Expect(err).NotTo(HaveOccurred())
	return w, o
}

// blocks returns the active blocks of the ledger.
func (w *world) blocks() (all []string) {
	for _, s := range w.ledger.Stats() {
		if s.State == ledger.Active {
			all = append(all, s.Block.String())
		}
	}
	return all
}

func TestPoolChangeOfUnknownOutcome(t *testing.T) {
	g := NewWithT(t)
	w, o := unsureWorld(g)
	busy := errors.New("the loop is busy")
	o.after = busy
	_, err := w.request("10.1.0.0/16", "")
	g.Expect(err).To(MatchError(busy))
	g.Expect(w.pools()).To(BeEmpty())
	g.Expect(w.blocks()).To(Equal([]string{"10.1.0.0/16"}), "the change was made all the same")
	o.before, o.after = busy, nil
	_, err = w.request("10.1.0.0/24", "")
	g.Expect(err).To(MatchError(busy), "what the ledger has is not known")
	o.before = nil
	id := w.pool("10.1.0.0/24", "")
	w.get(id, "")
	g.Expect(w.blocks()).To(Equal([]string{"10.1.0.0/24"}), "the next change closes the other one")
	w.free(id, "10.1.0.1")
	o.before = busy
	g.Expect(w.ReleasePool("LocalDefault/10.1.0.0/24")).To(Succeed(), "it has no leases")
	g.Expect(w.pools()).To(BeEmpty())
	g.Expect(w.blocks()).To(Equal([]string{"10.1.0.0/24"}))
	o.before = nil
	w.pool("10.1.0.0/24", "")
	w.get(id, "")
	g.Expect(w.blocks()).To(Equal([]string{"10.1.0.0/24"}), "a pool that is requested again stays open")
	g.Expect(o.changes[len(o.changes)-1].Close).To(BeEmpty())
	o.before = busy
	g.Expect(w.ReleasePool("LocalDefault/10.1.0.0/24")).To(MatchError(busy))
	g.Expect(w.get("LocalDefault/10.1.0.0/24", "")).To(Equal("10.1.0.2/24"), "it is as it was")
	o.before = nil
	g.Expect(w.ReleasePool("LocalDefault/10.1.0.0/24")).To(Succeed())
	g.Expect(w.blocks()).To(BeEmpty())
}

// A release that failed, and is done later, takes no pool away that is in use.
func TestPoolChangeMadeLate(t *testing.T) {
	busy := errors.New("the loop is busy")
	for _, late := range [][]error{{busy}, {busy, busy}} {
		g := NewWithT(t)
		w, o := unsureWorld(g)
		id := w.pool("10.1.0.0/24", "10.1.0.128/25")
		w.get(id, "")
		o.late = late
		g.Expect(w.ReleasePool(id)).To(MatchError(busy))
		g.Expect(w.pools()).To(Equal(id + "*1"))
		g.Expect(w.pool("10.1.0.0/24", "10.1.0.128/25")).To(Equal(id))
		g.Expect(w.blocks()).To(Equal([]string{"10.1.0.0/24"}))
		n := len(o.changes)
		w.pool("10.1.0.0/24", "10.1.0.128/25")
		g.Expect(w.ReleasePool(id)).To(Succeed())
		g.Expect(o.changes).To(HaveLen(n), "once is enough")
		for range 128 - 1 { // but for the broadcast address
			w.get(id, "")
		}
		o.late = late
		g.Expect(w.ReleasePool(id)).To(Succeed(), "one request less")
		g.Expect(w.ReleasePool(id)).To(MatchError(busy))
		g.Expect(w.ReleasePool(id)).To(Succeed())
		g.Expect(w.blocks()).To(BeEmpty())
		g.Expect(w.ledger.Leases()).To(BeEmpty())
		id = w.pool("10.2.0.0/24", "")
		w.get(id, "")
		g.Expect(w.blocks()).To(Equal([]string{"10.2.0.0/24"}), "what is released stays released")
		o.late = late
		g.Expect(w.ReleasePool(id)).To(MatchError(busy))
		w.free(id, "10.2.0.1")
		g.Expect(w.ReleasePool(id)).To(Succeed())
		g.Expect(w.blocks()).To(BeEmpty())
	}
}

func TestPoolChangeIsAtomic(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "")
	w.get(id, "")
	key := w.ledger.Leases()[0].Key
	before := w.leases()
	for name, c := range map[string]ipamapi.PoolChange{
		"host bits": {
			Close: []ipamapi.PoolClosing{{Pool: "docker/LocalDefault/10.1.0.0/16", Release: []ledger.Key{key}}},
			Open:  []ipamapi.PoolGrant{{Pool: ledger.Pool{Name: "x"}, Blocks: prefixes("10.0.0.1/8")}},
		},
		"no name": {
			Close: []ipamapi.PoolClosing{{Pool: "docker/LocalDefault/10.1.0.0/16", Release: []ledger.Key{key}}},
			Open:  []ipamapi.PoolGrant{{}},
		},
	} {
		g.Expect(ipamapi.NewDirectPools(w.ledger).Change(context.Background(), c)).To(MatchError(HavePrefix("open pool ")), name)
		g.Expect(w.leases()).To(Equal(before), name)
		g.Expect(w.ledger.Stats()[0].State).To(Equal(ledger.Active), name)
	}
}

// TestRequestsWhilePoolsEndAndReturn has callers that use pools, while others release
// and request them again: a lease never outlives its pool.
func TestRequestsWhilePoolsEndAndReturn(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, ledger.NullJournal{}, ipamapi.Config{})
	pool := func(n int) string {
		return w.pool(fmt.Sprintf("10.%d.0.0/24", n), "", ipamapi.GroupOption, "all")
	}
	ids := []string{pool(0), pool(1), pool(2)}
	var stop atomic.Bool
	var unexpected sync.Map
	var wait sync.WaitGroup
	for range 4 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for n := 0; !stop.Load(); n++ {
				id := ids[n%3]
				a, err := w.ask(id, "", ipamapi.EndpointName, "web")
				switch {
				case err == nil:
					if p, err := netip.ParsePrefix(a); err == nil && n%2 == 0 {
						_ = w.ReleaseAddress(id, p.Addr().AsSlice())
					}
				case !errors.Is(err, ipamapi.ErrPoolNotFound) && !errors.Is(err, ipamapi.ErrNoAvailableIPs):
					unexpected.Store(err.Error(), true)
				}
			}
		}()
	}
	for n := range 60 {
		if err := w.ReleasePool(ids[n%3]); err != nil {
			unexpected.Store(err.Error(), true)
		}
		pool(n % 3)
	}
	stop.Store(true)
	wait.Wait()
	unexpected.Range(func(text, _ any) bool { t.Error(text); return true })
	for _, id := range ids {
		g.Expect(w.ReleasePool(id)).To(Succeed())
	}
	g.Expect(w.ledger.Leases()).To(BeEmpty())
	g.Expect(w.ledger.Stats()).To(BeEmpty())
}

// gate is a journal whose commits wait until it is opened.
type gate struct {
	*journal.Memory
	closed  chan struct{} // nil: it is open
	waiting atomic.Int64
}

func (j *gate) Commit(ctx context.Context, ops []kvdb.Op) error {
	if j.closed != nil {
		j.waiting.Add(1)
		<-j.closed
	}
	return j.Memory.Commit(ctx, ops)
}

// atOnce has n callers make a call whose first commit waits until all have
// begun.
func (j *gate) atOnce(n int, call func(i int)) {
	j.closed = make(chan struct{})
	var begun, wait sync.WaitGroup
	for i := range n {
		begun.Add(1)
		wait.Add(1)
		go func() {
			defer wait.Done()
			begun.Done()
			call(i)
		}()
	}
	begun.Wait()
	for range 1000 { // they have begun: let them get as far as they can
		runtime.Gosched()
	}
	close(j.closed)
	wait.Wait()
	j.closed = nil
}

// TestConcurrentRequestsOfOneEndpoint is the retry of an engine that did not wait.
func TestConcurrentRequestsOfOneEndpoint(t *testing.T) {
	g := NewWithT(t)
	j := &gate{Memory: journal.NewMemory()}
	w := newWorld(g, j, ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "")
	answers := make([]string, 16)
	j.atOnce(16, func(i int) {
		answers[i], _ = w.ask(id, "10.1.7.7", ipamapi.EndpointName, "web", ipamapi.EndpointMAC, "02:42:0a:01:07:07")
	})
	g.Expect(answers).To(HaveEach("10.1.7.7/16"))
	g.Expect(w.ledger.Leases()).To(HaveLen(1))
	j.atOnce(16, func(i int) { answers[i], _ = w.ask(id, "10.1.7.8") })
	slices.Sort(answers)
	g.Expect(answers[:15]).To(HaveEach(BeEmpty()), "without a name only one of them")
	g.Expect(answers[15]).To(Equal("10.1.7.8/16"))
}

func TestConcurrentRequestsForOneGateway(t *testing.T) {
	g := NewWithT(t)
	j := &gate{Memory: journal.NewMemory()}
	w := newWorld(g, j, ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "")
	j.atOnce(16, func(int) { _, _ = w.ask(id, "10.1.0.1", ipamapi.RequestAddressType, ipamapi.Gateway) })
	for range 15 {
		w.free(id, "10.1.0.1")
	}
	g.Expect(w.ledger.Leases()).To(HaveLen(1))
	w.free(id, "10.1.0.1")
	g.Expect(w.ledger.Leases()).To(BeEmpty())
}

func TestSharedGatewayWithoutRecord(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "")
	gateway := func() error { _, err := w.ask(id, "10.1.0.1", ipamapi.RequestAddressType, ipamapi.Gateway); return err }
	g.Expect(gateway()).To(Succeed())
	w.records.next = []journal.Fault{journal.Tear}
	g.Expect(gateway()).To(MatchError(journal.ErrInjected))
	w.free(id, "10.1.0.1")
	g.Expect(w.ledger.Leases()).To(BeEmpty(), "one network has it, not two")
	g.Expect(gateway()).To(Succeed())
	g.Expect(gateway()).To(Succeed())
	w.records.next = []journal.Fault{journal.Tear}
	g.Expect(w.ReleaseAddress(id, []byte{10, 1, 0, 1})).To(MatchError(journal.ErrInjected))
	w.free(id, "10.1.0.1")
	g.Expect(w.ledger.Leases()).To(HaveLen(1))
	w.free(id, "10.1.0.1")
	g.Expect(w.ledger.Leases()).To(BeEmpty())
}

func TestGroups(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	a, b := w.pool("10.1.0.0/31", "", ipamapi.GroupOption, "blue"), w.pool("10.2.0.0/30", "", ipamapi.GroupOption, "blue")
	red := w.pool("10.2.0.0/30", "", ipamapi.GroupOption, "red")
	for _, want := range []string{"10.1.0.0/31", "10.1.0.1/31", "10.2.0.1/30", "10.2.0.2/30"} {
		g.Expect(w.get(a, "")).To(Equal(want))
	}
	w.free(red, "10.2.0.1")
	g.Expect(w.ledger.Leases()).To(HaveLen(4), "it is of another group")
	_, err := w.ask(red, "10.2.0.1")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated))
	_, err = w.ask(a, "")
	g.Expect(err).To(And(MatchError(ipamapi.ErrNoAvailableIPs), MatchError(ContainSubstring("10.1.0.0/31")), MatchError(ContainSubstring("10.2.0.0/30"))))
	w.ledger.Suspend("test", "the disk is full")
	_, err = w.ask(a, "")
	g.Expect(err).To(And(MatchError(ipamapi.ErrNotNow), Not(MatchError(ContainSubstring("10.2.0.0/30")))), "only a full pool is stood in for")
	w.ledger.Suspend("test", "")
	w.forget()
	w.restart()
	g.Expect(w.pools()).To(Equal(a+"*1"), "it has the leases")
	g.Expect(w.ledger.Stats()).To(HaveEach(HaveField("State", ledger.Active)))
	g.Expect(w.pool("10.2.0.0/30", "", ipamapi.GroupOption, "blue") + w.pool("10.2.0.0/30", "", ipamapi.GroupOption, "red")).To(Equal(b + red))
	g.Expect(w.ReleasePool(b)).To(Succeed())
	g.Expect(w.ledger.Leases()).To(HaveLen(4), "the block is red's, too")
	g.Expect(w.ReleasePool(red)).To(Succeed())
	g.Expect(w.ledger.Leases()).To(HaveLen(2), "a block ends with its last pool")
	g.Expect(w.ReleaseAddress(a, []byte{10, 2, 0, 1})).To(MatchError(ipamapi.ErrIPOutOfRange))
	g.Expect(w.ReleasePool(a)).To(Succeed())
	g.Expect(w.ledger.Leases()).To(BeEmpty())
}

// TestRequestDuringTheReleaseOfItsPool waits for a pool whose release is under way.
func TestRequestDuringTheReleaseOfItsPool(t *testing.T) {
	for range 10 {
		g := NewWithT(t)
		j := &gate{Memory: journal.NewMemory()}
		w := newWorld(g, j, ipamapi.Config{})
		id := w.pool("10.1.0.0/16", "")
		w.get(id, "")
		errs := make([]error, 8)
		j.atOnce(8, func(i int) {
			if i == 0 {
				errs[i] = w.ReleasePool(id)
				return
			}
			for n := 0; j.waiting.Load() == 0 && n < 1e6; n++ {
				runtime.Gosched()
			}
			if i%2 == 0 {
				_, errs[i] = w.ask(id, "")
			} else {
				errs[i] = w.ReleaseAddress(id, []byte{10, 1, 0, 1})
			}
		})
		g.Expect(errs[0]).NotTo(HaveOccurred())
		for i, err := range errs[1:] {
			g.Expect(err).To(MatchError(map[bool]error{true: ipamapi.ErrBadPool, false: ipamapi.ErrPoolNotFound}[i%2 == 0]))
		}
		g.Expect(w.ledger.Leases()).To(BeEmpty())
	}
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/16", "", ipamapi.GroupOption, "\xff")
	w.get(id, "", ipamapi.EndpointName, "a\xffb#7", ipamapi.EndpointMAC, "\xfe")
	w.restart()
	g.Expect(w.leases()).To(ContainSubstring("a?b#7"))
	g.Expect(w.get(id, "10.1.0.1", ipamapi.EndpointName, "a\xffb#7")).To(Equal("10.1.0.1/16"))
}

// The ledger has the block of a pool before the request for the pool is answered,
// and loses it with the last pool of its prefix.
func TestPoolIsABlockOfTheLedger(t *testing.T) {
	g := NewWithT(t)
	w, o := unsureWorld(g)
	whole := w.pool("10.1.0.0/24", "")
	g.Expect(w.blocks()).To(Equal([]string{"10.1.0.0/24"}))
	part := w.pool("10.1.0.0/24", "10.1.0.128/25")
	w.pool("10.1.0.0/24", "10.1.0.128/25")
	g.Expect(o.changes).To(HaveLen(1), "the block is there already")
	w.get(part, "")
	w.get(whole, "")
	g.Expect(o.changes).To(HaveLen(1), "an address needs no change")
	g.Expect(w.ReleasePool(part)).To(Succeed())
	g.Expect(w.ReleasePool(part)).To(Succeed())
	g.Expect(o.changes).To(HaveLen(1))
	g.Expect(w.ReleasePool(whole)).To(Succeed())
	g.Expect(o.changes).To(HaveLen(2))
	g.Expect(w.blocks()).To(BeEmpty())
}

// Two requests at the same time never get one prefix, nor overlapping ones.
func TestLedgerDecidesWhichPrefixesAreFree(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{Local: ipamapi.Space{Pools: lists("10.0.0.0/16 24")}})
	st := w.ledger.Begin()
	g.Expect(st.SetPool(ledger.Pool{Name: "docker/LocalDefault/10.0.0.0/23", Space: "docker/LocalDefault"})).To(Succeed())
	g.Expect(st.SetBlocks("docker/LocalDefault/10.0.0.0/23", prefixes("10.0.0.0/23"))).To(Succeed())
	g.Expect(st.Commit(context.Background())).To(Succeed())
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.0.2.0/24"))
	_, err := w.request("10.0.1.0/24", "")
	g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap))
	g.Expect(w.pool("10.0.0.0/23", "")).To(Equal("LocalDefault/10.0.0.0/23"), "its own block")
}
