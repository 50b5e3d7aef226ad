// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package awsdatastore measures the interface datastore of AWS's VPC CNI and
// ipam/datastore beside it, in turns: one slow second of the machine slows both.
package awsdatastore

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	aws "github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/utils/logger"

	ours "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

// TestMain switches the cool-down of the published store off: it cannot be
// given to it, and with 30 s every store of these sizes runs dry.
func TestMain(m *testing.M) {
	os.Setenv("IP_COOLDOWN_PERIOD", "0")
	os.Exit(m.Run())
}

// perENI is how many single addresses an interface has, as in the cloud.
const perENI = 50

// node is a store under test.
type node interface {
	addENI(n int) error
	addBlock(eni int, p netip.Prefix) error
	assign(x sandbox) error
	unassign(x sandbox) error
	restore() error // from the checkpoint
	// load is restore without its price: entries come into the store that keeps
	// what it has behind g.
	load(g *gate, entries []aws.CheckpointEntry) error
}

// sandbox is the names of a pod. They are made outside of the clock: that is
// no store's work.
type sandbox struct{ container, pod string }

func sandboxOf(n int) sandbox {
	return sandbox{fmt.Sprintf("%064x", n), fmt.Sprintf("pod-%08d-abcde", n)}
}

func eniID(n int) string { return fmt.Sprintf("eni-%d", n) }

type awsNode struct{ *aws.DataStore }

// newAWS makes the published store. Its log, at debug by default, is off.
func newAWS(cp aws.Checkpointer, prefixes bool) node {
	quiet := logger.New(&logger.Configuration{LogLevel: "fatal", LogLocation: "stderr"})
	return awsNode{aws.NewDataStore(quiet, cp, prefixes, 0)}
}

func (s awsNode) addENI(n int) error {
	return s.AddENI(eniID(n), n, n == 0, false, false, 254, "subnet-0")
}

func (s awsNode) addBlock(eni int, p netip.Prefix) error {
	mask := net.CIDRMask(p.Bits(), 32)
	return s.AddIPv4CidrToStore(eniID(eni), net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}, !p.IsSingleIP())
}

func (s awsNode) assign(x sandbox) error {
	_, _, _, err := s.AssignPodIPv4Address(s.key(x), aws.IPAMMetadata{K8SPodNamespace: "default", K8SPodName: x.pod, InterfacesCount: 1})
	return err
}

func (s awsNode) unassign(x sandbox) error {
	_, _, _, _, _, err := s.UnassignPodIPAddress(s.key(x))
	return err
}

func (s awsNode) restore() error { return s.ReadBackingStore(false) }

// load restores some blocks at a time, with all others out of sight: the
// published store looks at block after block for each entry, which takes
// minutes with 16 000 of them.
func (s awsNode) load(g *gate, entries []aws.CheckpointEntry) error {
	of := map[string]aws.CheckpointEntry{}
	for _, e := range entries {
		of[e.IPv4] = e
	}
	enis := s.GetAllocatableENIs(math.MaxInt, false) // the store's own, not copies
	whole := make([]map[string]*aws.CidrInfo, len(enis))
	for i, e := range enis {
		whole[i], e.AvailableIPv4Cidrs = e.AvailableIPv4Cidrs, nil
	}
	for i, e := range enis {
		for names := range slices.Chunk(slices.Sorted(maps.Keys(whole[i])), perENI) {
			e.AvailableIPv4Cidrs = map[string]*aws.CidrInfo{}
			var some []aws.CheckpointEntry
			for _, name := range names {
				e.AvailableIPv4Cidrs[name] = whole[i][name]
				p := netip.MustParsePrefix(name)
				for a := p.Addr(); p.Contains(a); a = a.Next() {
					if x, ok := of[a.String()]; ok {
						some = append(some, x)
					}
				}
			}
			if err := g.give(s, some); err != nil {
				return err
			}
		}
		e.AvailableIPv4Cidrs = nil
	}
	for i, e := range enis {
		e.AvailableIPv4Cidrs = whole[i]
	}
	return nil
}

func (awsNode) key(x sandbox) aws.IPAMKey {
	return aws.IPAMKey{NetworkName: "aws-cni", ContainerID: x.container, IfName: "eth0"}
}

type ourNode struct{ *ours.DataStore }

func newOurs(cp ours.Checkpointer, prefixes bool) node {
	return ourNode{ours.New(ours.Options{Checkpoint: cp, PrefixMode: prefixes})}
}

func (s ourNode) addENI(n int) error { return s.AddENI(eniID(n), n, n == 0, false) }

func (s ourNode) addBlock(eni int, p netip.Prefix) error {
	if p.IsSingleIP() {
		return s.AddAddress(eniID(eni), p.Addr())
	}
	return s.AddPrefix(eniID(eni), p)
}

func (s ourNode) assign(x sandbox) error {
	_, err := s.Assign(context.Background(), s.key(x), ours.IPAMMetadata{K8SPodNamespace: "default", K8SPodName: x.pod, InterfacesCount: 1}, ledger.IPv4)
	return err
}

func (s ourNode) unassign(x sandbox) error {
	_, err := s.Unassign(context.Background(), s.key(x))
	return err
}

func (s ourNode) restore() error { return s.ReadBackingStore() }

func (s ourNode) load(g *gate, entries []aws.CheckpointEntry) error { return g.give(s, entries) }

func (ourNode) key(x sandbox) ours.IPAMKey {
	return ours.IPAMKey{NetworkName: "aws-cni", ContainerID: x.container, IfName: "eth0"}
}
