// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// NodeConfig configures the node of its name. It replaces the node's
// entry in contiv.conf.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.spec.mainVPPInterface.interfaceName`
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.spec.mainVPPInterface.ip`
// +kubebuilder:printcolumn:name="Gateway",type=string,JSONPath=`.spec.gateway`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeConfigSpec `json:"spec"`
}

// NodeConfigSpec has the names of contiv.conf's nodeConfig.
type NodeConfigSpec struct {
	// MainVPPInterface is the vswitch's interface to the other nodes.
	//
	// +optional
	MainVPPInterface InterfaceConfig `json:"mainVPPInterface,omitempty"`
	// Gateway is the node's default gateway.
	//
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isIP(self)",message="gateway must be an IP address like 192.168.16.1"
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// InterfaceConfig is an interface and where its address is from.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.useDHCP) && self.useDHCP && has(self.ip) && size(self.ip) > 0)",message="an interface has an ip, or useDHCP, not both"
type InterfaceConfig struct {
	// InterfaceName is the vswitch's name of it.
	//
	// +kubebuilder:validation:MaxLength=63
	// +optional
	InterfaceName string `json:"interfaceName,omitempty"`
	// IP is its address with its prefix length.
	//
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isCIDR(self)",message="ip must be an address with its length, like 192.168.16.10/24"
	// +optional
	IP string `json:"ip,omitempty"`
	// UseDHCP has it ask for its address.
	//
	// +optional
	UseDHCP bool `json:"useDHCP,omitempty"`
}

// NodeConfigList holds the answer to a list.
//
// +kubebuilder:object:root=true
type NodeConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeConfig `json:"items"`
}

// ToKV is the configuration in the words of package kv.
func (c *NodeConfig) ToKV() *kv.NodeConfig {
	main := c.Spec.MainVPPInterface
	return &kv.NodeConfig{
		NodeName:      c.Name,
		MainInterface: main.InterfaceName,
		MainIp:        main.IP,
		UseDhcp:       main.UseDHCP,
		Gateway:       c.Spec.Gateway,
	}
}
