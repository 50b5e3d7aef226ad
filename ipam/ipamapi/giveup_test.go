// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// rounds are the observations of a world, one minute apart.
type rounds struct {
	*world
	uptime time.Duration
	inUse  map[netip.Addr]string
	blind  bool // the kernel's namespaces are not all known
}

func (r *rounds) observe() error {
	r.uptime += time.Minute
	view, _ := r.engine.Read(context.Background())
	inUse := func(a netip.Addr) string { return r.inUse[a] }
	if r.blind {
		inUse = nil
	}
	return r.Observe(context.Background(), ipamapi.Observation{
		Engine: view,
		InUse:  inUse,
		Uptime: r.uptime,
		Now:    time.Unix(0, 0).Add(r.uptime),
	})
}

// after observes so many times and describes the pools.
func (r *rounds) after(n int) string {
	for range n {
		r.g.ExpectWithOffset(1, r.observe()).To(Succeed())
	}
	var all []string
	for _, p := range r.Pools() {
		text := fmt.Sprintf("%s*%d", strings.TrimPrefix(p.ID, "LocalDefault/"), p.Requests)
		if p.GivenUp != nil {
			text += fmt.Sprintf("-%d", p.GivenUp.Requests)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func newRounds(g Gomega, networks ...witness.EngineNetwork) *rounds {
	e := &engine{view: witness.EngineView{ID: "E1", Networks: networks}}
	config := ipamapi.Config{GiveUpAfter: time.Minute, Undo: 3 * time.Minute}
	return &rounds{world: newEngineWorld(g, e, config), inUse: map[netip.Addr]string{}}
}

const lonely = "LocalDefault/10.1.0.0/24"

// A pool of a network that the engine no longer has ends, with its addresses, after two
// observations and the time to undo that.
func TestPoolWithoutNetworkIsGivenUp(t *testing.T) {
	g := NewWithT(t)
	r := newRounds(g)
	r.get(r.pool("10.1.0.0/24", ""), "", ipamapi.RequestAddressType, ipamapi.Gateway)
	r.get(lonely, "", ipamapi.EndpointMAC, macA)
	g.Expect(r.after(1)).To(Equal("10.1.0.0/24*1"), "one observation proves nothing")
	g.Expect(r.after(1)).To(Equal("10.1.0.0/24*1-1"))
	g.Expect(r.Pools()[0].GivenUp.Evidence).To(Equal("engine: 0 of the 0 networks of engine E1 have 10.1.0.0/24, which was requested 1 times"))
	g.Expect(r.leases()).NotTo(BeEmpty(), "its addresses are kept for as long as it can be undone")
	g.Expect(r.after(2)).To(Equal("10.1.0.0/24*1-1"))
	g.Expect(r.after(1)).To(BeEmpty())
	g.Expect(r.leases()).To(BeEmpty())
	g.Expect(r.records.keys()).To(Equal([]string{"engine"}))
	g.Expect(r.check()).To(Succeed())
}

// Two observations have to be apart in time, however many there are in between.
func TestObservationsAreApart(t *testing.T) {
	g := NewWithT(t)
	r := &rounds{world: newEngineWorld(g, &engine{}, ipamapi.Config{GiveUpAfter: 3 * time.Minute})}
	r.pool("10.1.0.0/24", "")
	g.Expect(r.after(3)).To(Equal("10.1.0.0/24*1"))
	g.Expect(r.after(1)).To(Equal("10.1.0.0/24*1-1"))
}

// What happens between the observations, and what then becomes of the pool in the next
// five of them.
func TestPoolsAreNotGivenUp(t *testing.T) {
	with := []witness.EngineNetwork{network("n", "10.1.0.0/24")}
	for name, c := range map[string]struct {
		before func(*rounds) // before the first observation
		change func(*rounds) // after the first one
		later  func(*rounds) // when it is given up, before it ends
		want   string
	}{
		"the network is there":        {before: func(r *rounds) { r.engine.view.Networks = with }, want: "10.1.0.0/24*1"},
		"the network comes":           {change: func(r *rounds) { r.engine.view.Networks = with }, want: "10.1.0.0/24*1"},
		"the network comes late":      {later: func(r *rounds) { r.engine.view.Networks = with }, want: "10.1.0.0/24*1"},
		"an address is requested":     {later: func(r *rounds) { r.get(lonely, "", ipamapi.EndpointMAC, macB) }, want: "10.1.0.0/24*1-1"},
		"it is requested again":       {later: func(r *rounds) { r.pool("10.1.0.0/24", "") }, want: "10.1.0.0/24*2-2"},
		"it is kept":                  {later: func(r *rounds) { r.g.Expect(r.KeepPool(context.Background(), lonely)).To(Succeed()) }, want: "10.1.0.0/24*1"},
		"an address is in use":        {before: func(r *rounds) { r.inUse[ip("10.1.0.1")] = "eth0" }, want: "10.1.0.0/24*1"},
		"an address is in use later":  {later: func(r *rounds) { r.inUse[ip("10.1.0.1")] = "eth0" }, want: "10.1.0.0/24*1"},
		"another engine answers":      {later: func(r *rounds) { r.engine.view.ID = "E2" }, want: "10.1.0.0/24*1-1"},
		"the engine is away once":     {later: func(r *rounds) { r.engine.err = errSilent; r.after(1); r.engine.err = nil }, want: "10.1.0.0/24*1-1"},
		"the engine is away":          {change: func(r *rounds) { r.engine.err = errSilent }, want: "10.1.0.0/24*1"},
		"the kernel hides namespaces": {change: func(r *rounds) { r.blind = true }, want: "10.1.0.0/24*1"},
		"the kernel hides them once":  {later: func(r *rounds) { r.blind = true; r.after(1); r.blind = false }, want: "10.1.0.0/24*1-1"},
		"the process restarts":        {later: func(r *rounds) { r.restart() }, want: "10.1.0.0/24*1-1"},
		"a network of the same prefix": {before: func(r *rounds) {
			r.engine.view.Networks = []witness.EngineNetwork{network("n", "10.1.0.0/24", part("10.1.0.0/26"))}
		}, want: "10.1.0.0/24*1"},
		"a network of another driver": {before: func(r *rounds) {
			n := network("n", "10.1.0.0/24")
			n.IPAMDriver = "default"
			r.engine.view.Networks = []witness.EngineNetwork{n}
		}, want: ""},
		"the engine is part of a swarm":   {before: func(r *rounds) { r.engine.view.Swarm = true }, want: ""},
		"the global space, in a swarm":    {before: func(r *rounds) { r.engine.view.Swarm = true; r.global() }, want: "GlobalDefault/10.9.0.0/24*1"},
		"the global space, in no swarm":   {before: func(r *rounds) { r.global() }, want: ""},
		"it is released, as it should be": {later: func(r *rounds) { r.g.Expect(r.ReleasePool(lonely)).To(Succeed()) }, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newRounds(g)
			r.get(r.pool("10.1.0.0/24", ""), "", ipamapi.RequestAddressType, ipamapi.Gateway)
			if c.before != nil {
				c.before(r)
			}
			r.after(1)
			if c.change != nil {
				c.change(r)
			}
			r.after(2)
			if c.later != nil {
				g.Expect(r.Pools()[0].GivenUp).NotTo(BeNil())
				c.later(r)
			}
			g.Expect(r.after(3)).To(Equal(c.want))
			g.Expect(r.check()).To(Succeed())
		})
	}
}

// global makes a pool of the global space with a gateway, beside none of the local one.
func (r *rounds) global() {
	got, err := r.RequestPool(ipamapi.PoolRequest{AddressSpace: "GlobalDefault", Pool: "10.9.0.0/24"})
	r.g.Expect(err).NotTo(HaveOccurred())
	r.get(got.PoolID, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	r.g.Expect(r.ReleasePool(lonely)).To(Succeed())
}

// Repeated and abandoned requests are given up; those of networks stay, and so does the
// pool.
func TestSurplusRequestsAreGivenUp(t *testing.T) {
	g := NewWithT(t)
	r := newRounds(g, network("a", "10.1.0.0/24"), network("b", "10.1.0.0/24"))
	g.Expect(r.after(0)).To(Equal("10.1.0.0/24*2"), "of the start")
	r.pool("10.1.0.0/24", "")
	r.pool("10.1.0.0/24", "")
	r.get(lonely, "", ipamapi.EndpointMAC, macA)
	leases := r.leases()
	g.Expect(r.after(2)).To(Equal("10.1.0.0/24*4-2"))
	g.Expect(r.after(3)).To(Equal("10.1.0.0/24*2"))
	g.Expect(r.after(9)).To(Equal("10.1.0.0/24*2"))
	g.Expect(r.leases()).To(Equal(leases))
	r.engine.view.Networks = r.engine.view.Networks[:1]
	g.Expect(r.ReleasePool(lonely)).To(Succeed())
	g.Expect(r.after(9)).To(Equal("10.1.0.0/24*1"))
}

// A pool that was given up and is then named by the engine after all is read again.
func TestGivenUpByMistake(t *testing.T) {
	g := NewWithT(t)
	r := newRounds(g)
	r.get(r.pool("10.1.0.0/24", ""), "", ipamapi.EndpointMAC, macA)
	g.Expect(r.after(6)).To(BeEmpty())
	r.engine.view.Networks = []witness.EngineNetwork{network("n", "10.1.0.0/24", gateway("10.1.0.9"), endpoint(macA, "10.1.0.1"))}
	g.Expect(r.get(lonely, "", ipamapi.EndpointMAC, macB)).To(Equal("10.1.0.2/24"))
	g.Expect(r.KeepPool(context.Background(), lonely)).To(MatchError(ipamapi.ErrNotGivenUp))
	g.Expect(r.KeepPool(context.Background(), "LocalDefault/10.2.0.0/24")).To(MatchError(ipamapi.ErrPoolNotFound))
}

// An engine that could not be read at the start is learned from in the first round.
func TestRoundReadsWhatTheStartCouldNot(t *testing.T) {
	g := NewWithT(t)
	e := lost()
	e.err = errSilent
	r := &rounds{world: newEngineWorld(g, e, ipamapi.Config{})}
	e.err = nil
	g.Expect(r.after(1)).To(Equal("10.50.0.0/29*1 10.51.0.0/28/10.51.0.0/29*1"))
	e.err = errSilent
	g.Expect(r.fill(plain)).To(ConsistOf("10.50.0.3/29", "10.50.0.5/29", "10.50.0.6/29"))
}

// TestRandomObservations compares the requests with a simple rule at random: with no
// network for long the pool ends, and never before; a network keeps it.
func TestRandomObservations(t *testing.T) {
	ended := 0
	for seed := range uint64(300) {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(seed, 36))
		r := newRounds(g)
		r.pool("10.1.0.0/24", "")
		quiet := 0 // observations in a row without network, request or restart
		for step := range 40 {
			before := len(r.Pools())
			switch rnd.IntN(10) {
			case 0:
				r.engine.view.Networks = nil
			case 1:
				r.engine.view.Networks = []witness.EngineNetwork{network("n", "10.1.0.0/24")}
			case 2:
				if before > 0 {
					r.get(lonely, "", ipamapi.EndpointMAC, fmt.Sprint(step))
					quiet = 0
				}
			case 3:
				r.restart()
				quiet = 0
			}
			g.Expect(r.observe()).To(Succeed())
			quiet++
			if len(r.engine.view.Networks) > 0 {
				quiet = 0
			}
			switch after := len(r.Pools()); {
			case before > 0 && after == 0:
				ended++
				g.Expect(quiet).To(BeNumerically(">=", 5), "seed %d, step %d", seed, step)
			case after > 0:
				g.Expect(quiet).To(BeNumerically("<", 6), "seed %d, step %d: it leaks", seed, step)
			}
			if len(r.Pools()) == 0 {
				break
			}
		}
		g.Expect(r.check()).To(Succeed())
	}
	NewWithT(t).Expect(ended).To(BeNumerically(">", 50))
}

// In the global space a repeated request is the same request.
func TestRepeatedRequestsInTheGlobalSpace(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	ask := func() string {
		got, err := w.RequestPool(ipamapi.PoolRequest{AddressSpace: "GlobalDefault", Pool: "10.9.0.0/24"})
		g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
		return got.PoolID
	}
	id := ask()
	gw := []string{ipamapi.RequestAddressType, ipamapi.Gateway}
	w.get(id, "10.9.0.1", gw...)
	w.get(id, "10.9.0.1", gw...)
	w.get(id, "") // 10.9.0.2
	w.get(id, "") // 10.9.0.3
	_, err := w.ask(id, "10.9.0.2")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "two containers with one --ip")
	for range 3 { // a new leader asks for all that there is
		g.Expect(ask()).To(Equal(id))
		w.get(id, "10.9.0.1", gw...)
		w.get(id, "10.9.0.2")
		w.get(id, "10.9.0.3")
		_, err := w.ask(id, "10.9.0.3")
		g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "once")
	}
	g.Expect(w.pools()).To(Equal(id + "*1"))
	err = w.ReleasePool(id)
	g.Expect(err).To(MatchError(ipamapi.ErrPoolInUse), "its endpoints are another network's")
	g.Expect(has("Forbidden", err)).To(BeTrue())
	w.free(id, "10.9.0.2")
	w.free(id, "10.9.0.3")
	g.Expect(w.ReleasePool(id)).To(Succeed())
	g.Expect(w.pools() + w.leases()).To(BeEmpty())
}

