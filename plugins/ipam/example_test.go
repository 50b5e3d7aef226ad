// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// singleNode is a nodesync of a cluster of one node.
type singleNode struct{ id uint32 }

func (n singleNode) GetNodeID() uint32                   { return n.id }
func (n singleNode) GetAllNodes() nodesync.Nodes         { return nil }
func (n singleNode) PublishNodeIPs([]netip.Prefix) error { return nil }

// nodeName implements controller.AgentLabel.
type nodeName string

func (n nodeName) GetAgentLabel() string { return string(n) }

// A program that uses the plugin without an agent: it does the event loop's part, one
// resync and its commit, and then allocates an address for a pod. The ledger is in
// memory, because Deps.Ledger is nil.
func Example() {
	cfg, _, err := contivconf.Parse([]byte("ipamConfig: {podSubnetCIDR: 10.1.0.0/16}"))
	if err != nil {
		panic(err)
	}
	plugin := ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.ContivConf = contivconf.NewPlugin(cfg)
		d.NodeSync = singleNode{id: 5}
		d.ServiceLabel = nodeName("node-a")
	}))
	if err := plugin.Init(); err != nil {
		panic(err)
	}
	defer plugin.Close()
	if err := plugin.Resync(&controller.DBResync{}, controller.KubeStateData{}, 1, nil); err != nil {
		panic(err)
	}
	if err := plugin.Stage.Commit(context.Background()); err != nil {
		panic(err)
	}
	fmt.Println("pods", plugin.PodSubnetThisNode(), "gateway", plugin.PodGatewayIP())
	fmt.Println("NAT loopback", plugin.NatLoopbackIP())
	fmt.Println("VPP-host", plugin.HostInterconnectIPInVPP(), plugin.HostInterconnectIPInLinux())

	pod := kv.PodID{Namespace: "default", Name: "web"}
	address, err := plugin.AllocatePodIP(pod, "", "")
	if err != nil {
		panic(err)
	}
	fmt.Println("allocated", address, "has", plugin.GetPodIP(pod))
	if err := plugin.ReleasePodIP(pod); err != nil {
		panic(err)
	}
	fmt.Println("released", plugin.GetPodIP(pod) == nil)
	// Output:
	// pods 10.1.5.0/24 gateway 10.1.5.1
	// NAT loopback 10.1.5.254
	// VPP-host 172.30.5.1 172.30.5.2
	// allocated 10.1.5.2 has 10.1.5.2/32
	// released true
}
