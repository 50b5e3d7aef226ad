// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"net/netip"

	"github.com/cadastre/cadastre/controller"
)

// Dispatched is the answer to a POST of PathDispatch, a JSON string.
const Dispatched = "Resync request was successfully dispatched."

// ContivRecord represents an event of PathEventHistory with the keys and types of
// Contiv-VPP. The errors there are of a type that JSON does not decode: they are null
// here, and their texts have keys of their own, as Contiv-VPP has it for handlers.
type ContivRecord struct {
	controller.Record
	Method   int // 0: full resync, 1: upstream, 2: downstream, 3: update
	Handlers []ContivHandler
	TxnError *struct{} // null
	Txn      *struct{} // null: a record of Contiv-VPP's scheduler

	TxnErrorStr string   `json:",omitempty"`
	TxnValues   []string // of the southbound transaction
}

// ContivHandler represents the result of one handler.
type ContivHandler struct {
	controller.HandlerRecord
	Error    *struct{} // null
	ErrorStr string    `json:",omitempty"`
}

// ContivIPAM is the node's part of the address plan, with the keys of
// Contiv-VPP. What is absent is "": a zero address or prefix is written so.
// The plurals are for dual stack and are left out of everything else; the
// singulars are of the first family.
type ContivIPAM struct {
	NodeID             uint32           `json:"nodeId"`
	NodeName           string           `json:"nodeName"`
	NodeIP             netip.Addr       `json:"nodeIP"`
	PodSubnetThisNode  netip.Prefix     `json:"podSubnetThisNode"`
	VPPHostNetwork     netip.Prefix     `json:"vppHostNetwork"`
	NodeIPs            []netip.Addr     `json:"nodeIPs,omitempty"`
	PodSubnetsThisNode []netip.Prefix   `json:"podSubnetsThisNode,omitempty"`
	VPPHostNetworks    []netip.Prefix   `json:"vppHostNetworks,omitempty"`
	Config             ContivIPAMConfig `json:"config"`
}

// ContivIPAMConfig is ipamConfig of contiv.conf as it is in force, with its
// keys and their types. In dual stack a network is "v4,v6" or "v6,v4".
type ContivIPAMConfig struct {
	UseExternalIPAM                   bool   `json:"useExternalIPAM"`
	ContivCIDR                        string `json:"contivCIDR"`
	ServiceCIDR                       string `json:"serviceCIDR"`
	NodeInterconnectDHCP              bool   `json:"nodeInterconnectDHCP"`
	NodeInterconnectCIDR              string `json:"nodeInterconnectCIDR"`
	PodSubnetCIDR                     string `json:"podSubnetCIDR"`
	PodSubnetOneNodePrefixLen         uint8  `json:"podSubnetOneNodePrefixLen"`
	PodSubnetOneNodePrefixLenIPv6     uint8  `json:"podSubnetOneNodePrefixLenIPv6,omitempty"` // of the other family
	VPPHostSubnetCIDR                 string `json:"vppHostSubnetCIDR"`
	VPPHostSubnetOneNodePrefixLen     uint8  `json:"vppHostSubnetOneNodePrefixLen"`
	VPPHostSubnetOneNodePrefixLenIPv6 uint8  `json:"vppHostSubnetOneNodePrefixLenIPv6,omitempty"`
	VxlanCIDR                         string `json:"vxlanCIDR"`
	DefaultGateway                    string `json:"defaultGateway"`
}

// ContivAllocations are the addresses of this node's pods.
type ContivAllocations struct {
	Pods []ContivAllocation
}

// ContivAllocation are those of one pod. A custom interface is "ifName/network".
type ContivAllocation struct {
	PodID       ContivPodID
	MainIP      netip.Addr            // of the first family; "" where the pod has custom interfaces only
	MainIPs     []netip.Addr          `json:",omitempty"` // dual stack: of each family
	CustomIfIPs map[string]netip.Addr // of the first family
	// CustomIfAllIPs are those of each family, where one has several.
	CustomIfAllIPs map[string][]netip.Addr `json:",omitempty"`
}

// ContivPodID is the name of a pod.
type ContivPodID struct {
	Name      string
	Namespace string
}