// In a swarm no address is chosen in a pool that is not on record: other nodes may use it.
func TestUnknownPoolInASwarm(t *testing.T) {
	g := NewWithT(t)
	n := network("n", "10.9.0.0/24")
	n.Scope = "swarm"
	w := newEngineWorld(g, &engine{view: witness.EngineView{Swarm: true, Networks: []witness.EngineNetwork{n}}}, ipamapi.Config{})
	_, err := w.ask("GlobalDefault/10.9.0.0/24", "")
	g.Expect(has("Unavailable", err)).To(BeTrue(), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("restart the engine of the swarm's leader")))
	g.Expect(w.pools() + w.leases()).To(BeEmpty())
}

// Reclaim releases the lease of an endpoint only while its reclaim is pending.
func TestReclaim(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/24", "")
	w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	g.Expect(w.Busy(w.ledger.Leases()[0].Key)).To(BeTrue(), "a gateway ends with its pool")
	w.get(id, "", ipamapi.EndpointMAC, macA)
	l := w.ledger.Leases()[1]
	reclaim := func() bool {
		freed, err := w.Reclaim(t.Context(), l, "gone")
		g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
		return freed
	}
	g.Expect(w.Busy(l.Key)).To(BeFalse())
	g.Expect(reclaim()).To(BeFalse(), "it is held")
	sel := ledger.Selector{Key: l.Key, Generation: l.Generation}
	g.Expect(w.ledger.StartExpiry(t.Context(), sel, ledger.Expiry{Token: "reclaim", After: time.Hour})).To(Succeed())
	other := l
	other.Generation++
	freed, err := w.Reclaim(t.Context(), other, "gone")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(freed).To(BeFalse(), "it is the lease of another claim")
	g.Expect(reclaim()).To(BeTrue())
	g.Expect(reclaim()).To(BeFalse())
	g.Expect(slices.ContainsFunc(w.ledger.Leases(), func(x ledger.Lease) bool { return x.Addr == l.Addr })).To(BeFalse())
}
