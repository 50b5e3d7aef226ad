// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
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

// interfaces is the configuration of a node whose addresses are those of its interfaces.
type interfaces struct{ settings }

func (interfaces) IPv6Enabled() bool { return false }
func (interfaces) IPAMMode() string  { return "vpc-eni" }
func (interfaces) GetDeviceMTU() int { return 1500 }

// An address of the node's NetResourceSet, with its interface. The store is in memory; in a
// cluster it is that of plugins/kubestate/apistore, and the operator fills the set.
func ExampleNewSource() {
	ctx, store := context.Background(), mem.New()
	defer func() { _ = store.Close() }()
	set, err := proto.Marshal(&kv.NetResourceSet{
		Name: "node-a",
		Pool: map[string]*kv.NetResource{"10.0.0.7": {Resource: "eni-1"}},
		Interfaces: map[string]*kv.NetResourceInterface{"eni-1": {
			Mac:    "02:00:00:00:00:01",
			Ranges: []*kv.SubnetRange{{Cidr: "10.0.0.0/24", Gateway: "10.0.0.1"}},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	key := kv.NetResourceSetKey("node-a")
	if _, err := store.Txn(ctx, nil, []kvdb.Op{kvdb.Put(key, set)}); err != nil {
		log.Fatal(err)
	}
	source, err := ipam.NewSource(ctx, ipam.SourceDeps{Store: store, Node: "node-a"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	m := ipam.NewIPAM("node-a", settings{}, interfaces{}, source, source, interfaces{})
	m.RestoreFinished()
	r, _, err := m.AllocateNext("", "default/web")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.IP, r.InterfaceNumber, r.PrimaryMAC, r.CIDRs, r.GatewayIP)
	// Output:
	// 10.0.0.7 eni-1 02:00:00:00:00:01 [10.0.0.0/24] 10.0.0.1
}
