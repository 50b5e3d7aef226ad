// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// One key is enough for the default cluster.
func ExampleParse() {
	cfg, _, err := contivconf.Parse([]byte("ipamConfig: {podSubnetCIDR: 10.1.0.0/16}"))
	if err != nil {
		panic(err)
	}
	plan, err := contivconf.NewPlugin(cfg).Cluster().Node(5)
	if err != nil {
		panic(err)
	}
	fmt.Println("pods", plan[0].PodSubnet, "gateway", plan[0].PodGateway, "NAT loopback", plan[0].NatLoopback)
	fmt.Println("VPP-host", plan[0].HostVPP, plan[0].HostLinux)
	fmt.Println("node", plan[0].NodeIP, "VXLAN", plan[0].VxlanIP)
	// Output:
	// pods 10.1.5.0/24 gateway 10.1.5.1 NAT loopback 10.1.5.254
	// VPP-host 172.30.5.1 172.30.5.2
	// node 192.168.16.5/24 VXLAN 192.168.30.5/24
}

// Parse reports all problems of a file at once.
func ExampleParse_problems() {
	_, _, err := contivconf.Parse([]byte(`
ipamConfig:
  podSubnetCIRD: 10.1.0.0/16
  serviceCIDR: 10.96.0.1/12
`))
	var problems yamldoc.Problems
	if errors.As(err, &problems) {
		for _, p := range problems {
			fmt.Printf("%s | %s | %s\n", p.Field, p.Value, p.Text)
		}
	}
	// Output:
	// ipamConfig.podSubnetCIRD |  | unknown key; the nearest known one is "ipamConfig.podSubnetCIDR"
	// ipamConfig.serviceCIDR | 10.96.0.1/12 | has host bits set: write 10.96.0.0/12
}
