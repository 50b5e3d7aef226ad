// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	. "github.com/cadastre/cadastre/ipam/datastore"
)

func TestRestore(t *testing.T) {
	one, two := CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1"}, CheckpointEntry{IPAMKey: key(2), IPv4: "1.1.1.2"}
	twin := CheckpointEntry{IPAMKey: key(2), IPv4: "1.1.1.1"}
	for name, c := range map[string]struct {
		kept any
		held map[string]IPAMKey
		err  string
	}{
		"nothing":                 {kept: nil, held: map[string]IPAMKey{}},
		"empty":                   {kept: data(), held: map[string]IPAMKey{}},
		"two":                     {kept: data(one, two), held: map[string]IPAMKey{"1.1.1.1": key(1), "1.1.1.2": key(2)}},
		"unknown address":         {kept: data(CheckpointEntry{IPAMKey: key(1), IPv4: "9.9.9.9"}), held: map[string]IPAMKey{"9.9.9.9": key(1)}},
		"no version":              {kept: struct{}{}, err: `of version ""`},
		"another version":         {kept: &CheckpointData{Version: "vpc-cni-ipam/2"}, err: "drain the node"},
		"an address for two pods": {kept: data(one, twin), err: "1.1.1.1 is in it twice: " + IPAlreadyInStoreError},
		"a pod with two":          {kept: data(one, CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.2"}), err: "has another one"},
		"no key":                  {kept: data(CheckpointEntry{IPv4: "1.1.1.1"}), err: "without a key"},
		"no address":              {kept: data(CheckpointEntry{IPAMKey: key(1)}), err: "container-1"},
		"no IPv4 address":         {kept: data(CheckpointEntry{IPAMKey: key(1), IPv4: "fd00::1"}), err: "fd00::1"},
		"two families":            {kept: data(CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1", IPv6: "fd00::1"}), held: map[string]IPAMKey{"1.1.1.1": key(1), "fd00::1": key(1)}},
		"an entry for each":       {kept: data(one, CheckpointEntry{IPAMKey: key(1), IPv6: "fd00::1"}), held: map[string]IPAMKey{"1.1.1.1": key(1), "fd00::1": key(1)}},
		"two of a second family":  {kept: data(one, CheckpointEntry{IPAMKey: key(1), IPv6: "fd00::1"}, CheckpointEntry{IPAMKey: key(1), IPv6: "fd00::2"}), err: "has another one"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cp := NewTestCheckpoint(c.kept)
			ds, _ := store(Options{Checkpoint: cp})
			add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "1.1.1.3")
			err := ds.ReadBackingStore()
			if c.err == "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(held(ds)).To(Equal(c.held))
				assign(g, ds, 3)
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(c.err)))
			g.Expect(held(ds)).To(BeEmpty())
			_, _, err = ds.AssignPodIPv4Address(key(3))
			g.Expect(err).To(MatchError(ContainSubstring(c.err)), "nothing is assigned before the restore")
			_, _, err = ds.UnassignPodIPv4Address(key(1))
			g.Expect(err).To(MatchError(ContainSubstring(c.err)), "nor reported as released")
			g.Expect(cp.Data).To(Equal(c.kept), "the checkpoint stays")
		})
	}
}

func TestRestoreComesFirstAndOnce(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{Checkpoint: NewTestCheckpoint(data())})
	add(g, ds, "eni-1", 0, "1.1.1.1")
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	assign(g, ds, 1)
	g.Expect(ds.ReadBackingStore()).To(MatchError(ContainSubstring("assigned already")))
	g.Expect(held(ds)).To(HaveLen(1))
}

