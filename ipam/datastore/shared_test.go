// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

const sharedPool = "default"

// sharing is a store over a ledger that others use too, whose journal outlives a crash.
type sharing struct {
	*DataStore
	g       Gomega
	journal *journal.Memory
	ledger  *ledger.Ledger
	clock   *clock
	file    Checkpointer
}

func newSharing(t *testing.T, file Checkpointer) *sharing {
	s := &sharing{g: NewWithT(t), journal: journal.NewMemory(), clock: &clock{}, file: file}
	s.clock.pass(time.Hour)
	s.start()
	return s
}

// start is a start after a crash: only the journal is left.
func (s *sharing) start(known ...Attachment) {
	var err error
	s.ledger, err = ledger.Open(context.Background(), s.journal, ledger.Options{Now: s.clock.wall, Uptime: s.clock.uptime, BootID: "boot"})
	s.g.Expect(err).NotTo(HaveOccurred())
	pool := ledger.Pool{Name: sharedPool, Order: ledger.Lowest, CoolDown: DefaultCoolDown}
	s.DataStore = New(s.clock.options(Options{
		Checkpoint: s.file, CoolDown: DefaultCoolDown, BootID: "boot",
		Ledger: s.ledger, Pool: sharedPool, Grants: NewDirectGranter(s.ledger, pool),
	}))
	s.g.Expect(s.Attach(known)).To(Succeed())
}

// see reconciles the store with a reading of the cloud.
func (s *sharing) see(seen ...Attachment) {
	s.g.ExpectWithOffset(1, s.Reconcile(context.Background(), seen, func(_ context.Context, id string) ([]netip.Prefix, bool, error) {
		for _, a := range seen {
			if a.ID == id {
				return a.Blocks, true, nil
			}
		}
		return nil, false, nil
	})).To(Succeed())
}

// claim claims an address as the agent does for a pod.
func (s *sharing) claim(n int) string {
	leases, _, err := s.ledger.Claim(context.Background(), ledger.Request{Pool: sharedPool, Key: ledger.Key{Network: key(n).NetworkName, ContainerID: key(n).ContainerID, IfName: key(n).IfName}, Rested: true, Listed: true})
	s.g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return leases[0].Addr.String()
}

func eni(id string, device int, blocks ...string) Attachment {
	a := Attachment{Interface: Interface{ID: id, Device: device, Primary: device == 0}}
	for _, text := range blocks {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			p = netip.PrefixFrom(netip.MustParseAddr(text), netip.MustParseAddr(text).BitLen())
		}
		a.Blocks = append(a.Blocks, p)
	}
	return a
}

func (s *sharing) stats(total, assigned, cooling int) {
	x := s.GetIPStats(ledger.IPv4)
	s.g.ExpectWithOffset(1, []int{x.Total, x.Assigned, x.Cooling}).To(Equal([]int{total, assigned, cooling}), "total, assigned, cooling")
	s.g.ExpectWithOffset(1, s.Check()).To(BeEmpty())
}

func TestLeasesOfOthersAreThoseOfTheStore(t *testing.T) {
	s := newSharing(t, nil)
	s.see(eni("eni-1", 0, "10.0.0.9", "10.0.0.8"), eni("eni-2", 1, "10.0.0.5"))
	s.g.Expect(s.claim(1)).To(Equal("10.0.0.8"), "the first interface is filled first")
	s.stats(3, 1, 0)
	s.g.Expect(s.AllocatedIPs()).To(Equal([]PodIPInfo{{IPAMKey: key(1), IP: "10.0.0.8", DeviceNumber: 0}}))
	a, device, err := s.AssignPodIPv4Address(key(2))
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(a).To(Equal("10.0.0.9"))
	s.g.Expect(device).To(BeZero())
	s.g.Expect(s.claim(2)).To(Equal("10.0.0.9"), "the same lease")
	_, _, err = s.UnassignPodIPv4Address(key(2))
	s.g.Expect(err).NotTo(HaveOccurred())
	s.stats(3, 1, 1)
}

func TestABlockInUseIsNotReturned(t *testing.T) {
	s := newSharing(t, nil)
	s.see(eni("eni-1", 0, "10.0.0.8", "10.0.0.9", "10.0.0.10"))
	s.claim(1)
	s.claim(2)
	_, _, err := s.UnassignPodIPv4Address(key(2))
	s.g.Expect(err).NotTo(HaveOccurred())
	for _, a := range []string{"10.0.0.8", "10.0.0.9"} { // held, cooling
		s.g.Expect(s.DelIPv4AddressFromStore("eni-1", a, false)).To(text(IPInUseError), a)
	}
	s.stats(3, 1, 1)
	s.g.Expect(s.Returning()).To(BeEmpty())
	s.clock.pass(DefaultCoolDown)
	s.g.Expect([]string{s.claim(2), s.claim(3)}).To(ConsistOf("10.0.0.9", "10.0.0.10"), "a refused return changes nothing")
}

// A stale reading after a crash shows an address that is on its way back: another machine
// may have it already.
func TestAReturnedAddressDoesNotComeBackAfterACrash(t *testing.T) {
	s := newSharing(t, nil)
	before := eni("eni-1", 0, "10.0.0.8", "10.0.0.9")
	s.see(before)
	s.claim(1)
	back, err := s.Shrink(Targets{MinimumIP: 1}, ledger.IPv4)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(back).To(HaveKeyWithValue("eni-1", before.Blocks[1:]))

	s.start(before)
	s.see(before)
	s.stats(1, 1, 0)
	s.g.Expect(s.Returning()).To(Equal(map[string][]netip.Prefix{"eni-1": before.Blocks[1:]}))
	s.Returned(before.Blocks[1:])
	s.g.Expect(s.Returning()).To(BeEmpty())
	s.see(before)
	s.stats(1, 1, 0)
	s.clock.pass(time.Minute)
	s.see(eni("eni-1", 0, "10.0.0.8"))
	s.see(before) // it was assigned anew
	s.stats(2, 1, 0)
}

