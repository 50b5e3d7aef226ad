// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Parts of the cluster store. Every node reads the keys below ClusterPrefix. Only the
// node of a name reads the keys below its NodePrefix. Beats are read when a node ID is
// claimed or released.
const (
	ClusterPrefix = "cluster/"
	nodesPrefix   = "node/"
	BeatPrefix    = "beat/"
	namePrefix    = "name/"
)

// Prefixes of the resources that all nodes share.
const (
	NodeRecordPrefix    = ClusterPrefix + "node-id/"
	KubeNodePrefix      = ClusterPrefix + "node/"
	PoolPrefix          = ClusterPrefix + "pool/"
	CustomNetworkPrefix = ClusterPrefix + "network/"
	PrefixClaimPrefix   = ClusterPrefix + "claim/"
)

// PoolsKey is written with every pool that is new, so that of two that share
// addresses and come at the same time the later one is refused.
const PoolsKey = ClusterPrefix + "pools"

// ClusterCheckKey is the key of the ClusterCheck. It is not below ClusterPrefix: no agent
// follows it.
const ClusterCheckKey = "check/cluster"

// MaxClusterCheck limits the bytes of a ClusterCheck.
const MaxClusterCheck = 256 << 10

// MaxBlockUses limits the blocks of a pool that a NodeBeat counts.
const MaxBlockUses = 64

// MaxDockerSubnets limits the subnets of Docker in a NodeBeat.
const MaxDockerSubnets = 64

// Resources, as controller.KubeStateData names them.
const (
	NodeRecordResource     = "noderecord"     // *NodeRecord
	NodeResource           = "node"           // *Node
	PoolResource           = "pool"           // *Pool
	CustomNetworkResource  = "customnetwork"  // *CustomNetwork
	PodResource            = "pod"            // *Pod
	NodeConfigResource     = "nodeconfig"     // *NodeConfig
	NetResourceSetResource = "netresourceset" // *NetResourceSet
	PrefixClaimResource    = "prefixclaim"    // *PrefixClaim
)

// Resource is one kind of message and where it is stored.
type Resource struct {
	Name    string
	oneNode bool   // stored below NodePrefix of the node that it is of
	Prefix  string // what keys begin with, behind NodePrefix if oneNode
	New     func() proto.Message
}

// Resources are all kinds of the cluster's state. Reflector, mirror and
// handlers know of a kind by its entry here and nothing else.
func Resources() []Resource {
	return []Resource{
		{NodeRecordResource, false, NodeRecordPrefix, func() proto.Message { return &NodeRecord{} }},
		{NodeResource, false, KubeNodePrefix, func() proto.Message { return &Node{} }},
		{PoolResource, false, PoolPrefix, func() proto.Message { return &Pool{} }},
		{CustomNetworkResource, false, CustomNetworkPrefix, func() proto.Message { return &CustomNetwork{} }},
		{PrefixClaimResource, false, PrefixClaimPrefix, func() proto.Message { return &PrefixClaim{} }},
		{PodResource, true, "pod/", func() proto.Message { return &Pod{} }},
		{NodeConfigResource, true, "config", func() proto.Message { return &NodeConfig{} }},
		{NetResourceSetResource, true, "netresourceset", func() proto.Message { return &NetResourceSet{} }},
	}
}

// ResourceOf is the kind that is stored at key.
func ResourceOf(key string) (Resource, bool) {
	node, isNode := strings.CutPrefix(key, nodesPrefix)
	if isNode {
		_, key, isNode = strings.Cut(node, "/")
	}
	for _, r := range Resources() {
		if r.oneNode == isNode && strings.HasPrefix(key, r.Prefix) {
			return r, true
		}
	}
	return Resource{}, false
}

// External is the key of the southbound that a key of the store configures.
func External(key string) (sinkKey string, ok bool) {
	node, ok := strings.CutPrefix(key, nodesPrefix)
	if !ok {
		return "", false
	}
	_, rest, _ := strings.Cut(node, "/")
	return strings.CutPrefix(rest, "external/")
}

// ExternalKey returns the key of the configuration of a node's southbound key.
func ExternalKey(node, sinkKey string) string { return NodePrefix(node) + "external/" + sinkKey }

