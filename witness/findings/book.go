// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Book holds the agent's side of the comparison. Compare reads nothing else.
type Book struct {
	Node string
	Now  time.Time
	// Grace is the age below which a lease is not compared with the witnesses: its ADD or
	// DEL may be in progress.
	Grace time.Duration
	// Changing holds the addresses whose leases changed while the witnesses were read.
	Changing map[netip.Addr]bool

	Contradictions []string // of the ledger with itself and its file
	Leases         []ledger.Lease
	Blocks         []ledger.BlockStat
	Exclusions     []ledger.Exclusion

	Pools    []Pool       // of the pod networks of the cluster
	Docker   []DockerPool // of Docker's driver
	Subnets  []Subnet     // blocks that this node should have, nil if they are not known yet
	Differs  string       // how contiv.conf differs from the pools of the cluster
	Private  bool         // the blocks follow from the node ID: no network outside of the cluster shares them
	Routed   bool         // the agent makes the routes to other nodes
	DockerOn bool         // Docker's driver is enabled
	Cloud    *Cloud       // nil: the blocks are not of a cloud's interfaces, or the cloud was not read yet
}

// Cloud holds the blocks of the ledger as the last reading of this machine's cloud has them.
type Cloud struct {
	Name    string // such as ec2
	Machine string
	Read    time.Time
	Blocks  []CloudBlock
}

// CloudBlock is a block of the ledger.
type CloudBlock struct {
	Pool      string
	Prefix    netip.Prefix
	Interface string // the one that packets of its pods take
	On        string // the one that has it in the cloud; "": none, or as its own address
}

// Pool holds the ranges of a pool of a pod network.
type Pool struct {
	Name    string
	Network string // of the pods: the name of the ledger's pool
	Ranges  []netip.Prefix
}

// DockerPool holds a pool of Docker's driver.
type DockerPool struct {
	ID         string
	Prefix     netip.Prefix
	LedgerPool string
	FromPods   bool // its addresses are those of the pod network
	Global     bool // it is in the global address space, which several nodes share
}

// Subnet holds a block that this node should have.
type Subnet struct {
	Pool   string
	Prefix netip.Prefix
}

// Young returns the number of leases that Compare leaves out, because they are younger
// than Grace.
func (b *Book) Young() (n int) {
	for i := range b.Leases {
		if compared(&b.Leases[i]) && b.young(&b.Leases[i]) {
			n++
		}
	}
	return n
}

// young reports whether the lease got its state less than Grace ago.
func (b *Book) young(l *ledger.Lease) bool {
	age := b.Now.Sub(l.Since)
	return age.Abs() < b.Grace || b.Changing[l.Addr]
}

// compared reports whether a lease is one that the witnesses are asked about.
func compared(l *ledger.Lease) bool {
	return l.State == ledger.Held && l.Purpose != ledger.ForInfra && !l.Key.OfAPI()
}
