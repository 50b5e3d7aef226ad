// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/witness"
)

// engine is an EngineReader that shows what a test says.
type engine struct {
	view  witness.EngineView
	err   error
	reads int
}

func (e *engine) Read(context.Context) (*witness.EngineView, error) {
	e.reads++
	if e.err != nil {
		return nil, e.err
	}
	view := e.view
	view.Networks = slices.Clone(e.view.Networks)
	return &view, nil
}

var errSilent = errors.New("it has not answered")

// network returns a local network of the driver with one subnet.
func network(name, subnet string, more ...func(*witness.EngineNetwork)) witness.EngineNetwork {
	n := witness.EngineNetwork{
		ID: "id-" + name, Name: name, Driver: "bridge", Scope: "local", IPAMDriver: "cadastre",
		Pools: []witness.EnginePool{{Subnet: pfx(subnet)}},
	}
	for _, f := range more {
		f(&n)
	}
	return n
}

func gateway(a string) func(*witness.EngineNetwork) {
	return func(n *witness.EngineNetwork) { n.Pools[0].Gateway = ip(a) }
}

func aux(a string) func(*witness.EngineNetwork) {
	return func(n *witness.EngineNetwork) {
		n.Pools[0].Aux = map[string]netip.Addr{"router": ip(a)}
	}
}

func part(p string) func(*witness.EngineNetwork) {
	return func(n *witness.EngineNetwork) { n.Pools[0].Range = pfx(p) }
}

func endpoint(mac string, addrs ...string) func(*witness.EngineNetwork) {
	return func(n *witness.EngineNetwork) {
		e := witness.EngineEndpoint{ID: "ep-" + mac, Name: "c-" + mac, MAC: mac}
		for _, a := range addrs {
			e.Addrs = append(e.Addrs, ip(a))
		}
		n.Endpoints = append(n.Endpoints, e)
	}
}

// newEngineWorld returns a driver without records that reads e.
func newEngineWorld(g Gomega, e *engine, config ipamapi.Config) *world {
	w := &world{
		g: g, journal: journal.NewMemory(), records: &flaky{MemoryRecords: ipamapi.NewMemoryRecords()},
		host: &host{}, config: config, engine: e,
	}
	w.restart()
	return w
}

// fill requests any addresses until the pool is full.
func (w *world) fill(pool string) (all []string) {
	for {
		a, err := w.ask(pool, "", ipamapi.EndpointMAC, fmt.Sprintf("02:%02x", len(all)))
		if err != nil {
			w.g.ExpectWithOffset(1, err).To(MatchError(ipamapi.ErrNoAvailableIPs))
			return all
		}
		all = append(all, a)
	}
}

const (
	macA = "02:42:00:00:00:01"
	macB = "02:42:00:00:00:02"
)

// lost is an engine whose driver has lost its database.
func lost() *engine {
	return &engine{view: witness.EngineView{ID: "E1", Networks: []witness.EngineNetwork{
		network("full", "10.51.0.0/28", part("10.51.0.0/29"), gateway("10.51.0.5"), aux("10.51.0.2"), endpoint(macA, "10.51.0.1"), endpoint(macB, "10.51.0.9")),
		network("plain", "10.50.0.0/29", endpoint(macA, "10.50.0.2")),
		{ID: "id-other", Name: "other", Scope: "local", IPAMDriver: "default", Pools: []witness.EnginePool{{Subnet: pfx("10.60.0.0/24")}}},
	}, Containers: []witness.EngineContainer{
		{Name: "fixed", Fixed: map[string][]netip.Addr{"id-plain": {ip("10.50.0.4")}}},
		{Name: "running", Running: true, Fixed: map[string][]netip.Addr{"id-full": {ip("10.51.0.9")}}},
	}}}
}

const (
	full  = "LocalDefault/10.51.0.0/28/10.51.0.0/29"
	plain = "LocalDefault/10.50.0.0/29"
)

