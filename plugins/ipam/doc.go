// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the IPAM plugin: it derives this node's subnets from its node
// ID (or takes them from somebody else who decides), hands them to the ledger
// as blocks, and claims and releases the addresses of pods.
//
// The handler methods are called from the loop. The methods of API may be
// called from anywhere: what was derived is an immutable snapshot, leases are
// the ledger's. AllocatePodIP and ReleasePodIP are durable when they return. In
// AddPod and DeletePod the plugin only stages; the loop commits, and what an
// event took is given back when it is reverted, never more.
//
// A resync applies what is known as a difference. It forgets no lease: blocks
// that are no longer this node's drain, and an address of ours that somebody
// uses without a lease is quarantined.
//
// Example, node ID 5 with the default configuration:
//
//	PodSubnetThisNode()  10.1.5.0/24      PodGatewayIP()  10.1.5.1
//	pods                 10.1.5.2 - 10.1.5.253
//	NatLoopbackIP()      10.1.5.254       (the one before the broadcast address)
//	HostInterconnectIPInVPP()  172.30.5.1       HostInterconnectIPInLinux()  172.30.5.2
//	NodeIPAddress(5)     192.168.16.5/24  VxlanIPAddress(5)  192.168.30.5/24
package ipam
