// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

// nodeIPAM returns the symbols in the documentation of Kubernetes' package ipam.
func nodeIPAM() []symbol {
	return []symbol{
		{"RangeAllocatorType", "const nodeipam.CIDRAllocatorType"},
		{"CloudAllocatorType", "const nodeipam.CIDRAllocatorType"},
		{"IPAMFromClusterAllocatorType", "const string"},
		{"IPAMFromCloudAllocatorType", "const string"},
		{"CIDRAllocator", "type interface"},
		{"CIDRAllocator.AllocateOrOccupyCIDR", "func(node *v1.Node) error"},
		{"CIDRAllocator.ReleaseCIDR", "func(node *v1.Node) error"},
		{"CIDRAllocator.Run", "func(stopCh <-chan struct{})"},
		{"New", "func(kubeClient clientset.Interface, cloud cloudprovider.Interface, nodeInformer informers.NodeInformer, allocatorType nodeipam.CIDRAllocatorType, clusterCIDR, serviceCIDR *net.IPNet, nodeCIDRMaskSize int) (nodeipam.CIDRAllocator, error)"},
		{"NewCIDRRangeAllocator", "func(client clientset.Interface, nodeInformer informers.NodeInformer, clusterCIDR *net.IPNet, serviceCIDR *net.IPNet, subNetMaskSize int, nodeList *v1.NodeList) (nodeipam.CIDRAllocator, error)"},
		{"NewCloudCIDRAllocator", "func(client clientset.Interface, cloud cloudprovider.Interface, nodeInformer informers.NodeInformer) (nodeipam.CIDRAllocator, error)"},
		{"CIDRAllocatorType", "type string"},
		{"Config", "type struct"},
		{"Config.Resync", "field time.Duration"},
		{"Config.MaxBackoff", "field time.Duration"},
		{"Config.InitialRetry", "field time.Duration"},
		{"Config.Mode", "field nodesync.NodeSyncMode"},
		{"Controller", "type struct"},
		{"NewController", "func(config *nodeipam.Config, kubeClient clientset.Interface, cloud cloudprovider.Interface, clusterCIDR, serviceCIDR *net.IPNet, nodeCIDRMaskSize int) (*nodeipam.Controller, error)"},
		{"Controller.Start", "func(nodeInformer informers.NodeInformer) error"},
		{"Timeout", "type struct"},
		{"Timeout.Resync", "field time.Duration"},
		{"Timeout.MaxBackoff", "field time.Duration"},
		{"Timeout.InitialRetry", "field time.Duration"},
		{"Timeout.Next", "func() time.Duration"},
		{"Timeout.Update", "func(ok bool)"},
	}
}
