// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// PrefixClaim is the right of a node to a prefix that does not follow from its
// node ID: a podCIDR, a static block, a pinned node address. Agents write it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network`
// +kubebuilder:printcolumn:name="Prefix",type=string,JSONPath=`.spec.prefix`
// +kubebuilder:printcolumn:name="Held",type=boolean,JSONPath=`.spec.held`
// +kubebuilder:printcolumn:name="Since",type=string,JSONPath=`.spec.since`
// +kubebuilder:printcolumn:name="Ends",type=string,JSONPath=`.spec.ends`
type PrefixClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PrefixClaimSpec `json:"spec"`
}

// PrefixClaimSpec is kv.PrefixClaim. Times are RFC 3339 with nanoseconds, "" for never.
type PrefixClaimSpec struct {
	Network  string `json:"network"`
	Prefix   string `json:"prefix"`
	NodeName string `json:"nodeName"`
	// NodeID is the ID whose NodeBeat says that the holder is alive.
	//
	// +kubebuilder:validation:Format=int64
	NodeID   uint32 `json:"nodeID"`
	Instance string `json:"instance"`
	// +optional
	NodeUID string `json:"nodeUID,omitempty"`
	// Held is false while the claim is pending: it allows nothing then.
	//
	// +optional
	Held bool `json:"held,omitempty"`
	// Since holds the time when the claim was asked for, or held.
	Since string `json:"since"`
	// Ends holds the time when the claim of a released node ends.
	//
	// +optional
	Ends string `json:"ends,omitempty"`
}

// PrefixClaimList is the answer to a list request.
//
// +kubebuilder:object:root=true
type PrefixClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PrefixClaim `json:"items"`
}

// ToKV returns the claim as the stores have it. It fails if the object's name is
// not the one that network, prefix and node give.
func (c *PrefixClaim) ToKV() (*kv.PrefixClaim, error) {
	prefix, err := netip.ParsePrefix(c.Spec.Prefix)
	if err != nil {
		return nil, fmt.Errorf(
			"PrefixClaim %s: spec.prefix %q: want a prefix, such as 10.1.77.0/24: %w",
			c.Name,
			c.Spec.Prefix,
			err,
		)
	}
	if want := kv.PrefixClaimName(c.Spec.Network, prefix, c.Spec.NodeName); c.Name != want {
		return nil, fmt.Errorf("PrefixClaim %s: network, prefix and node give the name %s", c.Name, want)
	}
	since, err := nanos(c.Spec.Since)
	if err != nil {
		return nil, fmt.Errorf("PrefixClaim %s: spec.since: %w", c.Name, err)
	}
	ends, err := nanos(c.Spec.Ends)
	if err != nil {
		return nil, fmt.Errorf("PrefixClaim %s: spec.ends: %w", c.Name, err)
	}
	return &kv.PrefixClaim{
		Network:  c.Spec.Network,
		Prefix:   c.Spec.Prefix,
		Node:     c.Spec.NodeName,
		NodeId:   c.Spec.NodeID,
		Instance: c.Spec.Instance,
		NodeUid:  c.Spec.NodeUID,
		Held:     c.Spec.Held,
		Since:    since,
		Ends:     ends,
	}, nil
}

// PrefixClaimFrom returns the object of a claim.
func PrefixClaimFrom(m *kv.PrefixClaim) (*PrefixClaim, error) {
	prefix, err := netip.ParsePrefix(m.Prefix)
	if err != nil {
		return nil, fmt.Errorf(
			"claim of node %s: prefix %q: want a prefix, such as 10.1.77.0/24: %w",
			m.Node,
			m.Prefix,
			err,
		)
	}
	c := &PrefixClaim{Spec: PrefixClaimSpec{
		Network:  m.Network,
		Prefix:   m.Prefix,
		NodeName: m.Node,
		NodeID:   m.NodeId,
		Instance: m.Instance,
		NodeUID:  m.NodeUid,
		Held:     m.Held,
		Since:    text(m.Since),
		Ends:     text(m.Ends),
	}}
	c.Name = kv.PrefixClaimName(m.Network, prefix, m.Node)
	return c, nil
}
