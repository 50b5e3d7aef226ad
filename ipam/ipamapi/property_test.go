// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// TestDriverAgainstModel makes random calls, restarts and crashes. Some calls meet
// commits that fail (with and without having been applied). The test compares answers,
// pools and leases with the model after each.
func TestDriverAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			if err := wander(NewWithT(t), rand.New(rand.NewPCG(seed, 11)), 250, nil); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		})
	}
}

func TestModelFindsABrokenDriver(t *testing.T) {
	g := NewWithT(t)
	for name, sabotage := range map[string]func(*world){
		"a lease is lost": func(w *world) {
			for _, l := range w.ledger.Leases() {
				_, _ = w.ledger.Release(context.Background(), ledger.Selector{Key: l.Key})
				return
			}
		},
		"a request is not counted": func(w *world) {
			for _, p := range w.Pools() {
				_ = w.ReleasePool(p.ID)
				return
			}
		},
	} {
		found := 0
		for seed := range uint64(10) {
			if wander(g, rand.New(rand.NewPCG(seed, 11)), 120, sabotage) != nil {
				found++
			}
		}
		g.Expect(found).To(BeNumerically(">=", 9), name)
	}
}

// walk is a random walk of a driver beside its model.
type walk struct {
	*world
	rnd    *rand.Rand
	model  *model
	faults []journal.Fault // of the next commits of the ledger
	ids    []string        // that were ever given
	torn   int             // calls that failed since the last flush
}

func wander(g Gomega, rnd *rand.Rand, steps int, sabotage func(*world)) error {
	w := &walk{rnd: rnd}
	faulty := &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault {
		if len(w.faults) == 0 {
			return journal.None
		}
		f := w.faults[0]
		w.faults = w.faults[1:]
		return f
	}}
	lists := []ipamapi.Predefined{{Base: pfx("10.0.0.0/26"), Size: 28}, {Base: pfx("10.0.0.128/26"), Size: 29}}
	w.world = newWorld(g, faulty, ipamapi.Config{Local: ipamapi.Space{Pools: lists}})
	*w.host = host{pfx("10.0.0.16/29"), pfx("0.0.0.0/0"), pfx("fd00::10/128")}
	w.model = &model{pools: map[string]*modelPool{}, released: map[string]bool{}, host: (*w.host)[:1:1], lists: lists}
	w.model.host = append(w.model.host, (*w.host)[2])
	for n := range steps {
		if sabotage != nil && n == steps/2 {
			sabotage(w.world)
		}
		what, err := w.step()
		if err == nil && w.text() != w.model.text() {
			err = fmt.Errorf("there is\n%s\nthere should be\n%s", w.text(), w.model.text())
		}
		if err == nil {
			err = w.check()
		}
		if err != nil {
			return fmt.Errorf("step %d: after %s: %w", n, what, err)
		}
	}
	return nil
}

// step makes one call or a restart.
func (w *walk) step() (string, error) {
	if w.rnd.IntN(20) == 0 {
		if err := w.flush(); err != nil {
			return "flush", err
		}
		w.restart()
		w.model.restart()
		return "restart", nil
	}
	s := w.choose()
	reopens := s.what == "address" && w.model.pools[s.pool] == nil // which is several calls
	if w.rnd.IntN(6) == 0 && !reopens {
		faults := make([]journal.Fault, w.rnd.IntN(2), 2)
		faults = append(faults, []journal.Fault{journal.Fail, journal.Tear}[w.rnd.IntN(2)])
		if w.rnd.IntN(2) == 0 {
			w.faults = faults
		} else {
			w.records.next = faults
		}
	}
	got, err := w.call(s)
	w.faults, w.records.next = nil, nil
	next := w.model.clone()
	want, wanted := next.do(s)
	if errors.Is(err, journal.ErrInjected) {
		if w.torn++; w.torn > 1 || w.rnd.IntN(3) > 0 {
			w.model.skip(next)
			return s.String() + " (failed)", nil // nothing has changed
		}
		w.restart()
		w.torn = 0
		for _, m := range []*model{w.model, next} { // it was done or not, but not half
			if m.text() == w.text() && m.shares() == w.shares() {
				m.restart()
				w.model = m
				return s.String() + " (crashed)", w.flush()
			}
		}
		return s.String() + " (crashed)", fmt.Errorf("there is\n%s\nbefore it was\n%s\nit was to be\n%s", w.text(), w.model.text(), next.text())
	}
	w.model = next
	if got != want || !sameError(err, wanted) {
		return s.String(), errors.Join(fmt.Errorf("it gave %q, it should be %q", got, want), err, wanted)
	}
	return s.String(), nil
}

