// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

func TestAddInterfaces(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	g.Expect(ds.AddENI("eni-1", 1, true, false)).To(Succeed())
	g.Expect(ds.AddENI("eni-1", 1, true, false)).To(text(DuplicatedENIError))
	g.Expect(ds.AddENI("eni-2", 2, false, false)).To(Succeed())
	g.Expect(ds.GetENIs()).To(Equal(2))
	g.Expect(ds.GetTrunkENI()).To(BeEmpty())
	g.Expect(ds.AddENI("eni-3", 3, false, true)).To(Succeed())
	g.Expect(ds.GetTrunkENI()).To(Equal("eni-3"))
	g.Expect(ds.AddENI("", 3, false, true)).NotTo(Succeed())
	g.Expect(ds.AddENI("eni\x00", 3, false, true)).NotTo(Succeed())
}

func TestRemoveInterfaces(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{Checkpoint: NewTestCheckpoint(nil)})
	add(g, ds, "eni-1", 1, "1.1.1.1", "eni-2", 2)
	assign(g, ds, 1)
	g.Expect(ds.RemoveENIFromDataStore("eni-2", false)).To(Succeed())
	g.Expect(ds.RemoveENIFromDataStore("eni-9", false)).To(text(UnknownENIError))
	err := ds.RemoveENIFromDataStore("eni-1", false)
	g.Expect(err).To(text(ENIInUseError))
	var published *Error
	g.Expect(errors.As(err, &published)).To(BeTrue())
	g.Expect(published.Detail()).To(And(ContainSubstring("eni-1"), ContainSubstring("1.1.1.1")))
	g.Expect(errors.Is(err, errors.New(ENIInUseError))).To(BeTrue())
	g.Expect(ds.RemoveENIFromDataStore("eni-1", true)).To(Succeed())
	g.Expect(ds.GetENIs()).To(BeZero())
	g.Expect(ds.AllocatedIPs()).To(BeEmpty())
}

func TestAddAddresses(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	add(g, ds, "eni-1", 1, "1.1.1.1", "eni-2", 2)
	total := func() int { n, _ := ds.GetStats(); return n }
	g.Expect(total()).To(Equal(1))
	g.Expect(ds.AddIPv4AddressToStore("eni-1", "1.1.1.1")).To(text(IPAlreadyInStoreError))
	g.Expect(ds.AddIPv4AddressToStore("eni-1", "1.1.1.2")).To(Succeed())
	g.Expect(total()).To(Equal(2))
	g.Expect(ds.AddIPv4AddressToStore("eni-2", "1.1.2.2")).To(Succeed())
	g.Expect(total()).To(Equal(3))
	g.Expect(ds.AddIPv4AddressToStore("eni-9", "1.1.3.3")).To(text(UnknownENIError))
	g.Expect(total()).To(Equal(3))

	g.Expect(ds.AddIPv4AddressToStore("eni-2", "1.1.1.1")).To(text(IPAlreadyInStoreError), "of another interface")
	g.Expect(ds.AddPrefix("eni-2", netip.MustParsePrefix("1.1.2.0/28"))).To(text(IPAlreadyInStoreError), "around an address")
	for _, bad := range []string{"", "1.1.1", "1.1.1.01", "fd00::1", "::ffff:1.1.1.9"} {
		g.Expect(ds.AddIPv4AddressToStore("eni-1", bad)).NotTo(Succeed(), bad)
	}
	g.Expect(ds.AddPrefix("eni-2", netip.MustParsePrefix("1.1.2.9/28"))).NotTo(Succeed(), "host bits")
	g.Expect(ds.AddPrefix("eni-2", netip.Prefix{})).NotTo(Succeed())
	g.Expect(total()).To(Equal(3))
	ips, err := ds.GetENIIPs("eni-1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ips).To(Equal([]string{"1.1.1.1", "1.1.1.2"}))
	_, err = ds.GetENIIPs("eni-9")
	g.Expect(err).To(text(UnknownENIError))
	g.Expect(ds.Check()).To(BeEmpty())
}

func TestRemoveAddresses(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{Checkpoint: NewTestCheckpoint(nil)})
	add(g, ds, "eni-1", 1, "1.1.1.1", "1.1.1.2", "1.1.1.3")
	used := assign(g, ds, 1)
	g.Expect(used).To(Equal("1.1.1.1"))
	g.Expect(ds.FreeableIPs("eni-1")).To(Equal([]string{"1.1.1.2", "1.1.1.3"}))
	g.Expect(ds.FreeableIPs("eni-9")).To(BeEmpty())
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "1.1.1.3", false)).To(Succeed())
	stats(g, ds, 2, 1, 0)
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "1.1.1.9", false)).To(text(UnknownIPError))
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "nonsense", false)).To(text(UnknownIPError))
	g.Expect(ds.DelIPv4AddressFromStore("eni-9", "1.1.1.1", false)).To(text(UnknownENIError))
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", used, false)).To(text(IPInUseError))
	stats(g, ds, 2, 1, 0)
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", used, true)).To(Succeed())
	stats(g, ds, 1, 0, 0)
	_, _, err := ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
	g.Expect(ds.Check()).To(BeEmpty())
}