// No address that the engine has is allocated after the database was lost, whether the
// engine is read at the start or because of a request.
func TestLostDatabase(t *testing.T) {
	for name, silent := range map[string]bool{"the engine answers at the start": false, "it answers later": true} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := lost()
			if silent {
				e.err = errSilent
			}
			w := newEngineWorld(g, e, ipamapi.Config{})
			if silent {
				for _, id := range []string{full, plain} {
					_, err := w.ask(id, "", ipamapi.EndpointMAC, "02:ff")
					g.Expect(has("Unavailable", err)).To(BeTrue(), "%v", err)
					g.Expect(err).To(MatchError(ContainSubstring("the engine's networks have to be read first: it has not answered")))
					_, err = w.ask(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
					g.Expect(has("Unavailable", err)).To(BeTrue(), "%v", err)
				}
				_, err := w.request("10.77.0.0/24", "")
				g.Expect(has("Unavailable", err)).To(BeTrue(), "a new pool may be one of the engine's: %v", err)
				g.Expect(w.pools() + w.leases()).To(BeEmpty())
				e.err = nil
			}
			g.Expect(w.fill(full)).To(ConsistOf("10.51.0.3/28", "10.51.0.4/28", "10.51.0.6/28", "10.51.0.7/28"))
			g.Expect(w.fill(plain)).To(ConsistOf("10.50.0.3/29", "10.50.0.5/29", "10.50.0.6/29"), "the likely gateway, an endpoint and a fixed address are not free")
			g.Expect(w.pools()).To(Equal(plain + "*1 " + full + "*1"))
			_, err := w.ask(full, "10.51.0.2", ipamapi.EndpointMAC, "02:ff")
			g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "an auxiliary address is not an endpoint's")
			_, err = w.request("10.51.0.0/25", "")
			g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap))

			// The engine goes on as if nothing had happened.
			w.free(full, "10.51.0.1")
			w.free(full, "10.51.0.9")
			g.Expect(w.get(full, "", ipamapi.EndpointMAC, "02:aa")).To(Equal("10.51.0.1/28"))
			g.Expect(w.get(plain, "10.50.0.4", ipamapi.EndpointMAC, "02:bb")).To(Equal("10.50.0.4/29"), "the stopped container starts")
			_, err = w.ask(plain, "10.50.0.4", ipamapi.EndpointMAC, "02:cc")
			g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated))
			for _, id := range []string{full, plain} {
				g.Expect(w.ReleasePool(id)).To(Succeed())
			}
			g.Expect(w.pools() + w.leases()).To(BeEmpty())
			g.Expect(w.check()).To(Succeed())
			reads := e.reads
			_, err = w.ask(full, "", ipamapi.EndpointMAC, "02:ff")
			g.Expect(err).To(MatchError(ipamapi.ErrPoolNotFound), "released is not lost")
			g.Expect(e.reads).To(Equal(reads))
		})
	}
}

// Pools that are on record are served while the engine does not answer: it asks for
// addresses while it starts.
func TestSilentEngineAfterARestart(t *testing.T) {
	g := NewWithT(t)
	e := &engine{}
	w := newEngineWorld(g, e, ipamapi.Config{})
	e.err = errSilent
	w.restart()
	id := w.pool("10.1.0.0/24", "")
	g.Expect(w.get(id, "", ipamapi.EndpointMAC, macA)).To(Equal("10.1.0.1/24"), "the engine had been read since the records were created")
	w.restart()
	g.Expect(w.get(id, "", ipamapi.EndpointMAC, macB)).To(Equal("10.1.0.2/24"))
	_, err := w.ask("LocalDefault/10.2.0.0/24", "", ipamapi.EndpointMAC, macB)
	g.Expect(has("Unavailable", err)).To(BeTrue(), "%v", err)
	g.Expect(w.pools()).To(Equal(id + "*1"))
	w.forget() // the leases say which pools there were
	w.restart()
	g.Expect(w.get(id, "", ipamapi.EndpointMAC, "02:ff")).To(Equal("10.1.0.3/24"))
}

// An administrator who says that there is no engine to read gets new pools, and no
// addresses of pools that are not on record.
func TestNoEngine(t *testing.T) {
	g := NewWithT(t)
	w := newEngineWorld(g, &engine{err: fmt.Errorf("none: %w", witness.ErrNotApplicable)}, ipamapi.Config{})
	w.get(w.pool("10.1.0.0/24", ""), "")
	_, err := w.ask("LocalDefault/10.2.0.0/24", "")
	g.Expect(has("Unavailable", err)).To(BeTrue(), "%v", err)
}

// A database that is older than the engine's networks gets what it lacks at the start.
func TestOlderDatabase(t *testing.T) {
	g := NewWithT(t)
	e := &engine{}
	w := newEngineWorld(g, e, ipamapi.Config{})
	w.get(w.pool("10.50.0.0/29", ""), "", ipamapi.RequestAddressType, ipamapi.Gateway)
	e.view = lost().view
	w.restart()
	g.Expect(w.leases()).NotTo(ContainSubstring("10.50.0.4:"), "the engine has released it when its container stopped")
	g.Expect(w.fill(plain)).To(ConsistOf("10.50.0.3/29", "10.50.0.4/29", "10.50.0.5/29", "10.50.0.6/29"))
	g.Expect(w.pools()).To(Equal(plain + "*1 " + full + "*1"))
	e.view.Networks = append(e.view.Networks, network("more", "10.50.0.0/29"))
	w.restart()
	g.Expect(w.pools()).To(Equal(plain+"*2 "+full+"*1"), "the release of one network must not end the pool of the other")
}

