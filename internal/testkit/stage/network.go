// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// networkName is CNI's, of all networks here.
const networkName = "demo"

// Network is a CNI network, used as a container runtime does.
type Network struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// NewNetwork is that of the bridge plugin, with addresses from cadastre-cni;
// without namespaces it is cadastre-cni alone.
func NewNetwork(a Agent, w Way, bridge string) (*Network, error) {
	ipam := map[string]any{"type": "cadastre-cni", "socket": a.Socket()}
	plugin := map[string]any{"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": false, "ipam": ipam}
	if w == WayNone {
		plugin = map[string]any{"type": "cadastre-cni", "ipam": ipam}
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": networkName, "plugins": []any{plugin}})
	if err != nil {
		return nil, fmt.Errorf("configure the network: %w", err)
	}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, fmt.Errorf("configure the network: %w", err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{a.Bin}, filepath.Join(a.Dir, "cni"), nil)
	return &Network{cni: cni, list: list}, nil
}

// Add is CNI's ADD; the pod has its address when it returns.
func (n *Network) Add(ctx context.Context, p *Pod) error {
	answer, err := n.cni.AddNetworkList(ctx, n.list, p.runtimeConf())
	if err != nil {
		return fmt.Errorf("ADD %s: %w", p.Name, err)
	}
	result, err := types100.NewResultFromResult(answer)
	if err != nil {
		return fmt.Errorf("ADD %s: %w", p.Name, err)
	}
	return p.take(result)
}

// Check is CNI's CHECK, against what ADD has answered.
func (n *Network) Check(ctx context.Context, p *Pod) error {
	if err := n.cni.CheckNetworkList(ctx, n.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("CHECK %s: %w", p.Name, err)
	}
	return nil
}

// Del is CNI's DEL.
func (n *Network) Del(ctx context.Context, p *Pod) error {
	if err := n.cni.DelNetworkList(ctx, n.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("DEL %s: %w", p.Name, err)
	}
	return nil
}
