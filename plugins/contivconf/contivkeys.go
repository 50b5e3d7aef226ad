// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"maps"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Note says what happens with keys of the file that have a former name, that only
// another data plane uses, or that another key overrides.
type Note struct {
	Keys []string // sorted paths, or former names
	Text string   // the same for all of them
}

// String returns the keys and the text in one line.
func (n Note) String() string { return strings.Join(n.Keys, ", ") + ": " + n.Text }

// formerKey holds a former name of a key.
type formerKey struct {
	section string // path of the section that has the former name
	name    string
	now     string // path of the key below the section
}

// formerKeys returns the keys that had other names in versions of Contiv-VPP.
func formerKeys() []formerKey {
	all := []formerKey{
		{"", "l2Interconnect", "useL2Interconnect"},
		{"", "routeServicesToVPP", "routeServiceCIDRToVPP"},
		{"", "stealTheNIC", "stealFirstNIC"},
		{"ipamConfig", "podNetworkPrefixLen", podLen},
		{"ipamConfig", "podIfIPCIDR", "podVPPSubnetCIDR"},
		{"ipamConfig", "vppHostNetworkPrefixLen", hostLen},
		{"ipamConfig", "vSwitchSubnetCIDR", "vppHostSubnetCIDR"},
		{"ipamConfig", "vSwitchNetworkPrefixLen", hostLen},
		{"ipamConfig", "hostNodeSubnetCidr", "nodeInterconnectCIDR"},
		{"nodeConfig[]", "vppInterfaceName", "mainVPPInterface.interfaceName"},
		{"nodeConfig[]", "mainVppInterfaceName", "mainVPPInterface.interfaceName"},
		{"nodeConfig[]", "useDhcpOnMainInt", "mainVPPInterface.useDHCP"},
		{"nodeConfig[]", "otherInterfaces", "otherVPPInterfaces"},
		{"nodeConfig[]", "stealHostInterface", "stealInterface"},
	}
	for _, name := range []string{
		"servicePolicyBSIDSubnetCIDR", "servicePodLocalSIDSubnetCIDR",
		"serviceHostLocalSIDSubnetCIDR", "serviceNodeLocalSIDSubnetCIDR",
		"nodeToNodePodLocalSIDSubnetCIDR", "nodeToNodeHostLocalSIDSubnetCIDR",
		"nodeToNodePodPolicySIDSubnetCIDR", "nodeToNodeHostPolicySIDSubnetCIDR",
	} {
		all = append(all, formerKey{"ipamConfig", "srv6" + strings.ToUpper(name[:1]) + name[1:], "srv6." + name})
	}
	return all
}

// renamed returns the path below section of the key whose former name is key. One
// version of Contiv-VPP wrote the keys with dashes: mtu-size.
func renamed(section, key string) (string, bool) {
	for _, f := range formerKeys() {
		if f.section == section && strings.EqualFold(f.name, key) {
			return f.now, true
		}
	}
	joined := strings.ReplaceAll(key, "-", "")
	if joined == key || section == "cadastre" || strings.HasPrefix(section, "cadastre.") {
		return "", false
	}
	for _, k := range knownKeys() {
		if above, last := splitPath(k.Path); above == section && strings.EqualFold(last, joined) {
			return last, true
		}
	}
	return "", false
}

