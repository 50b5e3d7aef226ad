// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

// publication is an API that was published elsewhere and is implemented here.
type publication struct {
	name    string // of its page in docs/reference
	heading string
	source  string // the package that published it
	path    string // of the package here
	symbols []symbol
	differs map[string]string // how a symbol differs here, by its published name
}

// page returns the path of the generated page.
func (p publication) page() string { return "docs/reference/" + p.name + ".md" }

// symbol is a name with its declaration, as in a signature. Names of the
// package itself are written with the package's name.
type symbol struct{ name, sig string }

// publications are all of them.
func publications() []publication {
	return []publication{
		{
			"contiv-ipam", "Contiv-VPP: the IPAM plugin", "package `ipam` of Contiv-VPP",
			module + "/plugins/ipam", contivIPAM(), contivDifferences(),
		},
		{
			"docker-ipam", "Docker: the IPAM driver contract", "package `ipamapi` of libnetwork (December 2024)",
			module + "/ipam/ipamapi", dockerContract(), dockerDifferences(),
		},
		{
			"cce-manager", "CCE: the address manager", "package `ipam` of Baidu's CCE, in the manner of Cilium's",
			module + "/ipam", managerAPI(), managerDifferences(),
		},
		{
			"kubernetes-nodeipam", "Kubernetes: node CIDRs", "package `ipam` of Kubernetes' node IPAM controller",
			module + "/operator/nodeipam", nodeIPAM(), nodeIPAMDifferences(),
		},
		{
			"aws-datastore", "AWS: the interface datastore", "package `datastore` of AWS's VPC CNI",
			module + "/ipam/datastore", datastoreAPI(), datastoreDifferences(),
		},
		{
			"cce-operator", "CCE: the operator's half", "the rest of package `ipam` of CCE's network plugin",
			module + "/operator/netresource", operatorAPI(), operatorDifferences(),
		},
	}
}

// contivIPAM returns the symbols in Contiv-VPP's documentation of package ipam.
func contivIPAM() []symbol {
	return []symbol{
		{"DefaultPlugin", "var ipam.IPAM"},
		{"NewPlugin", "func(opts ...ipam.Option) *ipam.IPAM"},
		{"Option", "type func(*ipam.IPAM)"},
		{"API", "type interface"},
		{"API.NodeIPAddress", "func(nodeID uint32) (net.IP, *net.IPNet, error)"},
		{"API.VxlanIPAddress", "func(nodeID uint32) (net.IP, *net.IPNet, error)"},
		{"API.HostInterconnectIPInVPP", "func() net.IP"},
		{"API.HostInterconnectIPInLinux", "func() net.IP"},
		{"API.HostInterconnectSubnetThisNode", "func() *net.IPNet"},
		{"API.HostInterconnectSubnetAllNodes", "func() *net.IPNet"},
		{"API.HostInterconnectSubnetOtherNode", "func(nodeID uint32) (*net.IPNet, error)"},
		{"API.PodSubnetAllNodes", "func() *net.IPNet"},
		{"API.PodSubnetThisNode", "func() *net.IPNet"},
		{"API.PodSubnetOtherNode", "func(nodeID uint32) (*net.IPNet, error)"},
		{"API.ServiceNetwork", "func() *net.IPNet"},
		{"API.PodGatewayIP", "func() net.IP"},
		{"API.NatLoopbackIP", "func() net.IP"},
		{"API.AllocatePodIP", "func(podID podmodel.ID, ipamType string, ipamData string) (net.IP, error)"},
		{"API.GetPodIP", "func(podID podmodel.ID) *net.IPNet"},
		{"API.ReleasePodIP", "func(podID podmodel.ID) error"},
		{"Deps", "type struct"},
		{"Deps.PluginDeps", "embedded infra.PluginDeps"},
		{"Deps.NodeSync", "field nodesync.API"},
		{"Deps.ContivConf", "field contivconf.API"},
		{"Deps.ServiceLabel", "field servicelabel.ReaderAPI"},
		{"Deps.EventLoop", "field controller.EventLoop"},
		{"IPAM", "type struct"},
		{"IPAM.Deps", "embedded ipam.Deps"},
		{"IPAM.AllocatePodIP", "func(podID podmodel.ID, ipamType string, ipamData string) (net.IP, error)"},
		{"IPAM.Close", "func() error"},
		{"IPAM.GetPodIP", "func(podID podmodel.ID) *net.IPNet"},
		{"IPAM.HandlesEvent", "func(event controller.Event) bool"},
		{"IPAM.HostInterconnectIPInLinux", "func() net.IP"},
		{"IPAM.HostInterconnectIPInVPP", "func() net.IP"},
		{"IPAM.HostInterconnectSubnetAllNodes", "func() *net.IPNet"},
		{"IPAM.HostInterconnectSubnetOtherNode", "func(nodeID uint32) (*net.IPNet, error)"},
		{"IPAM.HostInterconnectSubnetThisNode", "func() *net.IPNet"},
		{"IPAM.Init", "func() (err error)"},
		{"IPAM.NatLoopbackIP", "func() net.IP"},
		{"IPAM.NodeIPAddress", "func(nodeID uint32) (net.IP, *net.IPNet, error)"},
		{"IPAM.PodGatewayIP", "func() net.IP"},
		{"IPAM.PodSubnetAllNodes", "func() *net.IPNet"},
		{"IPAM.PodSubnetOtherNode", "func(nodeID uint32) (*net.IPNet, error)"},
		{"IPAM.PodSubnetThisNode", "func() *net.IPNet"},
		{"IPAM.ReleasePodIP", "func(podID podmodel.ID) error"},
		{"IPAM.Resync", "func(event controller.Event, kubeStateData controller.KubeStateData, resyncCount int, txn controller.ResyncOperations) (err error)"},
		{"IPAM.Revert", "func(event controller.Event) error"},
		{"IPAM.ServiceNetwork", "func() *net.IPNet"},
		{"IPAM.Update", "func(event controller.Event, txn controller.UpdateOperations) (changeDescription string, err error)"},
		{"IPAM.VxlanIPAddress", "func(nodeID uint32) (net.IP, *net.IPNet, error)"},
		{"PodCIDRChange", "type struct"},
		{"PodCIDRChange.LocalPodCIDR", "field *net.IPNet"},
		{"PodCIDRChange.GetName", "func() string"},
		{"PodCIDRChange.IsBlocking", "func() bool"},
		{"PodCIDRChange.Method", "func() controller.EventMethodType"},
		{"PodCIDRChange.String", "func() string"},
	}
}
