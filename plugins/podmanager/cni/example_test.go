// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"fmt"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// The executable turns its environment and the network configuration into a request to
// the agent.
func ExampleNewRequest() {
	env := map[string]string{
		"CNI_COMMAND":     "ADD",
		"CNI_CONTAINERID": "4f1c",
		"CNI_NETNS":       "/run/netns/4f1c",
		"CNI_IFNAME":      "eth0",
		"CNI_PATH":        "/opt/cni/bin",
		"CNI_ARGS":        "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web",
	}
	inv, cerr := cni.FromEnv(func(name string) string { return env[name] })
	if cerr != nil {
		panic(cerr)
	}
	config, cerr := cni.ParseConfig([]byte(`{
		"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": {"type": "cadastre-cni"}
	}`), inv.Command)
	if cerr != nil {
		panic(cerr)
	}
	r, cerr := cni.NewRequest(inv, config)
	if cerr != nil {
		panic(cerr)
	}
	fmt.Println(r.Command, r.Network, r.ContainerID, r.IfName, r.Pod.Namespace, r.Pod.Name, r.Pool)
	// Output:
	// ADD pods 4f1c eth0 default web default
}
