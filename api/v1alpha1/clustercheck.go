// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// ClusterCheck holds the last comparison of the cluster's objects with each other. There
// is one, with the name ClusterCheckName. The operator that leads writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:printcolumn:name="Findings",type=integer,JSONPath=`.spec.total`
// +kubebuilder:printcolumn:name="At",type=string,JSONPath=`.spec.at`
// +kubebuilder:printcolumn:name="Instance",type=string,JSONPath=`.spec.instance`,priority=1
type ClusterCheck struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterCheckSpec `json:"spec"`
}

// ClusterCheckName is that of the one ClusterCheck.
const ClusterCheckName = "cluster"

// ClusterCheckSpec is kv.ClusterCheck. Times are RFC 3339 with nanoseconds.
type ClusterCheckSpec struct {
	// Instance is the process of the operator that wrote it.
	Instance string `json:"instance"`
	At       string `json:"at"`
	// Every is the longest time to the next comparison.
	Every metav1.Duration `json:"every"`
	// Total is the number of findings: more than Findings has if these are too large.
	//
	// +kubebuilder:validation:Minimum=0
	Total int64 `json:"total"`
	// +optional
	Findings []ClusterFinding `json:"findings,omitempty"`
	// Compared names the objects that were compared.
	//
	// +optional
	Compared []string `json:"compared,omitempty"`
	// LeftOut names what was not compared, with the reason.
	//
	// +optional
	LeftOut []string `json:"leftOut,omitempty"`
}

// ClusterFinding is one difference between objects of the cluster.
type ClusterFinding struct {
	Number    string `json:"number"`
	Name      string `json:"name"`
	Text      string `json:"text"`
	Fix       string `json:"fix"`
	Signature string `json:"signature"`
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	Pool string `json:"pool,omitempty"`
	// +optional
	Prefix string `json:"prefix,omitempty"`
	// +optional
	Address string `json:"address,omitempty"`
	// +optional
	Network string `json:"network,omitempty"`
	// +optional
	Object string `json:"object,omitempty"`
	// +optional
	Evidence []string `json:"evidence,omitempty"`
	// Since is the time at which the operator saw it first.
	//
	// +optional
	Since string `json:"since,omitempty"`
}

// ClusterCheckList holds the answer to a list.
//
// +kubebuilder:object:root=true
type ClusterCheckList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterCheck `json:"items"`
}

// ToKV returns the check as the stores have it.
func (c *ClusterCheck) ToKV() (*kv.ClusterCheck, error) {
	at, err := nanos(c.Spec.At)
	if err != nil {
		return nil, fmt.Errorf("ClusterCheck %s: spec.at: %w", c.Name, err)
	}
	m := &kv.ClusterCheck{
		Instance: c.Spec.Instance,
		At:       at,
		Every:    int64(c.Spec.Every.Duration),
		Total:    uint64(c.Spec.Total),
		Compared: c.Spec.Compared,
		LeftOut:  c.Spec.LeftOut,
	}
	for i, f := range c.Spec.Findings {
		since, err := nanos(f.Since)
		if err != nil {
			return nil, fmt.Errorf("ClusterCheck %s: spec.findings[%d].since: %w", c.Name, i, err)
		}
		m.Findings = append(m.Findings, &kv.ClusterFinding{
			Number:    f.Number,
			Name:      f.Name,
			Text:      f.Text,
			Fix:       f.Fix,
			Signature: f.Signature,
			Node:      f.Node,
			Pool:      f.Pool,
			Prefix:    f.Prefix,
			Address:   f.Address,
			Network:   f.Network,
			Object:    f.Object,
			Evidence:  f.Evidence,
			Since:     since,
		})
	}
	return m, nil
}

// ClusterCheckFrom returns the object of a check.
func ClusterCheckFrom(m *kv.ClusterCheck) *ClusterCheck {
	c := &ClusterCheck{Spec: ClusterCheckSpec{
		Instance: m.Instance,
		At:       text(m.At),
		Every:    metav1.Duration{Duration: time.Duration(m.Every)},
		Total:    int64(m.Total),
		Compared: m.Compared,
		LeftOut:  m.LeftOut,
	}}
	c.Name = ClusterCheckName
	for _, f := range m.Findings {
		c.Spec.Findings = append(c.Spec.Findings, ClusterFinding{
			Number:    f.Number,
			Name:      f.Name,
			Text:      f.Text,
			Fix:       f.Fix,
			Signature: f.Signature,
			Node:      f.Node,
			Pool:      f.Pool,
			Prefix:    f.Prefix,
			Address:   f.Address,
			Network:   f.Network,
			Object:    f.Object,
			Evidence:  f.Evidence,
			Since:     text(f.Since),
		})
	}
	return c
}
