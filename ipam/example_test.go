// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ipam"
)

// settings is the configuration of a node in host scope with both families.
type settings struct{}

func (settings) IPv4Enabled() bool                    { return true }
func (settings) IPv6Enabled() bool                    { return true }
func (settings) IPAMMode() string                     { return "kubernetes" }
func (settings) HealthCheckingEnabled() bool          { return false }
func (settings) UnreachableRoutesEnabled() bool       { return false }
func (settings) SetIPv4NativeRoutingCIDR(*ipam.CIDR)  {}
func (settings) GetIPv4NativeRoutingCIDR() *ipam.CIDR { return nil }
func (settings) GetCCEEndpointGC() time.Duration      { return time.Minute }
func (settings) GetFixedIPTimeout() time.Duration     { return time.Minute }
func (settings) IPv4() ipam.NodeAddressingFamily      { return podCIDR("10.1.5.0/24") }
func (settings) IPv6() ipam.NodeAddressingFamily      { return podCIDR("fd00::/120") }

// podCIDR is the pod CIDR of one family.
type podCIDR string

func (c podCIDR) AllocationCIDR() *ipam.CIDR { return ipam.NewCIDR(netip.MustParsePrefix(string(c))) }

// An address for a pod that must be confirmed within ten minutes. The ledger is in
// memory; Deps.Ledger takes one that keeps its leases.
func Example() {
	m, err := ipam.New(context.Background(), ipam.Deps{Config: settings{}, Node: settings{}})
	if err != nil {
		log.Fatal(err)
	}
	v4, v6, err := m.AllocateNextWithExpiration("", "default/web", 10*time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v4.IP, v6.IP)
	for _, r := range []*ipam.AllocationResult{v4, v6} { // the pod runs
		if err := m.StopExpirationTimer(r.IP, r.ExpirationUUID); err != nil {
			log.Fatal(err)
		}
	}
	_, _, status := m.Dump()
	fmt.Println(status)
	if err := m.ReleaseIPString("default/web"); err != nil { // the pod was deleted
		log.Fatal(err)
	}
	// Output:
	// 10.1.5.1 fd00::1
	// IPv4: 1/254 allocated from 10.1.5.0/24, IPv6: 1/254 allocated from fd00::/120
}