// The published test: assignments, a checkpoint that fails and heals, and an unused
// interface.
func TestLifeOfAStore(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(nil)
	ds, c := store(Options{Checkpoint: cp, CoolDown: 30 * time.Second})
	add(g, ds, "eni-1", 1, "1.1.1.1")
	for range 2 { // the same key has the same address
		ip, device, err := ds.AssignPodIPv4Address(key(1))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(ip).To(Equal("1.1.1.1"))
		g.Expect(device).To(Equal(1))
		g.Expect(cp.Data).To(Equal(data(entry(1, "1.1.1.1", c))))
		stats(g, ds, 1, 1, 0)
	}

	add(g, ds, "eni-2", 2, "1.1.2.2")
	cp.Error = errors.New("no space left on device")
	_, _, err := ds.AssignPodIPv4Address(key(2))
	g.Expect(err).To(MatchError(cp.Error))
	g.Expect(cp.Data).To(Equal(data(entry(1, "1.1.1.1", c))))
	stats(g, ds, 2, 1, 0)
	cp.Error = nil
	ip, device, err := ds.AssignPodIPv4Address(key(2))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("1.1.2.2"))
	g.Expect(device).To(Equal(2))
	g.Expect(cp.Data).To(Equal(data(entry(1, "1.1.1.1", c), entry(2, "1.1.2.2", c))))

	g.Expect(ds.AddIPv4AddressToStore("eni-1", "1.1.1.2")).To(Succeed())
	g.Expect(assign(g, ds, 3)).To(Equal("1.1.1.2"))
	_, device, err = ds.AssignPodIPv4Address(key(4))
	g.Expect(err).To(MatchError(ErrNoAvailableIP))
	g.Expect(device).To(Equal(-1))
	_, _, err = ds.UnassignPodIPv4Address(key(4))
	g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
	ip, device, err = ds.UnassignPodIPv4Address(key(2))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("1.1.2.2"))
	g.Expect(device).To(Equal(2))
	g.Expect(cp.Data.(*CheckpointData).Allocations).To(Equal([]CheckpointEntry{entry(1, "1.1.1.1", c), entry(3, "1.1.1.2", c)}))

	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(BeEmpty(), "it is young, and its address is cooling")
	c.pass(30 * time.Second)
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(BeEmpty(), "it is young")
	c.pass(30 * time.Second)
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(Equal("eni-2"))
	stats(g, ds, 2, 2, 0)
	g.Expect(ds.Check()).To(BeEmpty())
}

func TestInterfaceWithACoolingAddressStays(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{CoolDown: time.Hour})
	add(g, ds, "eni-1", 1, "1.1.1.1", "eni-2", 2)
	assign(g, ds, 1)
	c.pass(2 * time.Minute)
	unassign(g, ds, 1)
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(Equal("eni-2"))
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(BeEmpty())
	c.pass(time.Hour)
	g.Expect(ds.RemoveUnusedENIFromStore(0, 0)).To(Equal("eni-1"))
}

func TestRemoveUnusedInterfaceByTargets(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "eni-2", 1, "1.1.2.1", "1.1.2.2", "eni-3", 2, "1.1.3.1")
	assign(g, ds, 1)
	assign(g, ds, 2)
	c.pass(time.Minute)
	remove := func(warm, minimum int) string { return ds.RemoveUnusedENIFromStore(warm, minimum) }
	g.Expect(remove(3, 1)).To(BeEmpty())
	g.Expect(remove(1, 5)).To(BeEmpty())
	g.Expect(remove(2, 4)).To(Equal("eni-3"))
	g.Expect(remove(0, 3)).To(BeEmpty())
	g.Expect(remove(0, 2)).To(Equal("eni-2"))
	g.Expect(remove(0, 0)).To(BeEmpty(), "pods are on the last one")
	stats(g, ds, 2, 2, 0)
}