func TestTheCloudKeepsABlockThatItShouldHaveTakenBack(t *testing.T) {
	s := newSharing(t, nil)
	before := eni("eni-1", 0, "10.0.0.8")
	s.see(before)
	s.g.Expect(s.DelIPv4AddressFromStore("eni-1", "10.0.0.8", false)).To(Succeed())
	s.Returned(before.Blocks)
	s.clock.pass(time.Minute)
	s.see(before)
	s.g.Expect(s.Returning()).To(HaveKeyWithValue("eni-1", before.Blocks), "once more")
}

func TestAVanishedInterfaceKeepsItsLeases(t *testing.T) {
	s := newSharing(t, nil)
	first, second := eni("eni-1", 0, "10.0.0.8"), eni("eni-2", 1, "10.0.1.8", "10.0.1.9")
	s.see(first, second)
	s.claim(1)
	s.g.Expect(s.claim(2)).To(Equal("10.0.1.8"))
	s.see(first)
	s.stats(2, 2, 0)
	s.g.Expect(s.Lost()).To(HaveKeyWithValue("eni-2", second.Blocks[:1]))
	_, _, err := s.AssignPodIPv4Address(key(3))
	s.g.Expect(err).To(MatchError(ErrNoAvailableIP), "nothing of it is assigned any more")

	s.start(first, second)
	s.g.Expect(s.Lost()).To(HaveKeyWithValue("eni-2", second.Blocks[:1]), "also after a restart")
	s.see(first)
	_, _, err = s.UnassignPodIPv4Address(key(2))
	s.g.Expect(err).NotTo(HaveOccurred())
	s.clock.pass(time.Minute)
	s.see(first, second)
	s.stats(3, 1, 0)
	s.g.Expect(s.Lost()).To(BeEmpty(), "it is back")
	s.g.Expect(s.claim(3)).To(Equal("10.0.1.8"))
}

func TestExcludedTrunkAndOtherKind(t *testing.T) {
	s := newSharing(t, nil)
	all := []Attachment{eni("eni-1", 0, "10.0.0.8"), eni("eni-2", 1, "10.0.1.8"), eni("eni-3", 2, "10.0.2.8"), eni("eni-4", 3, "10.0.3.0/28")}
	all[2].Trunk = true
	s.see(all...)
	s.stats(2, 0, 0)
	s.claim(1)
	s.g.Expect(s.claim(2)).To(Equal("10.0.1.8"))
	all[1].Excluded = true
	s.see(all...)
	s.stats(2, 2, 0)
	s.g.Expect(s.ReturnUnused()).To(Succeed())
	s.g.Expect(s.Returning()).To(Equal(map[string][]netip.Prefix{"eni-4": all[3].Blocks}), "the trunk keeps its addresses")
	_, _, err := s.UnassignPodIPv4Address(key(2))
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.ReturnUnused()).To(Succeed())
	s.g.Expect(s.Returning()).To(HaveKeyWithValue("eni-2", all[1].Blocks))
}

func TestAddressesOfAnExcludedForeignInterfaceAreNotReturned(t *testing.T) {
	s := newSharing(t, nil)
	all := []Attachment{eni("eni-1", 0, "10.0.0.8"), eni("eni-2", 1, "10.0.1.8")}
	all[0].Excluded, all[0].Foreign = true, true
	all[1].Excluded = true
	s.see(all...)
	s.g.Expect(s.ReturnUnused()).To(Succeed())
	s.g.Expect(s.Returning()).To(Equal(map[string][]netip.Prefix{"eni-2": all[1].Blocks}))
}

func TestAnUnusedInterfaceIsRemovedWithItsBlocks(t *testing.T) {
	s := newSharing(t, nil)
	all := []Attachment{eni("eni-1", 0, "10.0.0.8"), eni("eni-2", 1, "10.0.1.8")}
	s.see(all...)
	s.clock.pass(time.Minute)
	s.g.Expect(s.RemoveUnusedENI(Targets{})).To(Equal("eni-2"))
	s.stats(1, 0, 0)
	s.see(all...) // the cloud still shows it
	s.g.Expect(s.GetENIs()).To(Equal(1))
	s.Deleted("eni-2")
	s.g.Expect(s.Returning()).To(BeEmpty())
	s.clock.pass(time.Minute)
	s.see(all[0])
	s.g.Expect(s.Check()).To(BeEmpty())
	for _, b := range s.ledger.Stats() {
		s.g.Expect(b.Pool).NotTo(Equal(ReturningPool))
	}
}

func TestACheckpointIsClaimedWithItsBlock(t *testing.T) {
	at := &clock{}
	file := NewTestCheckpoint(data(entry(7, "10.0.0.9", at), entry(8, "10.0.9.9", at)))
	s := newSharing(t, file)
	s.g.Expect(s.ReadBackingStore()).To(Succeed())
	s.g.Expect(s.Unplaced()).To(HaveLen(2))
	s.see(eni("eni-1", 0, "10.0.0.8", "10.0.0.9"))
	s.g.Expect(s.AllocatedIPs()).To(Equal([]PodIPInfo{{IPAMKey: key(7), IP: "10.0.0.9"}}))
	s.g.Expect(s.Unplaced()).To(Equal([]PodIPInfo{{IPAMKey: key(8), IP: "10.0.9.9", DeviceNumber: -1}}))
	s.g.Expect(s.claim(7)).To(Equal("10.0.0.9"))
	s.g.Expect(s.claim(1)).To(Equal("10.0.0.8"))
}
