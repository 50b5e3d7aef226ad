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

// NodeBeat holds the time at which the holder of the node ID that is its name was last
// alive. It is apart from NodeID because it has no watchers. Agents write it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[1-9][0-9]{0,9}$')",message="the name of a NodeBeat is a number from 1 on"
// +kubebuilder:printcolumn:name="At",type=string,JSONPath=`.spec.at`
// +kubebuilder:printcolumn:name="Stopped",type=boolean,JSONPath=`.spec.stopped`
type NodeBeat struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeBeatSpec `json:"spec"`
}

// NodeBeatSpec is kv.NodeBeat.
type NodeBeatSpec struct {
	Instance   string `json:"instance"`
	Generation int64  `json:"generation"`
	Session    string `json:"session"`
	At         string `json:"at"`
	// +optional
	Stopped bool `json:"stopped,omitempty"`
	// +optional
	Pools []PoolUse `json:"pools,omitempty"`
	// ProductUUID is the DMI product UUID of the machine, where it is known.
	// +optional
	ProductUUID string `json:"productUUID,omitempty"`
	// BootID identifies the present boot of the machine.
	// +optional
	BootID string `json:"bootID,omitempty"`
	// Expire limits how long after this beat its agent may allocate without the store.
	//
	// +optional
	Expire metav1.Duration `json:"expire,omitempty"`
	// NodeName is the node that was there, "" in beats of agents before this field.
	//
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// DockerSubnets are those of Docker's networks on the node, apart from parts of the
	// pod network.
	//
	// +kubebuilder:validation:MaxItems=64
	// +optional
	DockerSubnets []string `json:"dockerSubnets,omitempty"`
	// DockerSubnetsMore is the number of further ones.
	//
	// +kubebuilder:validation:Format=int64
	// +optional
	DockerSubnetsMore uint32 `json:"dockerSubnetsMore,omitempty"`
}

// PoolUse holds a node's part of a pool.
type PoolUse struct {
	Pool       string `json:"pool"`
	Generation int64  `json:"generation"`
	// +optional
	Open bool `json:"open,omitempty"`
	// +optional
	Leases int64 `json:"leases,omitempty"`
	// Blocks are those of the pool on the node; none: the agent does not report them.
	//
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Blocks []BlockUse `json:"blocks,omitempty"`
}

// BlockUse counts the leases of one block of a node.
type BlockUse struct {
	Prefix string `json:"prefix"`
	// +optional
	Leases int64 `json:"leases,omitempty"`
	// Draining blocks allocate no new addresses.
	//
	// +optional
	Draining bool `json:"draining,omitempty"`
	// Reserved counts the addresses that no pod can have: the first, the last and the node's own.
	//
	// +optional
	Reserved int64 `json:"reserved,omitempty"`
}

// NodeBeatList holds the answer to a list.
//
// +kubebuilder:object:root=true
type NodeBeatList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeBeat `json:"items"`
}

// ToKV is the beat in the words of package kv.
func (b *NodeBeat) ToKV() (*kv.NodeBeat, error) {
	id, err := idOf("NodeBeat", b.Name)
	if err != nil {
		return nil, err
	}
	at, err := nanos(b.Spec.At)
	if err != nil {
		return nil, fmt.Errorf("NodeBeat %s: spec.at: %w", b.Name, err)
	}
	m := &kv.NodeBeat{
		Id:          id,
		Instance:    b.Spec.Instance,
		Generation:  uint64(b.Spec.Generation),
		Session:     b.Spec.Session,
		At:          at,
		Stopped:     b.Spec.Stopped,
		ProductUuid: b.Spec.ProductUUID,
		BootId:      b.Spec.BootID,
		NodeName:    b.Spec.NodeName,
		Expire:      int64(b.Spec.Expire.Duration),

		DockerSubnets:     b.Spec.DockerSubnets,
		DockerSubnetsMore: b.Spec.DockerSubnetsMore,
	}
	for _, u := range b.Spec.Pools {
		use := &kv.PoolUse{Pool: u.Pool, Generation: uint64(u.Generation), Open: u.Open, Leases: uint64(u.Leases)}
		for _, b := range u.Blocks {
			x := &kv.BlockUse{
				Prefix: b.Prefix, Leases: uint64(b.Leases), Draining: b.Draining, Reserved: uint64(b.Reserved),
			}
			use.Blocks = append(use.Blocks, x)
		}
		m.Pools = append(m.Pools, use)
	}
	return m, nil
}

// NodeBeatFrom is the object of a beat.
func NodeBeatFrom(m *kv.NodeBeat) *NodeBeat {
	b := &NodeBeat{Spec: NodeBeatSpec{
		Instance: m.Instance, Generation: int64(m.Generation), Session: m.Session, At: text(m.At), Stopped: m.Stopped,
		ProductUUID: m.ProductUuid, BootID: m.BootId,
		NodeName: m.NodeName, Expire: metav1.Duration{Duration: time.Duration(m.Expire)},
		DockerSubnets: m.DockerSubnets, DockerSubnetsMore: m.DockerSubnetsMore,
	}}
	b.Name = strconv.FormatUint(uint64(m.Id), 10)
	for _, u := range m.Pools {
		use := PoolUse{Pool: u.Pool, Generation: int64(u.Generation), Open: u.Open, Leases: int64(u.Leases)}
		for _, x := range u.Blocks {
			use.Blocks = append(use.Blocks, BlockUse{
				Prefix: x.Prefix, Leases: int64(x.Leases), Draining: x.Draining, Reserved: int64(x.Reserved),
			})
		}
		b.Spec.Pools = append(b.Spec.Pools, use)
	}
	return b
}