// flush makes commits in both stores, which write over what failed ones left.
func (w *walk) flush() error {
	id, err := w.request("192.0.2.0/24", "")
	if err != nil {
		return err
	}
	if _, err := w.ask(id, ""); err != nil {
		return err
	}
	w.torn = 0
	return w.ReleasePool(id)
}

func (w *walk) call(s step) (string, error) {
	switch s.what {
	case "pool":
		id, err := w.request(s.prefix, s.sub)
		if err == nil {
			w.ids = append(w.ids, id)
		}
		return id, err
	case "releasePool":
		return "", w.ReleasePool(s.pool)
	case "address":
		o := options(ipamapi.EndpointName, s.name, ipamapi.EndpointMAC, s.mac)
		if s.gateway {
			o[ipamapi.RequestAddressType] = ipamapi.Gateway
		}
		if s.serial {
			o[ipamapi.AllocSerialPrefix] = "true"
		}
		n, _, err := w.RequestAddress(s.pool, s.addr.AsSlice(), o)
		if err != nil {
			return "", err
		}
		return n.String(), nil
	}
	return "", w.ReleaseAddress(s.pool, net.IP(s.addr.AsSlice()))
}

// choose makes up a call.
func (w *walk) choose() step {
	if len(w.ids) == 0 || w.rnd.IntN(8) == 0 {
		return w.somePool()
	}
	s := step{pool: w.ids[w.rnd.IntN(len(w.ids))]}
	if live := w.Pools(); len(live) > 0 && w.rnd.IntN(10) > 0 {
		s.pool = live[w.rnd.IntN(len(live))].ID
	}
	n := w.rnd.IntN(14)
	switch {
	case n == 0:
		s.what = "releasePool"
		return s
	case n < 5:
		s.what = "releaseAddress"
	default:
		s.what = "address"
		s.gateway = w.rnd.IntN(8) == 0
		s.serial = w.rnd.IntN(3) == 0
		if w.rnd.IntN(2) == 0 {
			s.name = fmt.Sprint("web-", w.rnd.IntN(4))
		}
		if w.rnd.IntN(2) == 0 {
			s.mac = fmt.Sprint("02:42:00:00:00:0", w.rnd.IntN(4))
		}
		if s.gateway {
			s.name, s.mac = "", ""
		}
	}
	if s.what == "releaseAddress" || w.rnd.IntN(2) == 0 {
		s.addr = w.someAddr(s.pool)
		if held := w.held(s.pool, s.gateway); len(held) > 0 && w.rnd.IntN(2) == 0 {
			s.addr = held[w.rnd.IntN(len(held))]
		}
	}
	return s
}

// held are addresses of a pool's leases; of its gateways, if there are any.
func (w *walk) held(id string, gateways bool) (all []netip.Addr) {
	for _, l := range w.ledger.Leases() {
		if l.Key.Network == id && (!gateways || l.Purpose == ledger.ForInfra) {
			all = append(all, l.Addr)
		}
	}
	if len(all) == 0 && gateways {
		return w.held(id, false)
	}
	return all
}

func (w *walk) somePool() step {
	s := step{what: "pool"}
	switch w.rnd.IntN(4) {
	case 0:
		s.prefix = []string{"", "0.0.0.0/27", "0.0.0.0/28", "0.0.0.0/29", "0.0.0.0/25", "0.0.0.0/30"}[w.rnd.IntN(6)]
		return s
	case 1:
		s.prefix = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(w.rnd.IntN(64))}), 122+w.rnd.IntN(7)).Masked().String()
	default:
		s.prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(w.rnd.IntN(256))}), 25+w.rnd.IntN(8)).Masked().String()
	}
	if live := w.Pools(); len(live) > 0 && w.rnd.IntN(2) == 0 {
		s.prefix = live[w.rnd.IntN(len(live))].Prefix.String()
	}
	if p := pfx(s.prefix); w.rnd.IntN(3) == 0 {
		s.sub = netip.PrefixFrom(w.someAddr("x/"+s.prefix), p.Addr().BitLen()-w.rnd.IntN(5)).Masked().String()
	}
	return s
}

// someAddr is an address of a pool, or near.
func (w *walk) someAddr(id string) netip.Addr {
	parts := strings.Split(id, "/")
	p := pfx(parts[1] + "/" + parts[2])
	a := p.Addr()
	for range w.rnd.IntN(min(66, 2+1<<(a.BitLen()-p.Bits()))) {
		a = a.Next()
	}
	return a
}