func TestRestoredAddressesOfAnInterfaceThatComesLater(t *testing.T) {
	for _, block := range []string{"1.1.1.1", "1.1.1.0/28"} {
		t.Run(block, func(t *testing.T) {
			g := NewWithT(t)
			kept := data(CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1", AllocationTimestamp: 7, Metadata: IPAMMetadata{K8SPodName: "web", InterfacesCount: 2}})
			cp := NewTestCheckpoint(kept)
			_, err := netip.ParsePrefix(block)
			ds, _ := store(Options{Checkpoint: cp, PrefixMode: err == nil, CoolDown: time.Minute})
			g.Expect(ds.ReadBackingStore()).To(Succeed())
			g.Expect(ds.Unplaced()).To(Equal([]PodIPInfo{{IPAMKey: key(1), IP: "1.1.1.1", DeviceNumber: -1}}))
			_, _, err = ds.AssignPodIPv4Address(key(1))
			g.Expect(err).To(MatchError(ErrNotAttached))
			total, assigned := ds.GetStats()
			g.Expect([]int{total, assigned}).To(Equal([]int{0, 0}))

			add(g, ds, "eni-1", 1, block)
			g.Expect(ds.Unplaced()).To(BeEmpty())
			ip, device, err := ds.AssignPodIPv4Address(key(1))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ip).To(Equal("1.1.1.1"))
			g.Expect(device).To(Equal(1))
			g.Expect(cp.Data).To(BeIdenticalTo(kept), "an unchanged checkpoint is not written")
			if block != "1.1.1.1" {
				for n := 2; n <= 16; n++ {
					g.Expect(assign(g, ds, n)).NotTo(Equal("1.1.1.1"))
				}
				g.Expect(cp.Data.(*CheckpointData).Allocations).To(ContainElement(kept.Allocations[0]), "with the fields that a lease does not have")
			}
			_, _, err = ds.AssignPodIPv4Address(key(17))
			g.Expect(err).To(MatchError(ErrNoAvailableIP))
			unassign(g, ds, 1)
			_, _, err = ds.AssignPodIPv4Address(key(17))
			g.Expect(err).To(MatchError(ErrNoAvailableIP), "it is cooling")
			g.Expect(ds.Check()).To(BeEmpty())
		})
	}
}

func TestRestoredAddressCanBeUnassignedWithoutItsInterface(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(data(CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1"}))
	ds, c := store(Options{Checkpoint: cp, CoolDown: time.Minute, BootID: "b"})
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	ip, device, err := ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("1.1.1.1"))
	g.Expect(device).To(Equal(-1))
	g.Expect(cp.Data.(*CheckpointData).Allocations).To(BeEmpty())
	g.Expect(cp.Data.(*CheckpointData).Cooling).To(HaveLen(1))
	c.pass(30 * time.Second)
	add(g, ds, "eni-1", 0, "1.1.1.1")
	stats(g, ds, 1, 0, 1)
	c.pass(30 * time.Second)
	stats(g, ds, 1, 0, 0)
	g.Expect(assign(g, ds, 2)).To(Equal("1.1.1.1"))
}

func TestEntriesCopiedFromARuntime(t *testing.T) {
	for phase, known := range map[int]bool{0: true, CheckpointMigrationPhase: true, 2: false} {
		g := NewWithT(t)
		old := IPAMKey{NetworkName: BackfillNetworkName, ContainerID: "container-1", IfName: BackfillNetworkIface}
		ds, _ := store(Options{Checkpoint: NewTestCheckpoint(data(CheckpointEntry{IPAMKey: old, IPv4: "1.1.1.1"}))})
		ds.CheckpointMigrationPhase = phase
		add(g, ds, "eni-1", 0, "1.1.1.1")
		g.Expect(ds.ReadBackingStore()).To(Succeed())
		_, _, err := ds.UnassignPodIPv4Address(key(1))
		if known {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
		}
		g.Expect(held(ds)).To(HaveLen(map[bool]int{true: 0, false: 1}[known]))
	}
}

func TestPodsWithoutAHostInterfaceAreReleased(t *testing.T) {
	with := CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1", Metadata: pod(1)}
	without := CheckpointEntry{IPAMKey: key(2), IPv4: "1.1.1.2"}
	g := NewWithT(t)
	g.Expect(LinkSuffix(IPAMMetadata{K8SPodNamespace: "default", K8SPodName: "web-0"})).To(Equal("0d7763386da"))
	for name, c := range map[string]struct {
		links []string
		err   error
		held  int
	}{
		"there":            {links: []string{"lo", "eth0", "eni" + LinkSuffix(pod(1))}, held: 2},
		"another prefix":   {links: []string{"vlan" + LinkSuffix(pod(1))}, held: 2},
		"gone":             {links: []string{"lo", "eth0", "eni" + LinkSuffix(pod(7))}, held: 1},
		"no links at all":  {links: nil, held: 1},
		"the kernel fails": {err: errors.New("netlink: interrupted system call")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cp := NewTestCheckpoint(data(with, without))
			ds, clock := store(Options{Checkpoint: cp, CoolDown: time.Minute, Links: func() ([]string, error) { return c.links, c.err }})
			add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
			err := ds.ReadBackingStore()
			g.Expect(cp.Data).To(Equal(data(with, without)), "the checkpoint stays until the next write")
			if c.err != nil {
				g.Expect(err).To(MatchError(c.err))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(held(ds)).To(HaveLen(c.held))
			stats(g, ds, 2, c.held, 2-c.held)
			clock.pass(time.Minute)
			stats(g, ds, 2, c.held, 0)
		})
	}
}

func TestCoolingGoesOnAfterARestart(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string // boot IDs
		rest          time.Duration
	}{
		"the same boot": {"b1", "b1", 40 * time.Second}, "another boot": {"b1", "b2", time.Minute},
		"boots are not known": {"", "", time.Minute},
	} {
		for _, delta := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				g := NewWithT(t)
				var cp Checkpointer = NewTestCheckpoint(nil)
				if delta {
					cp = NewJournalCheckpoint(journal.NewMemory())
				}
				old, clock := store(Options{Checkpoint: cp, CoolDown: time.Minute, BootID: c.before})
				add(g, old, "eni-1", 0, "1.1.1.1", "1.1.1.2")
				assign(g, old, 1)
				assign(g, old, 2)
				unassign(g, old, 1)
				clock.pass(20 * time.Second)
				unassign(g, old, 2)

				ds := New(clock.options(Options{Checkpoint: cp, CoolDown: time.Minute, BootID: c.after}))
				add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
				g.Expect(ds.ReadBackingStore()).To(Succeed())
				stats(g, ds, 2, 0, 2)
				clock.pass(c.rest - 1)
				_, _, err := ds.AssignPodIPv4Address(key(3))
				g.Expect(err).To(MatchError(ErrNoAvailableIP))
				clock.pass(1)
				g.Expect(assign(g, ds, 3)).To(Equal("1.1.1.1"))
				_, _, err = ds.AssignPodIPv4Address(key(4))
				if c.rest == time.Minute {
					g.Expect(err).NotTo(HaveOccurred())
				} else {
					g.Expect(err).To(MatchError(ErrNoAvailableIP), "the other one began to cool later")
				}
			})
		}
	}
}

