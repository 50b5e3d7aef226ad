// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// NodeID names the holder of the node ID that is its name. Agents write it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[1-9][0-9]{0,9}$')",message="the name of a NodeID is a number from 1 on"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.ipAddresses`
// +kubebuilder:printcolumn:name="Pod CIDRs",type=string,JSONPath=`.spec.podCIDRs`,priority=1
// +kubebuilder:printcolumn:name="Generation",type=integer,JSONPath=`.spec.generation`,priority=1
// +kubebuilder:printcolumn:name="Released",type=string,JSONPath=`.spec.released`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeID struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeIDSpec `json:"spec"`
}

// NodeIDSpec is kv.NodeRecord. Times are RFC 3339 with nanoseconds, "" for never.
type NodeIDSpec struct {
	NodeName string `json:"nodeName"`
	// Instance is the UUID of the node's state directory.
	Instance string `json:"instance"`
	// Generation is raised each time the ID changes hands.
	//
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation"`
	// +optional
	IPAddresses []string `json:"ipAddresses,omitempty"`
	// +optional
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// +optional
	MgmtAddresses []string `json:"mgmtAddresses,omitempty"`
	// +optional
	NodeUID string `json:"nodeUID,omitempty"`
	// Released is the time at which the ID was released; empty while it is held.
	//
	// +optional
	Released string `json:"released,omitempty"`
	// Clean reports that no address of the ID was in use when it was released.
	//
	// +optional
	Clean bool `json:"clean,omitempty"`
	// SupersededBy is the ID that another instance of this name has claimed since.
	//
	// +kubebuilder:validation:Format=int64
	// +optional
	SupersededBy uint32 `json:"supersededBy,omitempty"`
	// ExplicitBlocks says that the pod blocks of the node have PrefixClaims of
	// their own, and that none follows from the ID.
	//
	// +optional
	ExplicitBlocks bool `json:"explicitBlocks,omitempty"`
	// QuarantinedUntil is set while the node allocates nothing, because the ID was
	// claimed when the store was new or wiped: a node that held it before takes it back.
	//
	// +optional
	QuarantinedUntil string `json:"quarantinedUntil,omitempty"`
	// Underlay holds the addresses by which other nodes reach this one, one of each
	// family at most.
	//
	// +optional
	Underlay []string `json:"underlay,omitempty"`
	// PublicKey is that of the node's WireGuard tunnel, in base64.
	//
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
}

// NodeIDList holds the answer to a list.
//
// +kubebuilder:object:root=true
type NodeIDList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeID `json:"items"`
}

// ToKV is the record in the words of package kv.
func (n *NodeID) ToKV() (*kv.NodeRecord, error) {
	id, err := idOf("NodeID", n.Name)
	if err != nil {
		return nil, err
	}
	released, err := nanos(n.Spec.Released)
	if err != nil {
		return nil, fmt.Errorf("NodeID %s: spec.released: %w", n.Name, err)
	}
	quarantined, err := nanos(n.Spec.QuarantinedUntil)
	if err != nil {
		return nil, fmt.Errorf("NodeID %s: spec.quarantinedUntil: %w", n.Name, err)
	}
	return &kv.NodeRecord{
		Id:               id,
		Name:             n.Spec.NodeName,
		Instance:         n.Spec.Instance,
		Generation:       uint64(n.Spec.Generation),
		IpAddresses:      n.Spec.IPAddresses,
		NodeUid:          n.Spec.NodeUID,
		Released:         released,
		Clean:            n.Spec.Clean,
		SupersededBy:     n.Spec.SupersededBy,
		PodCidrs:         n.Spec.PodCIDRs,
		MgmtAddresses:    n.Spec.MgmtAddresses,
		ExplicitBlocks:   n.Spec.ExplicitBlocks,
		QuarantinedUntil: quarantined,
		Underlay:         n.Spec.Underlay,
		PublicKey:        n.Spec.PublicKey,
	}, nil
}

// NodeIDFrom is the object of a record.
func NodeIDFrom(r *kv.NodeRecord) *NodeID {
	n := &NodeID{Spec: NodeIDSpec{
		NodeName:         r.Name,
		Instance:         r.Instance,
		Generation:       int64(r.Generation),
		IPAddresses:      r.IpAddresses,
		PodCIDRs:         r.PodCidrs,
		MgmtAddresses:    r.MgmtAddresses,
		NodeUID:          r.NodeUid,
		Released:         text(r.Released),
		Clean:            r.Clean,
		SupersededBy:     r.SupersededBy,
		ExplicitBlocks:   r.ExplicitBlocks,
		QuarantinedUntil: text(r.QuarantinedUntil),
		Underlay:         r.Underlay,
		PublicKey:        r.PublicKey,
	}}
	n.Name = strconv.FormatUint(uint64(r.Id), 10)
	return n
}

// idOf is the node ID that is an object's name.
func idOf(kind, name string) (uint32, error) {
	id, err := strconv.ParseUint(name, 10, 32)
	if err != nil || id == 0 || strconv.FormatUint(id, 10) != name {
		return 0, fmt.Errorf("%s %q: its name must be a node ID, a number from 1 to 4294967295", kind, name)
	}
	return uint32(id), nil
}

// text is a Unix time in nanoseconds as people read it, "" for 0.
func text(at int64) string {
	if at == 0 {
		return ""
	}
	return time.Unix(0, at).UTC().Format(time.RFC3339Nano)
}

// nanos is the reverse of text.
func nanos(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, fmt.Errorf("%q must be a time like 2006-01-02T15:04:05.999999999Z: %w", text, err)
	}
	return t.UnixNano(), nil
}
