// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import "time"

// rawConfig holds the values of the file as they are written; its fields are the keys.
// The tag conf:"unused" marks keys that are accepted because Contiv-VPP has them, and
// that change nothing; unusedNotes says what happens instead.
type rawConfig struct {
	vswitchKeys
	IPAM       rawIPAM      `json:"ipamConfig"`
	NodeConfig []NodeConfig `json:"nodeConfig"`
	Cadastre   rawCadastre  `json:"cadastre"`
}

type rawIPAM struct {
	UseExternalIPAM                   bool   `json:"useExternalIPAM"`
	ContivCIDR                        string `json:"contivCIDR"`
	ServiceCIDR                       string `json:"serviceCIDR"`
	NodeInterconnectDHCP              bool   `json:"nodeInterconnectDHCP"`
	NodeInterconnectCIDR              string `json:"nodeInterconnectCIDR"`
	DefaultGateway                    string `json:"defaultGateway"`
	PodSubnetCIDR                     string `json:"podSubnetCIDR"`
	PodSubnetOneNodePrefixLen         uint8  `json:"podSubnetOneNodePrefixLen"`
	PodSubnetOneNodePrefixLenIPv6     uint8  `json:"podSubnetOneNodePrefixLenIPv6"`
	VPPHostSubnetCIDR                 string `json:"vppHostSubnetCIDR"`
	VPPHostSubnetOneNodePrefixLen     uint8  `json:"vppHostSubnetOneNodePrefixLen"`
	VPPHostSubnetOneNodePrefixLenIPv6 uint8  `json:"vppHostSubnetOneNodePrefixLenIPv6"`
	VxlanCIDR                         string `json:"vxlanCIDR"`

	PodVPPSubnetCIDR string   `json:"podVPPSubnetCIDR" conf:"unused"`
	SRv6             srv6Keys `json:"srv6" conf:"unused"`
	MTUSize          uint32   `json:"mtuSize" conf:"unused"`
}

type rawCadastre struct {
	NodeID         uint32        `json:"nodeID"`
	InstanceID     string        `json:"instanceID"`
	PodBlocks      PodBlocks     `json:"podBlocks"`
	StaticPodCIDRs []string      `json:"staticPodCIDRs"`
	WaitForPodCIDR bool          `json:"waitForPodCIDR"`
	CoolDown       time.Duration `json:"coolDown"`
	AllowOverlap   []string      `json:"allowOverlap"`
	KVDB           KVDB          `json:"kvdb"`
	NetResource    NetResource   `json:"netResource"`
	Interfaces     Interfaces    `json:"interfaces"`
	NodeIDs        NodeIDs       `json:"nodeIDs"`
	Dataplane      Dataplane     `json:"dataplane"`
	Transport      Transport     `json:"transport"`
	Underlay       rawUnderlay   `json:"underlay"`
	MTU            int           `json:"mtu"`
	Masquerade     bool          `json:"masquerade"`
	AllowForward   bool          `json:"allowForward"`
	VNI            uint32        `json:"vni"`
	CNI            CNI           `json:"cni"`
	VPP            rawVPP        `json:"vpp"`
	REST           REST          `json:"rest"`
	Metrics        Metrics       `json:"metrics"`
	Log            Log           `json:"log"`
	Traces         Traces        `json:"traces"`
	Docker         Docker        `json:"docker"`
	Witnesses      Witnesses     `json:"witnesses"`
	Reclaim        Reclaim       `json:"reclaim"`
	Controller     Controller    `json:"controller"`
	History        History       `json:"history"`
}

type rawVPP struct {
	Socket    string `json:"socket"`
	Interface string `json:"interface"`
}

type rawUnderlay struct {
	Interface string   `json:"interface"`
	CIDRs     []string `json:"cidrs"`
}

// NodeConfig holds Contiv's settings for one node. Only a vswitch uses them, except the
// main interface's IP and natExternalTraffic.
type NodeConfig struct {
	NodeName           string              `json:"nodeName"`
	MainVPPInterface   MainInterfaceConfig `json:"mainVPPInterface"`
	OtherVPPInterfaces []InterfaceConfig   `json:"otherVPPInterfaces" conf:"unused"`
	StealInterface     string              `json:"stealInterface" conf:"unused"`
	Gateway            string              `json:"gateway" conf:"unused"`
	NatExternalTraffic bool                `json:"natExternalTraffic"`
}

// MainInterfaceConfig holds the interface by which other nodes reach this one. An IP
// replaces the one that follows from the node ID.
type MainInterfaceConfig struct {
	InterfaceName string `json:"interfaceName" conf:"unused"`
	IP            string `json:"ip"`
	UseDHCP       bool   `json:"useDHCP" conf:"unused"`
}

// InterfaceConfig holds one interface of a NodeConfig.
type InterfaceConfig struct {
	InterfaceName string `json:"interfaceName"`
	IP            string `json:"ip"`
	UseDHCP       bool   `json:"useDHCP"`
}

// Defaults of cadastre.nodeIDs.expire. There are enough node IDs, so the blocks that
// follow from them keep for a day. A controller soon assigns blocks to another node:
// Kubernetes gives up the pods of an unreachable node after 5 minutes
// (tolerationSeconds: 300).
const (
	expireDerived  = 24 * time.Hour
	expireAssigned = 5 * time.Minute
)

func defaultRaw() rawConfig {
	return rawConfig{
		IPAM: rawIPAM{
			ServiceCIDR:                       "10.96.0.0/12",
			NodeInterconnectCIDR:              "192.168.16.0/24",
			PodSubnetCIDR:                     "10.1.0.0/16",
			PodSubnetOneNodePrefixLen:         defaultLenIPv4,
			PodSubnetOneNodePrefixLenIPv6:     defaultLenIPv6,
			VPPHostSubnetCIDR:                 "172.30.0.0/16",
			VPPHostSubnetOneNodePrefixLen:     defaultLenIPv4,
			VPPHostSubnetOneNodePrefixLenIPv6: defaultLenIPv6,
			VxlanCIDR:                         "192.168.30.0/24",
		},
		Cadastre: rawCadastre{
			PodBlocks:      PodBlocksNodeID,
			WaitForPodCIDR: true,
			CoolDown:       time.Minute,
			KVDB:           KVDB{Type: KVDBBolt, Prefix: "/cadastre/"},
			Interfaces:     defaultInterfaces(),
			NodeIDs: NodeIDs{
				Refresh:    time.Minute,
				Fresh:      3 * time.Minute,
				Expire:     expireDerived,
				Quarantine: 3 * time.Minute,
			},
			Dataplane:  DataplaneNone,
			Transport:  TransportNone,
			Masquerade: true,
			VNI:        defaultVNI,
			CNI:        CNI{Network: "cadastre", BinDir: "/opt/cni/bin"},
			VPP:        rawVPP{Socket: defaultVPPSocket},
			Log:        Log{Level: LogInfo, Format: LogText},
			Traces:     defaultTraces(),
			Metrics:    Metrics{Listen: "127.0.0.1:10262"},
			Docker:     Docker{Socket: "/run/docker/plugins/cadastre.sock"},
			Witnesses:  defaultWitnesses(),
			Reclaim:    defaultReclaim(),
			Controller: defaultController(),
			History:    History{Entries: 50_000, Age: 30 * 24 * time.Hour},
		},
	}
}
