// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is that of all objects here, Version theirs.
const (
	Group   = "cadastre.dev"
	Version = "v1alpha1"
)

// Resources, as the API server names them in its paths.
const (
	CustomNetworks = "customnetworks"
	NodeConfigs    = "nodeconfigs"
	NodeIDs        = "nodeids"
	NodeNames      = "nodenames"
	NodeBeats      = "nodebeats"
	Pools          = "pools"
	PoolChanges    = "poolchanges"
	PrefixClaims   = "prefixclaims"
	ClusterChecks  = "clusterchecks"

	NetResourceSets = "netresourcesets"
	AddressPools    = "addresspools"
)

// GroupVersion returns the apiVersion of the objects.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// Resource returns the API server's resource for the objects of a kind.
func Resource(name string) schema.GroupVersionResource { return GroupVersion().WithResource(name) }

// AddToScheme makes the objects known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(
		GroupVersion(),
		&CustomNetwork{},
		&CustomNetworkList{},
		&NodeConfig{},
		&NodeConfigList{},
		&NodeID{},
		&NodeIDList{},
		&NodeName{},
		&NodeNameList{},
		&NodeBeat{},
		&NodeBeatList{},
		&Pool{},
		&PoolList{},
		&PoolChange{},
		&PoolChangeList{},
		&PrefixClaim{},
		&PrefixClaimList{},
		&ClusterCheck{},
		&ClusterCheckList{},
		&NetResourceSet{},
		&NetResourceSetList{},
		&AddressPool{},
		&AddressPoolList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
