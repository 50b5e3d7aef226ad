// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
)

// Port is an interface of a machine in the cloud.
type Port struct {
	ID      string
	Machine string
	Network string // the ID of a Network
	MAC     string
	First   bool           // it is the machine's first interface
	Own     []netip.Prefix // the interface's own addresses, with the lengths of their subnets
	Blocks  []netip.Prefix // for pods; an address is a /32 or /128
}

// Truth is the state of the cloud, read without proxy and provider.
type Truth struct {
	Ports   []Port
	Orphans []string // interfaces and reservations that belong to no machine
}

// has reports whether a machine has an address for pods, and the interface that has it.
func (t Truth) has(machine string, a netip.Addr) (port string, ok bool) {
	for _, p := range t.Ports {
		if p.Machine == machine && slices.ContainsFunc(p.Blocks, func(b netip.Prefix) bool { return b.Contains(a) }) {
			return p.ID, true
		}
	}
	return "", false
}

// Blocks returns the number of addresses and prefixes of a machine for pods.
func (t Truth) Blocks(machine string) (n int) {
	for _, p := range t.Ports {
		if p.Machine == machine {
			n += len(p.Blocks)
		}
	}
	return n
}

// Record is a change that the judge has seen.
type Record struct {
	At        time.Time
	What      string // ADD, DEL
	Pod       string
	Machine   string
	Addresses []netip.Addr
}

// Judge records which pod holds which address, and finds what must not be. A pod holds its
// addresses from the end of its ADD to the beginning of its DEL. Any goroutine may call any
// method.
type Judge struct {
	mu      sync.Mutex
	holds   map[netip.Addr]hold
	records []Record
	ever    map[string]map[netip.Prefix]bool // by port: all blocks and own addresses that it has had
	twice   []string                         // addresses that two pods held at once
	foreign []string                         // addresses that the cloud took away under a pod
	read    int

	releases  map[string]map[string]handshake.State // by node: the newest version of the hand-over
	released  int                                   // addresses
	disagreed []string                              // releases to which the agent had not agreed, or of held addresses
}

// hold is an address of a pod.
type hold struct {
	pod, machine string
	since        time.Time
}

// NewJudge returns a judge that has seen nothing.
func NewJudge() *Judge {
	return &Judge{
		holds:    map[netip.Addr]hold{},
		ever:     map[string]map[netip.Prefix]bool{},
		releases: map[string]map[string]handshake.State{},
	}
}

// Added records that an ADD has ended with success.
func (j *Judge) Added(now time.Time, pod, machine string, addresses []netip.Addr) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, Record{now, "ADD", pod, machine, addresses})
	for _, a := range addresses {
		if other, held := j.holds[a]; held {
			j.twice = append(
				j.twice,
				fmt.Sprintf("%s: %s on %s got %s, which %s on %s holds since %s", now.Format(clock),
					pod, machine, a, other.pod, other.machine, other.since.Format(clock)),
			)
		}
		j.holds[a] = hold{pod, machine, now}
	}
}

// clock is the format of times in messages.
const clock = "15:04:05.000"

// Deleting records that a DEL begins.
func (j *Judge) Deleting(now time.Time, pod, machine string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := Record{At: now, What: "DEL", Pod: pod, Machine: machine}
	for a, h := range j.holds {
		if h.pod == pod && h.machine == machine {
			r.Addresses = append(r.Addresses, a)
			delete(j.holds, a)
		}
	}
	j.records = append(j.records, r)
}

// Read compares a reading of the cloud, which began at a time, with the addresses that pods
// have held since before that time.
func (j *Judge) Read(began time.Time, t Truth) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.read++
	for _, p := range t.Ports {
		if j.ever[p.ID] == nil {
			j.ever[p.ID] = map[netip.Prefix]bool{}
		}
		for _, b := range p.Blocks {
			j.ever[p.ID][b] = true
		}
		for _, b := range p.Own {
			j.ever[p.ID][netip.PrefixFrom(b.Addr(), b.Addr().BitLen())] = true
		}
	}
	for a, h := range j.holds {
		if _, ok := t.has(h.machine, a); !ok && h.since.Before(began) {
			j.foreign = append(j.foreign, fmt.Sprintf("%s: %s on %s holds %s, which no interface of its machine has",
				began.Format(clock), h.pod, h.machine, a))
		}
	}
}

// Held returns the pods of a machine by address.
func (j *Judge) Held(machine string) map[netip.Addr]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	held := map[netip.Addr]string{}
	for a, h := range j.holds {
		if h.machine == machine {
			held[a] = h.pod
		}
	}
	return held
}

// May reports whether an interface has ever had an address.
func (j *Judge) May(port string, a netip.Addr) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for b := range j.ever[port] {
		if b.Contains(a) {
			return true
		}
	}
	return false
}

// Verdict is the sum of what a judge has seen.
type Verdict struct {
	Adds, Dels, Readings int
	Addresses            int      // different ones that pods held
	Released             int      // addresses and prefixes that the operator has released
	Twice, Foreign       []string // what must not be
	Disagreed            []string // releases without the agent's agreement
}

// Verdict returns the sum so far.
func (j *Judge) Verdict() Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := Verdict{
		Readings:  j.read,
		Released:  j.released,
		Twice:     slices.Clone(j.twice),
		Foreign:   slices.Clone(j.foreign),
		Disagreed: slices.Clone(j.disagreed),
	}
	seen := map[netip.Addr]bool{}
	for _, r := range j.records {
		if r.What == "ADD" {
			v.Adds++
		} else {
			v.Dels++
		}
		for _, a := range r.Addresses {
			seen[a] = true
		}
	}
	v.Addresses = len(seen)
	return v
}

// History returns the records of an address, oldest first.
func (j *Judge) History(a netip.Addr) (all []Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.records {
		if slices.Contains(r.Addresses, a) {
			all = append(all, r)
		}
	}
	return all
}
