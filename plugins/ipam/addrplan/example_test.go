// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrplan_test

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// Node ID 5 with the default networks.
func ExampleFamily_Node() {
	family := addrplan.Family{
		Pods:         netip.MustParsePrefix("10.1.0.0/16"),
		PodsOneNode:  24,
		Hosts:        netip.MustParsePrefix("172.30.0.0/16"),
		HostsOneNode: 24,
		Nodes:        netip.MustParsePrefix("192.168.16.0/24"),
		Vxlan:        netip.MustParsePrefix("192.168.30.0/24"),
	}
	n, err := family.Node(5)
	if err != nil {
		panic(err)
	}
	fmt.Println("pods", n.PodSubnet, "gateway", n.PodGateway, "NAT loopback", n.NatLoopback)
	fmt.Println("pod addresses", n.FirstPod, "to", n.LastPod)
	fmt.Println("VPP-host", n.HostSubnet, "VPP end", n.HostVPP, "Linux end", n.HostLinux)
	fmt.Println("node", n.NodeIP, "VXLAN", n.VxlanIP)
	// Output:
	// pods 10.1.5.0/24 gateway 10.1.5.1 NAT loopback 10.1.5.254
	// pod addresses 10.1.5.2 to 10.1.5.253
	// VPP-host 172.30.5.0/24 VPP end 172.30.5.1 Linux end 172.30.5.2
	// node 192.168.16.5/24 VXLAN 192.168.30.5/24
}
