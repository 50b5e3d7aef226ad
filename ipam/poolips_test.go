// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ledger"
)

// singleAddresses returns an IPAM of single addresses.
func singleAddresses(g Gomega, name string) *world {
	w := &world{g: g, journal: journal.NewMemory(), boot: "boot", deps: ipam.Deps{Name: "n1", Config: &config{mode: name, v4: true, v6: true}}}
	w.start()
	return w
}

// give applies a NetResourceSet with addresses, and with the handshake in pairs of
// address and state.
func (w *world) give(addrs []string, handshake ...string) {
	set := &ipam.NetResourceSet{Name: "n1", Pool: map[string]ipam.PoolIP{}, Status: ipam.Status{ReleaseIPs: map[string]string{}}}
	for _, a := range addrs {
		set.Pool[a] = ipam.PoolIP{Interface: "eni-1"}
	}
	for i := 0; i < len(handshake); i += 2 {
		set.Status.ReleaseIPs[handshake[i]] = handshake[i+1]
	}
	w.g.Expect(w.Update(context.Background(), set)).To(Succeed())
}

func (w *world) answers() map[string]string {
	st, err := w.Review(context.Background())
	w.g.Expect(err).NotTo(HaveOccurred())
	w.consistent()
	return st.ReleaseIPs
}

func four() []string { return []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} }

