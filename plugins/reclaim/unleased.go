// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// place is an address of a pool.
type place struct {
	pool string
	addr netip.Addr
}

// unleased remembers the addresses that are in use without a lease, and the quarantined
// ones that are in use no more. It is pure. Its methods must not be called concurrently.
type unleased struct {
	interval time.Duration
	seen     map[place]sighting // in use without a lease
	left     map[place]sighting // quarantined, and not in use
}

func newUnleased(interval time.Duration) *unleased {
	return &unleased{interval: interval, seen: map[place]sighting{}, left: map[place]sighting{}}
}

// change is a quarantine that begins or ends.
type change struct {
	place
	reason string
}

// unleasedKey is the key of the quarantine of an address.
func unleasedKey(a netip.Addr) ledger.Key {
	return ledger.Key{Network: ledger.WitnessNetwork, ContainerID: string(witness.Kernel), IfName: a.String()}
}

// observe takes the next observation: the addresses in use without a lease, with the
// evidence, and the quarantined ones that the kernel does not show. Both are confirmed
// by a second observation, at least an interval after the first one.
func (s *unleased) observe(o Observation, unknown, unseen map[place]string) (begin, end []change) {
	return s.confirm(s.seen, o, unknown), s.confirm(s.left, o, unseen)
}

// forget drops all that was seen before.
func (s *unleased) forget() {
	clear(s.seen)
	clear(s.left)
}

func (s *unleased) confirm(memory map[place]sighting, o Observation, now map[place]string) (sure []change) {
	maps.DeleteFunc(memory, func(at place, _ sighting) bool { _, ok := now[at]; return !ok })
	for at, text := range now {
		first, ok := memory[at]
		switch {
		case !ok:
			memory[at] = sighting{o.Uptime, o.Wall, text}
		case o.Uptime-first.uptime >= s.interval:
			reason := fmt.Sprintf("%s and %s: %s", clockTime(first.wall), clockTime(o.Wall), text)
			sure = append(sure, change{at, reason})
		}
	}
	return sure
}
