// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

// vswitchKeys holds the top-level keys of Contiv-VPP that configure its
// dataplane, in all its versions. formerKeys has their former names.
type vswitchKeys struct {
	// Interfaces.
	MTUSize                    uint32 `json:"mtuSize"`
	UseTAPInterfaces           bool   `json:"useTAPInterfaces" conf:"unused"`
	TAPInterfaceVersion        uint8  `json:"tapInterfaceVersion" conf:"unused"`
	TAPv2RxRingSize            uint16 `json:"tapv2RxRingSize" conf:"unused"`
	TAPv2TxRingSize            uint16 `json:"tapv2TxRingSize" conf:"unused"`
	Vmxnet3RxRingSize          uint16 `json:"vmxnet3RxRingSize" conf:"unused"`
	Vmxnet3TxRingSize          uint16 `json:"vmxnet3TxRingSize" conf:"unused"`
	InterfaceRxMode            string `json:"interfaceRxMode" conf:"unused"`
	TCPChecksumOffloadDisabled bool   `json:"tcpChecksumOffloadDisabled" conf:"unused"`
	EnableGSO                  bool   `json:"enableGSO" conf:"unused"`

	// Routing.
	MainVRFID                         uint32 `json:"mainVRFID"`
	PodVRFID                          uint32 `json:"podVRFID"`
	NodeToNodeTransport               string `json:"nodeToNodeTransport"`
	UseL2Interconnect                 bool   `json:"useL2Interconnect"`
	UseNoOverlay                      bool   `json:"useNoOverlay"`
	UseSRv6Interconnect               bool   `json:"useSRv6Interconnect"`
	UseSRv6ForServices                bool   `json:"useSRv6ForServices" conf:"unused"`
	UseSRv6ForServiceFunctionChaining bool   `json:"useSRv6ForServiceFunctionChaining" conf:"unused"`
	UseDX6ForSrv6NodetoNodeTransport  bool   `json:"useDX6ForSrv6NodetoNodeTransport" conf:"unused"`
	RouteServiceCIDRToVPP             bool   `json:"routeServiceCIDRToVPP" conf:"unused"`

	// Neighbour scan.
	ScanIPNeighbors          bool  `json:"scanIPNeighbors" conf:"unused"`
	IPNeighborScanInterval   uint8 `json:"ipNeighborScanInterval" conf:"unused"`
	IPNeighborStaleThreshold uint8 `json:"ipNeighborStaleThreshold" conf:"unused"`

	// Steal the NIC, and the rest.
	StealFirstNIC                bool   `json:"stealFirstNIC" conf:"unused"`
	StealInterface               string `json:"stealInterface" conf:"unused"`
	STNSocketFile                string `json:"stnSocketFile" conf:"unused"`
	STNVersion                   uint8  `json:"stnVersion" conf:"unused"`
	NatExternalTraffic           bool   `json:"natExternalTraffic"`
	EnablePacketTrace            bool   `json:"enablePacketTrace" conf:"unused"`
	CRDNodeConfigurationDisabled bool   `json:"crdNodeConfigurationDisabled" conf:"unused"`

	// Versions before 2.1.
	TCPStackDisabled            bool   `json:"tcpStackDisabled" conf:"unused"`
	CleanupIdleNATSessions      bool   `json:"cleanupIdleNATSessions" conf:"unused"`
	TCPNATSessionTimeout        uint32 `json:"tcpNATSessionTimeout" conf:"unused"`
	OtherNATSessionTimeout      uint32 `json:"otherNATSessionTimeout" conf:"unused"`
	DisableNATVirtualReassembly bool   `json:"disableNATVirtualReassembly" conf:"unused"`
	ServiceLocalEndpointWeight  uint8  `json:"serviceLocalEndpointWeight" conf:"unused"`
	CRDNodeConfigurationEnabled bool   `json:"crdNodeConfigurationEnabled" conf:"unused"`
	HealthCheckProbeInterval    uint32 `json:"healthCheckProbeInterval" conf:"unused"`
	HealthCheckReplyTimeout     uint32 `json:"healthCheckReplyTimeout" conf:"unused"`
	HealthCheckThreshold        uint32 `json:"healthCheckThreshold" conf:"unused"`
}

// srv6Keys holds the prefixes of segment IDs.
type srv6Keys struct {
	ServicePolicyBSIDSubnetCIDR            string `json:"servicePolicyBSIDSubnetCIDR"`
	ServicePodLocalSIDSubnetCIDR           string `json:"servicePodLocalSIDSubnetCIDR"`
	ServiceHostLocalSIDSubnetCIDR          string `json:"serviceHostLocalSIDSubnetCIDR"`
	ServiceNodeLocalSIDSubnetCIDR          string `json:"serviceNodeLocalSIDSubnetCIDR"`
	NodeToNodePodLocalSIDSubnetCIDR        string `json:"nodeToNodePodLocalSIDSubnetCIDR"`
	NodeToNodeHostLocalSIDSubnetCIDR       string `json:"nodeToNodeHostLocalSIDSubnetCIDR"`
	NodeToNodePodPolicySIDSubnetCIDR       string `json:"nodeToNodePodPolicySIDSubnetCIDR"`
	NodeToNodeHostPolicySIDSubnetCIDR      string `json:"nodeToNodeHostPolicySIDSubnetCIDR"`
	SFCPolicyBSIDSubnetCIDR                string `json:"sfcPolicyBSIDSubnetCIDR"`
	SFCServiceFunctionSIDSubnetCIDR        string `json:"sfcServiceFunctionSIDSubnetCIDR"`
	SFCEndLocalSIDSubnetCIDR               string `json:"sfcEndLocalSIDSubnetCIDR"`
	SFCIDLengthUsedInSidForServiceFunction uint8  `json:"sfcIDLengthUsedInSidForServiceFunction"`
	SFCIDLength                            uint8  `json:"sfcIDLength"`
}
