// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

// publishedNames returns the packages that signatures name, and the types that stand in
// for those of modules that this one does without.
func publishedNames() apis {
	return apis{
		packages: map[string]string{
			"addrplan":     module + "/plugins/ipam/addrplan",
			"cache":        "k8s.io/client-go/tools/cache",
			"blocks":       module + "/operator/blocks",
			"claims":       module + "/plugins/nodesync/claims",
			"clientset":    "k8s.io/client-go/kubernetes",
			"cloud":        module + "/cloud",
			"context":      "context",
			"contivconf":   module + "/plugins/contivconf",
			"controller":   module + "/controller",
			"coordination": "k8s.io/client-go/kubernetes/typed/coordination/v1",
			"datastore":    module + "/ipam/datastore",
			"dynamic":      "k8s.io/client-go/dynamic",
			"informers":    "k8s.io/client-go/informers/core/v1",
			"ipam":         module + "/plugins/ipam",
			"ipamapi":      module + "/ipam/ipamapi",
			"kubestate":    module + "/plugins/kubestate",
			"kv":           module + "/api/kv",
			"kvdb":         module + "/kvdb",
			"ledger":       module + "/ledger",
			"manager":      module + "/ipam",
			"net":          "net",
			"netip":        "net/netip",
			"netresource":  module + "/operator/netresource",
			"nodeipam":     module + "/operator/nodeipam",
			"nodesync":     module + "/plugins/nodesync",
			"nodeset":      module + "/plugins/ipam/nodeset",
			"poolplan":     module + "/plugins/ipam/poolplan",
			"prometheus":   "github.com/prometheus/client_golang/prometheus",
			"runtime":      "k8s.io/apimachinery/pkg/runtime",
			"slog":         "log/slog",
			"time":         "time",
			"unstructured": "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured",
			"v1":           "k8s.io/api/core/v1",
			"v1alpha1":     module + "/api/v1alpha1",
			"witness":      module + "/witness",
		},
		instead: []substitution{
			{"cidr.CIDR", "manager.CIDR", "a prefix, and no more"},
			{"cloudprovider.Interface", "nodeipam.Cloud", "the two calls that node CIDRs need; real clouds come in modules of their own"},
			{"infra.PluginDeps", "controller.PluginDeps", "a name and a logger (`log/slog`); cn-infra is not a dependency"},
			{"ipamTypes.AllocationMap", "v1alpha1.AllocationMap", ""},
			{"ipamTypes.InterfaceRevision", "v1alpha1.InterfaceRevision", "its types"},
			{"ipamTypes.PoolID", "v1alpha1.PoolID", ""},
			{"ipamTypes.PoolQuotaMap", "v1alpha1.PoolQuotaMap", ""},
			{"listerv2.NetResourceSetLister", "v1alpha1.NetResourceSetLister", "its lister"},
			{"logger.Logger", "*slog.Logger", "the standard library's"},
			{"logrus.Entry", "slog.Logger", "the standard library's logger"},
			{"nodesync.NodeSyncMode", "nodeipam.NodeSyncMode", "the one type of that package"},
			{"podmodel.ID", "kv.PodID", "the messages of `api/kv` replace Contiv's Kubernetes models"},
			{"servicelabel.ReaderAPI", "controller.AgentLabel", "the one method that is used: `GetAgentLabel"},
			{"subscriber.NetResourceSet", "manager.NetResourceSetSubscriber", "its three methods, of our object"},
			{"trigger.MetricsObserver", "netresource.TriggerObserver", "the two calls that are used"},
			{"types.NodeAddressing", "manager.NodeAddressing", "the two methods that are used"},
			{"v2.NetResourceSet", "v1alpha1.NetResourceSet", "our own object"},
		},
	}
}