func TestPodsOfAnEarlierBoot(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(nil)
	old, clock := store(Options{Checkpoint: cp, BootID: "b1"})
	add(g, old, "eni-1", 0, "1.1.1.1")
	assign(g, old, 1)
	ds := New(clock.options(Options{Checkpoint: cp, BootID: "b2", CoolDown: time.Minute}))
	add(g, ds, "eni-1", 0, "1.1.1.1")
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	stats(g, ds, 1, 0, 1)
	clock.pass(time.Minute)
	g.Expect(assign(g, ds, 2)).To(Equal("1.1.1.1"))
}

// foreignFile is a file that the published program has written.
const foreignFile = `{"version":"vpc-cni-ipam/1","allocations":[` +
	`{"networkName":"aws-cni","containerID":"container-1","ifName":"eth0","ipv4":"1.1.1.1"},` +
	`{"networkName":"aws-cni","containerID":"container-2","ifName":"eth0","ipv4":"1.1.1.2","allocationTimestamp":1600000000000000001,` +
	`"metadata":{"k8sPodNamespace":"default","k8sPodName":"web","interfacesCount":2}}]}`

func TestRestoreOfAPublishedFile(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "ipam.json")
	g.Expect(os.WriteFile(path, []byte(foreignFile), 0o600)).To(Succeed())
	ds, _ := store(Options{Checkpoint: NewJSONFile(path)})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "1.1.1.3")
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	g.Expect(held(ds)).To(Equal(map[string]IPAMKey{"1.1.1.1": key(1), "1.1.1.2": key(2)}))
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo(foreignFile))
	assign(g, ds, 3)

	var d CheckpointData
	g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed())
	g.Expect(d.Allocations).To(HaveLen(3))
	g.Expect(d.Allocations[1]).To(Equal(CheckpointEntry{
		IPAMKey: key(2), IPv4: "1.1.1.2", AllocationTimestamp: 1600000000000000001,
		Metadata: IPAMMetadata{K8SPodNamespace: "default", K8SPodName: "web", InterfacesCount: 2},
	}), "all fields are kept")
}
