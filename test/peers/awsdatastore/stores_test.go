// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package awsdatastore

import (
	"encoding/json"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"testing"

	aws "github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"

	ours "github.com/cadastre/cadastre/ipam/datastore"
)

// prefixBits is the length of what an interface is given in prefix mode.
const prefixBits = 28

// store is a kind of node: single addresses or prefixes, how many addresses
// there are, and how many of them pods have.
type store struct {
	prefixes        bool
	total, assigned int
}

// attach adds the interfaces and their addresses, or prefixes, of which there
// may be up to 15 addresses more than total.
func (s store) attach(tb testing.TB, n node) {
	tb.Helper()
	must := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	if s.prefixes {
		must(n.addENI(0))
		for i := 0; i < s.total; i += 1 << (32 - prefixBits) {
			must(n.addBlock(0, netip.PrefixFrom(address(i), prefixBits)))
		}
		return
	}
	for i := range s.total {
		if i%perENI == 0 {
			must(n.addENI(i / perENI))
		}
		must(n.addBlock(i/perENI, netip.PrefixFrom(address(i), 32)))
	}
}

func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// size is how many addresses are attached.
func (s store) size() int {
	if block := 1 << (32 - prefixBits); s.prefixes {
		return (s.total + block - 1) / block * block
	}
	return s.total
}

// entries are what a store that is filled at random places, but always the
// same, has kept: sandbox 0 and on. The pods have no namespace, by which the
// published store knows not to look for their interfaces on this machine.
func (s store) entries() []aws.CheckpointEntry {
	where := rand.New(rand.NewPCG(1, 2)).Perm(s.size())
	var all []aws.CheckpointEntry
	for i := range s.assigned {
		x := sandboxOf(i)
		all = append(all, aws.CheckpointEntry{
			IPAMKey: awsNode{}.key(x), IPv4: address(where[i]).String(), AllocationTimestamp: 1_700_000_000_000_000_000,
			Metadata: aws.IPAMMetadata{K8SPodName: x.pod, InterfacesCount: 1},
		})
	}
	return all
}

func checkpointOf(entries []aws.CheckpointEntry) aws.CheckpointData {
	return aws.CheckpointData{Version: aws.CheckpointFormatVersion, Allocations: entries}
}

// gate keeps nothing until it is opened to what keeps everything: so a store is
// filled without a write for each address.
type gate struct {
	has []byte            // what is restored; nil: nothing
	to  ours.Checkpointer // of the same shape as the published one; nil: shut
}

func (g *gate) Checkpoint(data any) error {
	if g.to == nil {
		return nil
	}
	return g.to.Checkpoint(data)
}

func (g *gate) Restore(into any) error {
	if g.has == nil {
		return fs.ErrNotExist
	}
	return json.Unmarshal(g.has, into)
}

// give has n restore entries.
func (g *gate) give(n node, entries []aws.CheckpointEntry) (err error) {
	if g.has, err = json.Marshal(checkpointOf(entries)); err == nil {
		err = n.restore()
	}
	g.has = nil
	return err
}

// filled is a node of one of the two kinds whose gate is shut.
func (s store) filled(tb testing.TB, name string) (*churn, *gate) {
	tb.Helper()
	g := &gate{}
	n := s.make(name, g)
	s.attach(tb, n)
	if err := n.load(g, s.entries()); err != nil {
		tb.Fatal(err)
	}
	return newChurn(name, n, s.assigned), g
}

// The stores, as the results name them.
const theirs, mine = "aws", "cadastre"

func (s store) make(name string, cp ours.Checkpointer) node {
	if name == theirs {
		return newAWS(cp, s.prefixes)
	}
	return newOurs(cp, s.prefixes)
}

// withoutCheckpoint is ours with nothing to keep what it has: full, and then
// emptied at random places.
func (s store) withoutCheckpoint(tb testing.TB) *churn {
	tb.Helper()
	n, size := s.make(mine, ours.NullCheckpoint{}), s.size()
	s.attach(tb, n)
	for i := range size {
		if err := n.assign(sandboxOf(i)); err != nil {
			tb.Fatal(err)
		}
	}
	c := newChurn(mine, n, 0)
	c.last = size
	for i, x := range rand.New(rand.NewPCG(1, 2)).Perm(size) {
		if i < s.assigned {
			c.held = append(c.held, x)
		} else if err := n.unassign(sandboxOf(x)); err != nil {
			tb.Fatal(err)
		}
	}
	return c
}