func TestInterfacesThatAreNeverRemoved(t *testing.T) {
	for _, c := range []struct {
		what  Interface
		stays bool
	}{
		{Interface{ID: "x", Primary: true}, true}, {Interface{ID: "x", Trunk: true}, true},
		{Interface{ID: "x", EFA: true}, true}, {Interface{ID: "x"}, false}, {Interface{ID: "x", Excluded: true}, false},
	} {
		g := NewWithT(t)
		ds, clock := store(Options{})
		g.Expect(ds.AddInterface(c.what)).To(Succeed())
		clock.pass(time.Minute)
		g.Expect(ds.RemoveUnusedENIFromStore(0, 0) == "").To(Equal(c.stays), "%+v", c.what)
	}
}

func TestRemoveUnusedInterfaceWithPrefixes(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{PrefixMode: true})
	add(g, ds, "eni-1", 0, "10.0.0.0/28", "eni-2", 1, "10.0.0.16/28")
	c.pass(time.Minute)
	assign(g, ds, 1)
	g.Expect(ds.RemoveUnusedENIFromStore(1, 0)).To(BeEmpty(), "one is rounded up to sixteen, fifteen would be free")
	g.Expect(ds.RemoveUnusedENIFromStore(0, 17)).To(BeEmpty(), "rounded up to 32")
	g.Expect(ds.RemoveUnusedENIFromStore(0, 16)).To(Equal("eni-2"))
}

func TestInterfaceThatNeedsAddresses(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	g.Expect(ds.GetENINeedsIP(1, false)).To(BeNil())
	add(g, ds, "eni-1", 0, "1.1.1.1", "eni-2", 1, "1.1.2.1", "1.1.2.2", "eni-3", 2)
	for _, c := range []struct {
		most        int
		skipPrimary bool
		want        string
	}{{2, false, "eni-1"}, {2, true, "eni-3"}, {3, true, "eni-2"}, {1, false, "eni-3"}, {0, false, ""}} {
		e := ds.GetENINeedsIP(c.most, c.skipPrimary)
		if c.want == "" {
			g.Expect(e).To(BeNil())
			continue
		}
		g.Expect(e.ID).To(Equal(c.want), "%+v", c)
	}
	g.Expect(ds.Exclude("eni-1", true)).To(Succeed())
	g.Expect(ds.Exclude("eni-9", true)).To(text(UnknownENIError))
	g.Expect(ds.GetENINeedsIP(2, false).ID).To(Equal("eni-3"))
	ip := assign(g, ds, 1)
	g.Expect(ip).To(Equal("1.1.2.1"), "an excluded interface assigns nothing")
}

func TestSnapshotsAreCopies(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{CoolDown: time.Minute})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
	assign(g, ds, 1)
	assign(g, ds, 2)
	unassign(g, ds, 2)
	infos := ds.GetENIInfos()
	g.Expect(infos.TotalIPs).To(Equal(2))
	g.Expect(infos.AssignedIPs).To(Equal(1))
	e := infos.ENIs["eni-1"]
	g.Expect(e.AssignedIPv4Addresses()).To(Equal(1))
	g.Expect(e.IPv4Addresses["1.1.1.1"].Assigned()).To(BeTrue())
	g.Expect(e.IPv4Addresses["1.1.1.2"].UnassignedTime).To(Equal(c.wall()))
	e.IPv4Addresses["1.1.1.1"].IPAMKey = IPAMKey{}
	delete(e.IPv4Addresses, "1.1.1.2")
	delete(infos.ENIs, "eni-1")

	p := ds.GetENIPool()
	g.Expect(p.AssignedIPv4Addresses()).To(Equal(1))
	found, a := p.FindAddressForSandbox(key(1))
	g.Expect(found.ID).To(Equal("eni-1"))
	g.Expect(a.Address).To(Equal("1.1.1.1"))
	found, a = p.FindAddressForSandbox(key(2))
	g.Expect(found).To(BeNil())
	g.Expect(a).To(BeNil())
	found, _ = p.FindAddressForSandbox(IPAMKey{})
	g.Expect(found).To(BeNil(), "the zero key has no address")
	g.Expect(ds.AllocatedIPs()).To(Equal([]PodIPInfo{{IPAMKey: key(1), IP: "1.1.1.1", DeviceNumber: 0}}))
}