// Keys of the southbound transaction.
const (
	SinkPodPrefix     = "pod/"           // *PodNetwork
	SinkRoutePrefix   = "route/"         // *NodeRoute
	SinkTunnelPrefix  = "tunnel/"        // *NodeTunnel
	SinkNetworkPrefix = "network/"       // *Network
	SinkLinkPrefix    = "link/"          // *NetworkLink
	SinkUplinkPrefix  = "uplink/"        // *Uplink, by the provider's ID of the interface
	SinkSourcePrefix  = "uplinkaddress/" // *UplinkAddress
	SinkEgress        = "egress"         // *Egress
	SinkNode          = "node"           // *NodeNetwork
)

// SinkRouteKey returns the key of a NodeRoute: route/<dst>, or route/<table>/<dst> in the
// table of a custom network, whose subnets may be those of another network too.
func SinkRouteKey(dst string, table uint32) string {
	if table == 0 {
		return SinkRoutePrefix + dst
	}
	return SinkRoutePrefix + strconv.FormatUint(uint64(table), 10) + "/" + dst
}

// SinkTunnelKey returns the key of a NodeTunnel: tunnel/<id>, or tunnel/<id>/<network>
// through the link of a network.
func SinkTunnelKey(nodeID uint32, network string) string {
	key := SinkTunnelPrefix + strconv.FormatUint(uint64(nodeID), 10)
	if network != "" {
		key += "/" + network
	}
	return key
}

// SinkMessage is an empty message of the kind that a southbound key has, nil
// for none.
func SinkMessage(sinkKey string) proto.Message {
	switch {
	case sinkKey == SinkNode:
		return &NodeNetwork{}
	case strings.HasPrefix(sinkKey, SinkPodPrefix):
		return &PodNetwork{}
	case strings.HasPrefix(sinkKey, SinkRoutePrefix):
		return &NodeRoute{}
	case strings.HasPrefix(sinkKey, SinkTunnelPrefix):
		return &NodeTunnel{}
	case strings.HasPrefix(sinkKey, SinkNetworkPrefix):
		return &Network{}
	case strings.HasPrefix(sinkKey, SinkLinkPrefix):
		return &NetworkLink{}
	case strings.HasPrefix(sinkKey, SinkUplinkPrefix):
		return &Uplink{}
	case strings.HasPrefix(sinkKey, SinkSourcePrefix):
		return &UplinkAddress{}
	case sinkKey == SinkEgress:
		return &Egress{}
	}
	return nil
}

// PodID names a pod.
type PodID struct {
	Name      string
	Namespace string
}

// String is "namespace/name", or "" where there is no name.
func (id PodID) String() string {
	if id.Name == "" {
		return ""
	}
	return id.Namespace + "/" + id.Name
}

// NodePrefix returns the prefix of the keys for one node only.
func NodePrefix(node string) string { return nodesPrefix + node + "/" }

// PodPrefix returns the prefix of the keys of a node's pods.
func PodPrefix(node string) string { return NodePrefix(node) + "pod/" }

// PodKey returns the key of a Pod of a node.
func PodKey(node string, id PodID) string { return PodPrefix(node) + id.Namespace + "/" + id.Name }

// NodeConfigKey returns the key of the NodeConfig of a node.
func NodeConfigKey(node string) string { return NodePrefix(node) + "config" }

// NetResourceSetKey returns the key of the NetResourceSet of a node.
func NetResourceSetKey(node string) string { return NodePrefix(node) + "netresourceset" }

// NodeKey returns the key of a Node.
func NodeKey(name string) string { return KubeNodePrefix + name }

// NodeRecordKey returns the key of a NodeRecord.
func NodeRecordKey(id uint32) string { return NodeRecordPrefix + strconv.FormatUint(uint64(id), 10) }

// NodeRecordID returns the node ID whose record is stored at key, 0 if key is not
// one of a node record.
func NodeRecordID(key string) uint32 {
	text, ok := strings.CutPrefix(key, NodeRecordPrefix)
	id, err := strconv.ParseUint(text, 10, 32)
	if !ok || err != nil || NodeRecordKey(uint32(id)) != key {
		return 0
	}
	return uint32(id)
}

// NodeNameKey returns the key of a NodeName.
func NodeNameKey(name string) string { return namePrefix + name }

// BeatKey returns the key of a NodeBeat.
func BeatKey(id uint32) string { return BeatPrefix + strconv.FormatUint(uint64(id), 10) }

// PoolKey returns the key of a Pool.
func PoolKey(name string) string { return PoolPrefix + name }

// CustomNetworkKey returns the key of a CustomNetwork.
func CustomNetworkKey(name string) string { return CustomNetworkPrefix + name }
