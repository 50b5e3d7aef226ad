// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// List describes a network configuration list.
type List struct {
	Network string   // name of the network
	Socket  string   // of the agent; "": the default one of cadastre-cni
	PortMap []string // versions of the specification that portmap has; nil: the list does without it
}

// plugin is the configuration of one plugin of a list.
type plugin struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	IPAM         *ipam           `json:"ipam,omitempty"`
}

type ipam struct {
	Socket string `json:"socket"`
}

// file is the JSON of a list.
type file struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []plugin `json:"plugins"`
}

// oldest is the newest version of the specification that runtimes before libcni 1.2 speak.
const oldest = "1.0.0"

// Render returns the JSON of the list. A portmap without a version in common with
// cadastre-cni is an error.
func (l List) Render() ([]byte, error) {
	main := plugin{Type: cni.PluginType, Capabilities: map[string]bool{"ips": true, "mac": true}}
	if l.Socket != "" {
		main.IPAM = &ipam{l.Socket}
	}
	f := file{Name: l.Network, CNIVersions: cni.Versions(), Plugins: []plugin{main}}
	if l.PortMap != nil {
		portmap := plugin{Type: PortMap, Capabilities: map[string]bool{"portMappings": true}}
		f.Plugins = append(f.Plugins, portmap)
		f.CNIVersions = slices.DeleteFunc(f.CNIVersions, func(v string) bool { return !slices.Contains(l.PortMap, v) })
	}
	for _, v := range f.CNIVersions { // in ascending order
		if f.CNIVersion == "" || v <= oldest {
			f.CNIVersion = v
		}
	}
	if f.CNIVersion == "" {
		return nil, fmt.Errorf(
			"write the CNI list: %s has the versions %v and %s has %v of the specification: want one in common",
			PortMap,
			l.PortMap,
			cni.PluginType,
			cni.Versions(),
		)
	}
	text, err := json.MarshalIndent(f, "", "  ")
	return append(text, '\n'), err
}

// IsOurs reports whether data is a list or a single configuration whose main plugin is
// cadastre-cni.
func IsOurs(data []byte) bool {
	var f struct {
		Type    string   `json:"type"`
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal(data, &f) != nil {
		return false
	}
	return f.Type == cni.PluginType || len(f.Plugins) > 0 && f.Plugins[0].Type == cni.PluginType
}