// splitPath returns the section of a path and the name of its key.
func splitPath(path string) (section, name string) {
	if i := strings.LastIndex(path, "."); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// unusedNotes returns what happens instead of each key of Contiv-VPP that is never
// used. A section stands for all keys below it.
func unusedNotes() []Note {
	return []Note{
		{
			[]string{"useTAPInterfaces", "tapInterfaceVersion", "tapv2RxRingSize", "tapv2TxRingSize"},
			"pods are connected by veth pairs, or by the main plugin of the CNI list",
		},
		{
			[]string{"vmxnet3RxRingSize", "vmxnet3TxRingSize", "interfaceRxMode"},
			"the node's network cards keep the settings of their drivers (ethtool)",
		},
		{
			[]string{"tcpChecksumOffloadDisabled", "enableGSO"},
			"links keep the offloads that the kernel has chosen (ethtool)",
		},
		{[]string{"tcpStackDisabled"}, "pods use the TCP of the kernel"},
		{
			[]string{
				"cleanupIdleNATSessions", "tcpNATSessionTimeout",
				"otherNATSessionTimeout", "disableNATVirtualReassembly",
			},
			"the kernel's connection tracking ends idle sessions (sysctl net.netfilter.nf_conntrack_*)",
		},
		{
			[]string{"serviceLocalEndpointWeight", "routeServiceCIDRToVPP"},
			"kube-proxy, or what replaces it, serves the addresses of services",
		},
		{
			[]string{
				"useSRv6ForServices", "useSRv6ForServiceFunctionChaining",
				"useDX6ForSrv6NodetoNodeTransport", "ipamConfig.srv6",
			},
			"there is no SRv6: kube-proxy serves services, and nodeToNodeTransport srv6 is read as vxlan",
		},
		{
			[]string{"scanIPNeighbors", "ipNeighborScanInterval", "ipNeighborStaleThreshold"},
			"the neighbours of pods and tunnels are permanent; the kernel probes all others",
		},
		{
			[]string{"stealFirstNIC", "stealInterface", "stnSocketFile", "stnVersion", "nodeConfig[].stealInterface"},
			"the agent takes no network card from the node; cadastre.underlay selects the one to use",
		},
		{[]string{"enablePacketTrace"}, "tcpdump and nft monitor trace show packets"},
		{
			[]string{"crdNodeConfigurationDisabled", "crdNodeConfigurationEnabled"},
			"a NodeConfig of the cluster store always replaces a node's entry",
		},
		{
			[]string{"healthCheckProbeInterval", "healthCheckReplyTimeout", "healthCheckThreshold"},
			"probes ask cadastre status, or /healthz and /readyz of cadastre.metrics",
		},
		{
			[]string{"ipamConfig.podVPPSubnetCIDR"},
			"the node's end of a pod's link has the gateway's address, the first one of the node's pod subnet",
		},
		{[]string{"ipamConfig.mtuSize"}, "mtuSize counts at the top level only, as in Contiv-VPP"},
		{
			[]string{
				"nodeConfig[].mainVPPInterface.interfaceName", "nodeConfig[].mainVPPInterface.useDHCP",
				"nodeConfig[].otherVPPInterfaces", "nodeConfig[].gateway",
			},
			"the links, addresses and default route of the node are those of its host; cadastre.underlay selects one",
		},
	}
}

// unusedNote returns what happens instead of the key at path, "" if no note names it.
func unusedNote(path string) string { return noteOf(unusedNotes(), path) }

// noteOf returns the text of the note that names the key at path, "" if there is none.
func noteOf(notes []Note, path string) string {
	for _, n := range notes {
		if slices.ContainsFunc(n.Keys, func(key string) bool { return isBelow(path, key) }) {
			return n.Text
		}
	}
	return ""
}

// explain sets what happens with a key that is given.
func (r *reading) explain(key, text string) { r.notes[key] = text }

// ignore marks a key that is given as unused, and says why.
func (r *reading) ignore(key, why string) {
	r.Unused[key] = true
	r.explain(key, why)
}

// allNotes returns the notes of the file, one for each text.
func (r *reading) allNotes() []Note {
	for key := range r.Unused {
		if r.notes[key] == "" {
			r.explain(key, unusedNote(key))
		}
	}
	for field, former := range r.Renamed {
		if r.notes[former] == "" {
			r.explain(former, "is read as "+field)
		}
	}
	keys := map[string][]string{}
	for key, text := range r.notes {
		keys[text] = append(keys[text], key)
	}
	var all []Note
	for text, of := range keys {
		all = append(all, Note{slices.Sorted(slices.Values(of)), text})
	}
	slices.SortFunc(all, func(a, b Note) int { return strings.Compare(a.Keys[0], b.Keys[0]) })
	return all
}

// explainNames adds to the problems of keys with a former name how the file has them.
func (r *reading) explainNames() {
	for i := range r.Problems {
		e := &r.Problems[i]
		if former := r.Renamed[e.Field]; former != "" && e.Rule != yamldoc.RuleDuplicateKey {
			e.Text += " (the file has it as " + former + ")"
		}
	}
}

// unusedKeys returns the sorted paths of the keys that are in the file and change nothing.
func (r *reading) unusedKeys() []string { return slices.Sorted(maps.Keys(r.Unused)) }
