// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeconfig_test

import (
	"fmt"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/nodeconfig"
)

// The entry of node-a gives it a fixed address, for any node ID.
func ExampleNodeConfig_MainIP() {
	cfg, _, err := contivconf.Parse([]byte(`
nodeConfig:
- nodeName: node-a
  mainVPPInterface: {ip: 192.168.17.200/24}
`))
	if err != nil {
		panic(err)
	}
	for _, node := range []label{"node-a", "node-b"} {
		p := nodeconfig.NewPlugin(nodeconfig.Deps{ServiceLabel: node, File: cfg.NodeConfigs})
		fmt.Println(node, p.MainIP().IsValid(), p.MainIP())
	}
	// Output:
	// node-a true 192.168.17.200/24
	// node-b false invalid Prefix
}