func TestSingleAddresses(t *testing.T) {
	g := NewWithT(t)
	w := singleAddresses(g, "crd")
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(MatchError(ContainSubstring("NetResourceSet of this node is not available")))
	_, err := w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(HaveOccurred())
	w.give(nil)
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(MatchError(ContainSubstring("no IPs available")))
	w.give(append(four(), "fd00::1", "nonsense", "::ffff:10.0.0.1"))
	g.Expect(w.AllocateIPString("10.0.0.9", me)).To(MatchError(ipam.NewIPNotAvailableInPoolError(ip("10.0.0.9"))))
	r, err := w.AllocateIPWithAllocationResult(ip("10.0.0.2"), me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.InterfaceNumber).To(Equal("eni-1"))
	g.Expect(w.AllocateIPString("10.0.0.2", me)).To(MatchError(ContainSubstring("IP already in use")))
	seen := map[string]bool{}
	for range 3 {
		r, err := w.AllocateNextFamily(ipam.IPv4, me)
		g.Expect(err).NotTo(HaveOccurred())
		seen[text(r)] = true
	}
	g.Expect(seen).To(Equal(map[string]bool{"10.0.0.1": true, "10.0.0.3": true, "10.0.0.4": true}))
	_, _, err = w.AllocateNext("", other)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	g.Expect(w.ReleaseIP(ip("10.0.0.9"))).To(Succeed(), "a free address")
	w.RestoreFinished()
	st, err := w.Review(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(st.Used).To(HaveLen(4))
	g.Expect(st.Used).To(HaveKeyWithValue("10.0.0.2", ipam.Use{Owner: me, Interface: "eni-1"}))
	w.give([]string{"10.0.0.1"})
	g.Expect(w.held()).To(HaveLen(4), "leases stay")
	g.Expect(w.ReleaseIPString("10.0.0.2")).To(Succeed())
	_, err = w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	w.consistent()
}

func TestAddressWithoutSubnetIsNotAllocated(t *testing.T) {
	g := NewWithT(t)
	w := singleAddresses(g, "vpc-eni")
	_, err := w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(MatchError(ContainSubstring("not available")))
	set := &ipam.NetResourceSet{Name: "n1", VPCCIDRs: []string{"10.0.0.0/8", "nonsense", "172.16.0.0/12"}, Pool: map[string]ipam.PoolIP{
		"10.0.0.7": {Interface: "eni-1", MAC: "02:00:00:00:00:01", Subnet: netip.MustParsePrefix("10.0.0.0/24")},
		"10.0.0.8": {Interface: "eni-1"},
		"10.0.1.9": {Interface: "eni-2", Subnet: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.254")},
	}}
	g.Expect(w.Update(context.Background(), set)).To(Succeed())
	g.Expect(w.AllocateIPString("10.0.0.8", me)).To(MatchError(ContainSubstring("its subnet is not known")))
	r, err := w.AllocateIPWithAllocationResult(ip("10.0.0.7"), me)
	g.Expect(err).NotTo(HaveOccurred())
	r.IP = nil
	g.Expect(*r).To(Equal(ipam.AllocationResult{CIDRs: []string{"10.0.0.0/24", "10.0.0.0/8", "172.16.0.0/12"}, PrimaryMAC: "02:00:00:00:00:01", GatewayIP: "10.0.0.1", InterfaceNumber: "eni-1"}))
	r, err = w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{text(r), r.GatewayIP}).To(Equal([]string{"10.0.1.9", "10.0.1.254"}))
	_, err = w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	g.Expect(w.held()).NotTo(HaveKey("10.0.0.8"))
	g.Expect(fmt.Sprint(w.GetVpcCIDRs())).To(Equal("[10.0.0.0/8 172.16.0.0/12]"))
	g.Expect(w.deps.Config.GetIPv4NativeRoutingCIDR().String()).To(Equal("10.0.0.0/8"))
	g.Expect(plain(g).GetVpcCIDRs()).To(BeNil())
}

func TestHandshake(t *testing.T) {
	const marked, ready, refused, released = ipam.MarkedForRelease, ipam.ReadyForRelease, ipam.DoNotRelease, ipam.ReleasedIP
	g := NewWithT(t)
	w := singleAddresses(g, "crd")
	w.RestoreFinished()
	w.give(four())
	for _, a := range four()[:3] {
		g.Expect(w.AllocateIPString(a, me)).To(Succeed())
	}
	w.give(four(), "10.0.0.4", marked, "10.0.0.1", marked, "10.9.9.9", marked)
	g.Expect(w.answers()).To(Equal(map[string]string{"10.0.0.4": ready, "10.0.0.1": refused, "10.9.9.9": refused}))
	g.Expect(w.AllocateIPString("10.0.0.4", me)).To(MatchError(ipam.ErrGivenBack))
	_, err := w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(HaveOccurred())
	g.Expect(w.ReleaseIPString("10.0.0.1")).To(Succeed())
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(Succeed(), "it is allocated again after a refusal")
	w.start() // an answer outlives a restart
	w.RestoreFinished()
	w.give(four(), "10.0.0.4", ready)
	g.Expect(w.answers()).To(Equal(map[string]string{"10.0.0.4": ready}))
	_, err = w.AllocateNextFamily(ipam.IPv4, me)
	g.Expect(err).To(HaveOccurred())
	w.give(four()) // the operator withdraws the request
	g.Expect(w.answers()).To(BeEmpty())
	g.Expect(w.AllocateIPString("10.0.0.4", me)).To(Succeed())
	g.Expect(w.ReleaseIPString("10.0.0.4")).To(Succeed())
	w.give(four(), "10.0.0.4", marked)
	w.give(four(), "10.0.0.4", released)
	g.Expect(w.answers()).To(Equal(map[string]string{"10.0.0.4": released}))
	g.Expect(w.AllocateIPString("10.0.0.4", me)).To(MatchError(ipam.ErrGivenBack))
	w.give(four()[:3], "10.0.0.4", released)
	g.Expect(w.answers()).To(BeEmpty(), "it has left the pool")
	w.give(four())
	g.Expect(w.AllocateIPString("10.0.0.4", me)).To(Succeed(), "it is in the pool again")
}

func TestNoAnswerBeforeRestoreIsFinished(t *testing.T) {
	g := NewWithT(t)
	w := singleAddresses(g, "crd")
	w.give(four(), "10.0.0.1", ipam.MarkedForRelease, "10.0.0.2", ipam.MarkedForRelease)
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(Succeed(), "the address of a running pod is restored")
	w.RestoreFinished()
	g.Expect(w.answers()).To(Equal(map[string]string{"10.0.0.1": ipam.DoNotRelease, "10.0.0.2": ipam.ReadyForRelease}))
	g.Expect(w.AllocateIPString("10.0.0.2", me)).To(MatchError(ipam.ErrGivenBack))
}

func TestCoolingAddressIsNotReadyForRelease(t *testing.T) {
	g := NewWithT(t)
	w := singleAddresses(g, "crd")
	w.deps.Pool = ledger.Pool{Name: "ipam", CoolDown: time.Minute}
	w.start()
	w.RestoreFinished()
	w.give(four())
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(Succeed())
	g.Expect(w.ReleaseIPString("10.0.0.1")).To(Succeed())
	w.give(four(), "10.0.0.1", ipam.MarkedForRelease)
	g.Expect(w.answers()).To(Equal(map[string]string{"10.0.0.1": ipam.DoNotRelease}))
	w.uptime += time.Minute
	w.give(four(), "10.0.0.1", ipam.MarkedForRelease)
	g.Expect(w.answers()).To(Equal(map[string]string{"10.0.0.1": ipam.ReadyForRelease}))
}

func TestReadyWaitsForEnoughAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		w := singleAddresses(g, "crd")
		w.RestoreFinished()
		done := make(chan error)
		go func() { done <- w.Ready(context.Background()) }()
		set := &ipam.NetResourceSet{Name: "n1", MinAllocate: 2, PreAllocate: 1, Pool: map[string]ipam.PoolIP{"10.0.0.1": {}, "10.0.0.2": {}}}
		set.Status.ReleaseIPs = map[string]string{"10.0.0.2": ipam.MarkedForRelease}
		g.Expect(w.Update(context.Background(), set)).To(Succeed())
		synctest.Wait()
		g.Expect(done).NotTo(Receive(), "an address to be released does not count")
		again := *set
		again.MinAllocate = 0
		g.Expect(w.Update(context.Background(), &again)).To(Succeed())
		g.Expect(<-done).To(Succeed())
	})
}

func TestUnchangedAddressesAreNotGrantedAgain(t *testing.T) {
	g := NewWithT(t)
	w := singleAddresses(g, "crd")
	counted := &countingGranter{inner: ipam.NewDirectGranter(w.deps.Ledger)}
	w.deps.Grants = counted
	var err error
	w.IPAM, err = ipam.New(context.Background(), w.deps)
	g.Expect(err).NotTo(HaveOccurred())
	w.give(four())
	before := counted.n
	w.give(four())
	g.Expect(counted.n).To(Equal(before))
	counted.fail = true
	g.Expect(w.Update(context.Background(), &ipam.NetResourceSet{Name: "n1"})).NotTo(Succeed())
	counted.fail = false
	w.give(four())
	g.Expect(counted.n).To(Equal(before+2), "the outcome of the failed grant is not known")
	g.Expect(w.AllocateIPString("10.0.0.1", me)).To(Succeed())
}

// countingGranter counts, and can fail.
type countingGranter struct {
	inner ipam.Granter
	n     int
	fail  bool
}

func (c *countingGranter) Grant(ctx context.Context, pool ledger.Pool, blocks []netip.Prefix) error {
	c.n++
	if c.fail {
		return fmt.Errorf("not now")
	}
	return c.inner.Grant(ctx, pool, blocks)
}