func TestPrefixes(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{PrefixMode: true, CoolDown: 30 * time.Second})
	add(g, ds, "eni-1", 0, "10.0.0.0/28")
	stats(g, ds, 16, 0, 0)
	g.Expect(assign(g, ds, 0)).To(Equal("10.0.0.0"), "the first address of a prefix is assigned, too")
	g.Expect(assign(g, ds, 1)).To(Equal("10.0.0.1"))
	g.Expect(assign(g, ds, 2)).To(Equal("10.0.0.2"))
	unassign(g, ds, 1)
	for n := 3; n < 16; n++ {
		g.Expect(assign(g, ds, n)).NotTo(Equal("10.0.0.1"), "it is cooling")
	}
	stats(g, ds, 16, 15, 1)
	_, _, err := ds.AssignPodIPv4Address(key(16))
	g.Expect(err).To(MatchError(ErrNoAvailableIP))
	g.Expect(err).To(MatchError(ContainSubstring("the next one for 30s")))
	c.pass(29 * time.Second)
	_, _, err = ds.AssignPodIPv4Address(key(16))
	g.Expect(err).To(MatchError(ErrNoAvailableIP))
	c.pass(time.Second)
	g.Expect(assign(g, ds, 16)).To(Equal("10.0.0.1"))
	g.Expect(ds.FreeablePrefixes("eni-1")).To(BeEmpty())
	g.Expect(ds.Remove("eni-1", netip.MustParsePrefix("10.0.0.0/28"), false)).To(text(IPInUseError))
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "10.0.0.1", true)).To(text(UnknownIPError), "one address of a prefix cannot go")
	g.Expect(ds.Remove("eni-1", netip.MustParsePrefix("10.0.0.0/28"), true)).To(Succeed())
	stats(g, ds, 0, 0, 0)
}

func TestPrefixModeOverASecondaryStore(t *testing.T) {
	g := NewWithT(t)
	cp := NewTestCheckpoint(nil)
	old, _ := store(Options{Checkpoint: cp})
	add(g, old, "eni-1", 0, "10.0.1.1")
	assign(g, old, 1)

	ds, _ := store(Options{Checkpoint: cp, PrefixMode: true})
	add(g, ds, "eni-1", 0, "10.0.1.1")
	g.Expect(ds.ReadBackingStore()).To(Succeed())
	add(g, ds, "eni-2", 1, "10.0.0.0/28")
	stats(g, ds, 17, 1, 0)
	g.Expect(assign(g, ds, 2)).To(Equal("10.0.0.0"))
	g.Expect(assign(g, ds, 1)).To(Equal("10.0.1.1"), "an assigned address stays")
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "10.0.1.1", false)).To(text(IPInUseError))
	g.Expect(ds.DelIPv4AddressFromStore("eni-1", "10.0.1.1", true)).To(Succeed())
	stats(g, ds, 16, 1, 0)
}

func TestCoolDownIsCounted(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{CoolDown: time.Second})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
	assign(g, ds, 1)
	assign(g, ds, 2)
	stats(g, ds, 2, 2, 0)
	unassign(g, ds, 2)
	stats(g, ds, 2, 1, 1)
	g.Expect(ds.GetIPStats(ledger.IPv4).Free()).To(BeZero(), "a cooling address is not free")
	c.pass(time.Second)
	stats(g, ds, 2, 1, 0)
	g.Expect(assign(g, ds, 3)).To(Equal("1.1.1.2"))
}

func TestIPv6(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{PrefixMode: true, Checkpoint: NewTestCheckpoint(nil), CoolDown: time.Minute})
	add(g, ds, "eni-1", 0, "fd00:0:0:0:1::/80")
	g.Expect(ds.GetIPStats(ledger.IPv6).Total).To(Equal(281_474_976_710_656))
	g.Expect(ds.GetIPStats(ledger.IPv4).Total).To(BeZero())
	ip, device, err := ds.AssignPodIPv6Address(key(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("fd00::1:0:0:0"))
	g.Expect(device).To(BeZero())
	_, _, err = ds.AssignPodIPv4Address(key(1))
	g.Expect(err).To(MatchError(ledger.ErrKeyHeld), "a key has one address")
	_, _, err = ds.AssignPodIPv4Address(key(2))
	g.Expect(err).To(MatchError(ErrNoAvailableIP))
	ip, _, err = ds.UnassignPodIPv4Address(key(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("fd00::1:0:0:0"))
	ip, _, err = ds.AssignPodIPv6Address(key(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip).To(Equal("fd00::1:0:0:1"))
}
