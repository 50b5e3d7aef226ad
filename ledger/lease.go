// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

// Key identifies the owner of a lease: one attachment of one container to one network.
type Key struct {
	Network     string // name of the CNI or Docker network
	ContainerID string
	IfName      string
}

// String returns "network/containerID/ifName".
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// Pod names the pod of a lease, for look-ups and displays. It is not part of the
// identity of the owner.
type Pod struct{ Namespace, Name, UID string }

// String returns "namespace/name", or "" for the zero Pod.
func (p Pod) String() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// Purpose is the use of an address. It also names the interface of the claim: a
// release by address frees only leases of its own purpose.
type Purpose uint8

// Purposes of leases.
const (
	ForPod Purpose = iota
	ForDocker
	ForInfra // gateway, NAT loopback, both ends of the VPP-host link
)

func (p Purpose) String() string { return name("purpose", p, "pod", "docker", "infra") }

// MarshalText returns the name.
func (p Purpose) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// State is the state of a lease.
type State uint8

// States of leases. A pending lease waits for a confirmation.
const (
	Held State = iota
	Cooling
	Pending
	Quarantined
)

func (s State) String() string { return name("state", s, "held", "cooling", "pending", "quarantined") }

// MarshalText returns the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// name returns the name of v, or its number if it has none.
func name[T ~uint8](what string, v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s %d", what, v)
}

// Lease is a copy of one lease: an address and its owner.
type Lease struct {
	Addr       netip.Addr
	Block      netip.Prefix
	Pool       string
	State      State
	Purpose    Purpose
	Key        Key
	Pod        Pod
	NetNS      string        // path of the pod's network namespace, as the CNI ADD named it
	NetNSID    kv.NetNSID    // of the namespace that was there at the ADD
	Wired      bool          // the southbound makes the wire of the attachment
	MAC        string        // requested for the pod's end of the wire; "": derived from the key
	Since      time.Time     // of the state
	Reason     string        // reason of the quarantine, or of the expiry
	Generation uint64        // number of the claim, unique in one process
	Expiry     Expiry        // of a pending lease
	Expires    time.Duration // the uptime at which a pending lease is released; a reclaimed one: may be
	Accepted   time.Duration // the uptime at which the newest answered request for it was accepted; 0: in another boot, or not known
}

// Prefix returns the address with the prefix length of its block, such as 10.1.5.2/24.
func (l Lease) Prefix() netip.Prefix { return netip.PrefixFrom(l.Addr, l.Block.Bits()) }

// lease is a lease in the ledger. The claim of a staged lease and the release of a
// releasing lease are not committed yet; owner is the stage that holds the change.
//
// The fields that a release reads come first: a lease of a large ledger is in no
// processor cache.
type lease struct {
	addr      netip.Addr
	block     *block
	owner     *Stage
	timer     *timer         // of a pending lease
	chains    [indices]links // in the buckets of the tables
	hashes    [indices]uint32
	state     State
	purpose   Purpose
	staged    bool
	releasing bool
	key       Key
	pod       Pod
	netns     string
	netnsID   kv.NetNSID
	wired     bool
	mac       string
	accepted  time.Duration
	reason    string
	gen       uint64
	since     int64         // Unix time in ns
	cooled    time.Duration // uptime when cooling began
	cooling   [coolingLists]links
}

func (l *lease) value() Lease {
	v := Lease{
		Addr:       l.addr,
		Block:      l.block.prefix,
		Pool:       l.block.pool.Name,
		State:      l.state,
		Purpose:    l.purpose,
		Key:        l.key,
		Pod:        l.pod,
		NetNS:      l.netns,
		NetNSID:    l.netnsID,
		Wired:      l.wired,
		MAC:        l.mac,
		Accepted:   l.accepted,
		Since:      time.Unix(0, l.since).UTC(),
		Reason:     l.reason,
		Generation: l.gen,
	}
	if l.timer != nil {
		v.Expiry, v.Expires = l.timer.Expiry, l.timer.at
	}
	return v
}

// maxFreeLeases limits the leases that are kept for reuse. Claims and releases that
// take turns need one.
const maxFreeLeases = 64

// newLease returns an empty lease.
func (l *Ledger) newLease() *lease {
	n := len(l.freeLeases)
	if n == 0 {
		return &lease{}
	}
	x := l.freeLeases[n-1]
	l.freeLeases = l.freeLeases[:n-1]
	return x
}

// recycle keeps a lease for reuse that no table, list or stage refers to.
func (l *Ledger) recycle(x *lease) {
	if len(l.freeLeases) < maxFreeLeases {
		*x = lease{}
		l.freeLeases = append(l.freeLeases, x)
	}
}