// A process that ends, or a commit that fails, at any moment of a restoration leaves
// nothing behind that would be allocated twice.
func TestCrashWhilePoolsAreRestored(t *testing.T) {
	faults := 0
	for _, kind := range []journal.Fault{journal.Fail, journal.Tear} {
		for n := range 14 {
			for _, of := range []string{"ledger", "records"} {
				if crashWhilePoolsAreRestored(NewWithT(t), kind, n, of) {
					faults++
				}
			}
		}
	}
	NewWithT(t).Expect(faults).To(BeNumerically(">", 20))
}

// crashWhilePoolsAreRestored makes one commit fail. It reports whether the restoration
// came so far.
func crashWhilePoolsAreRestored(g Gomega, kind journal.Fault, n int, of string) bool {
	taken := map[string][]string{
		full:  {"10.51.0.1/28", "10.51.0.2/28", "10.51.0.5/28"},
		plain: {"10.50.0.1/29", "10.50.0.2/29", "10.50.0.4/29"},
	}
	var next []journal.Fault
	e := lost()
	w := &world{g: g, records: &flaky{MemoryRecords: ipamapi.NewMemoryRecords()}, host: &host{}, engine: e}
	w.journal = &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault {
		if len(next) == 0 {
			return journal.None
		}
		f := next[0]
		next = next[1:]
		return f
	}}
	e.err = errSilent
	w.restart()
	e.err = nil
	plan := append(make([]journal.Fault, n), kind)
	if of == "ledger" {
		next = plan
	} else {
		w.records.next = plan
	}
	_, err := w.ask(full, "", ipamapi.EndpointMAC, "02:ff")
	next, w.records.next = nil, nil
	if err == nil {
		return false
	}
	where := fmt.Sprintf("%s, fault %d of kind %v", of, n, kind)
	e.err = errSilent
	for _, crash := range []bool{false, true} {
		if crash {
			w.restart()
		}
		for id, not := range taken {
			a, err := w.ask(id, "", ipamapi.EndpointMAC, "02:fe")
			g.Expect(not).NotTo(ContainElement(a), "%s: %v", where, err)
		}
	}
	e.err = nil
	for id, not := range taken {
		for _, a := range w.fill(id) {
			g.Expect(not).NotTo(ContainElement(a), where)
		}
	}
	g.Expect(w.check()).To(Succeed(), where)
	return true
}

// TestRandomNetworksAfterALoss compares the driver with networks at random: whatever they
// hold, no request gets one of their addresses, and each address is given once.
func TestRandomNetworksAfterALoss(t *testing.T) {
	for seed := range uint64(200) {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(seed, 36))
		e := &engine{view: witness.EngineView{ID: "E1"}}
		has := map[netip.Addr]bool{}
		addr := func(p netip.Prefix) netip.Addr {
			a := p.Addr()
			for range 1 + rnd.IntN(13) {
				a = a.Next()
			}
			has[a] = true
			return a
		}
		ids := map[string]bool{}
		for i := range 1 + rnd.IntN(4) {
			p := pfx(fmt.Sprintf("10.0.%d.0/28", rnd.IntN(3)))
			n := network(fmt.Sprint(i), p.String())
			ids["LocalDefault/"+p.String()] = true
			if rnd.IntN(2) == 0 {
				n.Pools[0].Gateway = addr(p)
			}
			if rnd.IntN(2) == 0 {
				n.Pools[0].Aux = map[string]netip.Addr{"x": addr(p), "y": addr(p)}
			}
			for j := range rnd.IntN(5) {
				n.Endpoints = append(n.Endpoints, witness.EngineEndpoint{MAC: fmt.Sprintf("02:%d:%d", i, j), Addrs: []netip.Addr{addr(p)}})
			}
			if rnd.IntN(2) == 0 {
				e.view.Containers = append(e.view.Containers, witness.EngineContainer{Name: "s", Fixed: map[string][]netip.Addr{n.ID: {addr(p)}}})
			}
			e.view.Networks = append(e.view.Networks, n)
		}
		if rnd.IntN(2) == 0 {
			e.err = errSilent
		}
		w := newEngineWorld(g, e, ipamapi.Config{Serial: rnd.IntN(2) == 0})
		e.err = nil
		for id := range ids {
			for _, text := range w.fill(id) {
				a := netip.MustParsePrefix(text).Addr()
				g.Expect(has[a]).To(BeFalse(), "seed %d: %s of %s", seed, a, id)
				has[a] = true
			}
		}
		requests := 0
		for _, p := range w.Pools() {
			requests += p.Requests
		}
		g.Expect(requests).To(Equal(len(e.view.Networks)), "seed %d", seed)
		g.Expect(w.check()).To(Succeed(), "seed %d", seed)
	}
}
