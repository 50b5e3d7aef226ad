// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// strays decides which networks of pods stay although no lease wants them: all of them while
// the database is in doubt, and then those whose addresses are quarantined. Such a pod runs,
// and the database does not know it. Any goroutine may call the methods.
type strays struct {
	doubt  func() *bolt.Doubt
	ledger *ledger.Ledger // set before the first transaction of the southbound
	log    *slog.Logger

	mu   sync.Mutex
	kept map[string][]netip.Addr // the addresses of the wires that have stayed, by key
}

// newStrays returns strays without a ledger. doubt returns the doubt about the database.
func newStrays(log *slog.Logger, doubt func() *bolt.Doubt) *strays {
	return &strays{doubt: doubt, log: log, kept: map[string][]netip.Addr{}}
}

// spare reports whether an actual value of the southbound stays although nothing wants it.
func (s *strays) spare(key string, actual proto.Message) bool {
	if !ofPods(key) {
		return false
	}
	addrs := addressesOf(actual)
	isQuarantined := func(a netip.Addr) bool { return len(s.quarantines(a)) > 0 }
	spare := s.doubt() != nil || slices.ContainsFunc(addrs, isQuarantined)
	s.mu.Lock()
	defer s.mu.Unlock()
	if spare {
		s.kept[key] = addrs
	} else {
		delete(s.kept, key)
	}
	return spare
}

// addressesOf returns the addresses of pods in a value of the southbound.
func addressesOf(actual proto.Message) []netip.Addr {
	var texts []string
	switch m := actual.(type) {
	case *kv.PodNetwork:
		texts = m.GetAddresses()
	case *kv.UplinkAddress:
		texts = []string{m.GetAddress()}
	}
	var addrs []netip.Addr
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			addrs = append(addrs, p.Addr())
		} else if a, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// quarantines returns the quarantines of an address, one a pool at most.
func (s *strays) quarantines(a netip.Addr) (all []ledger.Lease) {
	for _, b := range s.ledger.Stats() {
		if !b.Block.Contains(a) {
			continue
		}
		if l, ok := s.ledger.Lookup(b.Pool, a); ok && l.State == ledger.Quarantined {
			all = append(all, l)
		}
	}
	return all
}

// ended ends the quarantines of the addresses of a wire that had stayed: a DEL has removed
// the wire. A quarantine that cannot be ended now ends when no witness shows the address.
func (s *strays) ended(ctx context.Context, k ledger.Key) {
	if s == nil { // the southbound makes no wires
		return
	}
	key := kv.SinkPodPrefix + k.String()
	s.mu.Lock()
	addrs := s.kept[key]
	delete(s.kept, key)
	for _, others := range s.kept {
		addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(others, a) })
	}
	s.mu.Unlock()
	for _, a := range addrs {
		for _, l := range s.quarantines(a) {
			_, err := s.ledger.Release(ctx, ledger.Selector{
				Addr:        l.Addr,
				Pool:        l.Pool,
				Purpose:     l.Purpose,
				Generation:  l.Generation,
				Quarantined: true,
				Reason:      "CNI DEL of " + k.String() + ", which used it",
			})
			if err != nil {
				s.log.Warn("the quarantine of an address does not end with its pod", "address", a, "error", err)
			}
		}
	}
}
