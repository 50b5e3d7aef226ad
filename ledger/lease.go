// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"time"
)

// Key is who holds a lease: one attachment of one container to one network.
type Key struct {
	Network     string // name of the CNI or Docker network
	ContainerID string
	IfName      string
}

// String is "network/containerID/ifName".
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// Pod says for whom a lease is held. It is kept for people and for look-ups by
// pod; it is no part of the identity.
type Pod struct{ Namespace, Name, UID string }

// String is "namespace/name", or "" where there is no pod.
func (p Pod) String() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// Purpose is what an address is for, and with it the door that it was taken through.
type Purpose uint8

// Purposes of leases.
const (
	ForPod Purpose = iota
	ForDocker
	ForInfra // gateway, NAT loopback, both ends of the VPP-host link
)

func (p Purpose) String() string { return name("purpose", p, "pod", "docker", "infra") }

// MarshalText writes the name.
func (p Purpose) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// State is where a lease is in its life.
type State uint8

// States of leases. Pending is for claims that somebody outside confirms later.
const (
	Held State = iota
	Cooling
	Pending
	Quarantined
)

func (s State) String() string { return name("state", s, "held", "cooling", "pending", "quarantined") }

// MarshalText writes the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func name[T ~uint8](what string, v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s %d", what, v)
}

// Lease is one address and who holds it, as a value: changing it changes nothing.
type Lease struct {
	Addr       netip.Addr
	Block      netip.Prefix
	Pool       string
	State      State
	Purpose    Purpose
	Key        Key
	Pod        Pod
	NetNS      string        // path of the pod's network namespace, as its first CNI ADD named it
	Since      time.Time     // of the state
	Reason     string        // why it is quarantined
	Generation uint64        // of the claim: never the same for two claims of one process
	Expiry     Expiry        // of a pending one
	Expires    time.Duration // the uptime at which a pending one is released
}

// Prefix is the address with the length of its block, as CNI wants it: 10.1.5.2/24.
func (l Lease) Prefix() netip.Prefix { return netip.PrefixFrom(l.Addr, l.Block.Bits()) }

// lease is a Lease as the book keeps it. A staged one is not committed yet; a
// leaving one has a release that is not committed yet. Both belong to owner.
//
// What a release looks at comes first: of a large book it is in no cache.
type lease struct {
	addr    netip.Addr
	block   *block
	owner   *Stage
	timer   *timer         // of a pending one
	chains  [indices]links // in the buckets of the tables
	hashes  [indices]uint32
	state   State
	purpose Purpose
	staged  bool
	leaving bool
	key     Key
	pod     Pod
	netns   string
	reason  string
	gen     uint64
	since   int64         // Unix time in ns
	cooled  time.Duration // uptime when cooling began
	cooling [coolingLists]links
}

func (l *lease) value() Lease {
	v := Lease{
		Addr: l.addr, Block: l.block.prefix, Pool: l.block.pool.Name, State: l.state, Purpose: l.purpose,
		Key: l.key, Pod: l.pod, NetNS: l.netns, Since: time.Unix(0, l.since).UTC(), Reason: l.reason, Generation: l.gen,
	}
	if l.timer != nil {
		v.Expiry, v.Expires = l.timer.Expiry, l.timer.at
	}
	return v
}

// maxSpare is how many forgotten leases are kept to be used again: claims and
// releases that take turns need one, and a crowd that goes leaves no more.
const maxSpare = 64

// newLease is an empty lease.
func (l *Ledger) newLease() *lease {
	n := len(l.spare)
	if n == 0 {
		return &lease{}
	}
	x := l.spare[n-1]
	l.spare = l.spare[:n-1]
	return x
}

// recycle keeps a lease for reuse that no table, list or stage refers to.
func (l *Ledger) recycle(x *lease) {
	if len(l.spare) < maxSpare {
		*x = lease{}
		l.spare = append(l.spare, x)
	}
}
