// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package library

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam"
)

// daemon is an importer of the address manager: an owner and a register of events, as the
// published package wants them. It creates the NetResourceSet when it is asked for it.
type daemon struct {
	mode        string
	set         *ipam.NetResourceSet
	subscribers []ipam.NetResourceSetSubscriber
	calls       []string
}

func (d *daemon) IPv4Enabled() bool                    { return true }
func (d *daemon) IPv6Enabled() bool                    { return false }
func (d *daemon) IPAMMode() string                     { return d.mode }
func (d *daemon) HealthCheckingEnabled() bool          { return false }
func (d *daemon) UnreachableRoutesEnabled() bool       { return false }
func (d *daemon) SetIPv4NativeRoutingCIDR(*ipam.CIDR)  {}
func (d *daemon) GetIPv4NativeRoutingCIDR() *ipam.CIDR { return nil }
func (d *daemon) GetCCEEndpointGC() time.Duration      { return time.Minute }
func (d *daemon) GetFixedIPTimeout() time.Duration     { return time.Minute }
func (d *daemon) GetDeviceMTU() int                    { return 1500 }
func (d *daemon) IPv4() ipam.NodeAddressingFamily      { return d }
func (d *daemon) IPv6() ipam.NodeAddressingFamily      { return d }
func (d *daemon) AllocationCIDR() *ipam.CIDR {
	return ipam.NewCIDR(netip.MustParsePrefix("10.1.0.0/24"))
}
func (d *daemon) LocalAllocCIDRsUpdated(_, _ []*ipam.CIDR)               {}
func (d *daemon) ResourceType() string                                   { return "NetResourceSet" }
func (d *daemon) K8sEventReceived(_, _ string, _ string, _ bool, _ bool) {}
func (d *daemon) K8sEventProcessed(_ string, _ string, _ bool)           {}
func (d *daemon) RegisterNetResourceSetSubscriber(s ipam.NetResourceSetSubscriber) {
	d.calls = append(d.calls, "subscribed")
	d.subscribers = append(d.subscribers, s)
}

func (d *daemon) UpdateNetResourceSetResource() {
	d.calls = append(d.calls, "created")
	for _, s := range d.subscribers {
		_ = s.OnAddNetResourceSet(d.set)
	}
}

func newDaemon(mode string) *daemon {
	about := ipam.PoolIP{Interface: "eni-1", MAC: "02:00:00:00:00:01", Subnet: netip.MustParsePrefix("10.0.1.0/24")}
	return &daemon{mode: mode, set: &ipam.NetResourceSet{
		Name:     "node-a",
		PodCIDRs: []string{"10.1.1.0/24"},
		Pool:     map[string]ipam.PoolIP{"10.0.1.7": about, "10.0.1.8": about, "10.0.1.9": about},
		VPCCIDRs: []string{"10.0.0.0/16", "fd00::/56", "172.20.0.0/16", "10.0.1.0/24"},
	}}
}

func (d *daemon) start() *ipam.IPAM { return ipam.NewIPAM("node-a", d, d, d, d, d) }

// NewIPAM has the owner create the NetResourceSet, and wait for it, after it has subscribed.
func TestNewIPAMHasTheOwnerCreateTheNetResourceSet(t *testing.T) {
	for mode, want := range map[string][]string{
		"vpc-eni":             {"subscribed", "created"},
		"crd":                 {"subscribed", "created"},
		"cluster-pool-v2beta": {"subscribed", "created"},
		"kubernetes":          nil,
		"delegated-plugin":    nil,
	} {
		g, d := NewWithT(t), newDaemon(mode)
		m := d.start()
		g.Expect(m.Err()).NotTo(HaveOccurred())
		g.Expect(d.calls).To(Equal(want), mode)
		if slices.Contains(want, "created") {
			_, err := m.AllocateNextFamily(ipam.IPv4, "default/a")
			g.Expect(err).NotTo(HaveOccurred(), mode)
		}
	}
}

// After the NetResourceSet was deleted its addresses may be another node's: none is
// allocated, and those that pods have stay theirs.
func TestADeletedNetResourceSetGivesNoAddress(t *testing.T) {
	for _, mode := range []string{"vpc-eni", "crd", "cluster-pool-v2beta"} {
		t.Run(mode, func(t *testing.T) {
			g, d := NewWithT(t), newDaemon(mode)
			m := d.start()
			m.RestoreFinished()
			held, err := m.AllocateNextFamily(ipam.IPv4, "default/a")
			g.Expect(err).NotTo(HaveOccurred())
			another := &ipam.NetResourceSet{Name: "node-b"}
			g.Expect(d.subscribers[0].OnDeleteNetResourceSet(another)).To(Succeed())
			free, err := m.AllocateNextFamily(ipam.IPv4, "default/b")
			g.Expect(err).NotTo(HaveOccurred(), "another node's was deleted")
			g.Expect(m.ReleaseIP(free.IP)).To(Succeed())

			g.Expect(d.subscribers[0].OnDeleteNetResourceSet(d.set)).To(Succeed())
			_, err = m.AllocateNextFamily(ipam.IPv4, "default/c")
			g.Expect(err).To(HaveOccurred())
			g.Expect(m.AllocateIP(free.IP, "default/c")).NotTo(Succeed())
			owners, _, _ := m.Dump()
			g.Expect(owners).To(Equal(map[string]string{held.IP.String(): "default/a"}))

			g.Expect(d.subscribers[0].OnAddNetResourceSet(d.set)).To(Succeed())
			next, err := m.AllocateNextFamily(ipam.IPv4, "default/c")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(next.IP.Equal(held.IP)).To(BeFalse())
		})
	}
}

// An address of a cloud reaches its subnet and the CIDRs of the cloud network directly.
func TestTheNetworksOfAnAddressAreThoseOfTheVPC(t *testing.T) {
	g, d := NewWithT(t), newDaemon("vpc-eni")
	m := d.start()
	r, err := m.AllocateNextFamily(ipam.IPv4, "default/a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.CIDRs).To(Equal([]string{"10.0.1.0/24", "10.0.0.0/16", "172.20.0.0/16"}))
	r.CIDRs[1] = "changed by the caller"
	r, err = m.AllocateNextFamily(ipam.IPv4, "default/b")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.CIDRs[1]).To(Equal("10.0.0.0/16"))
}
