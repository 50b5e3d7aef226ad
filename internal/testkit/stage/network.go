// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// networkName is CNI's, of all networks here.
const networkName = "demo"

// Network is a CNI network, used as a container runtime does.
type Network struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// addressesOnly is another name of cadastre-cni. Under its own name, as the type of a
// network, the agent would make interfaces too.
const addressesOnly = "addresses"

// NewNetwork returns a network of cadastre-cni, whose agent makes the pods' interfaces. If
// bridge is not empty, CNI's bridge plugin makes them, with addresses from cadastre-cni.
// Without namespaces cadastre-cni gives addresses only.
func NewNetwork(a Agent, w Way, bridge string) (*Network, error) {
	ipam := map[string]any{"type": "cadastre-cni", "socket": a.Socket()}
	plugin := map[string]any{"type": "cadastre-cni", "ipam": ipam}
	if bridge != "" {
		plugin = map[string]any{"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": false, "ipam": ipam}
	}
	bin := []string{a.Bin}
	if w == WayNone {
		plugin = map[string]any{"type": addressesOnly, "ipam": ipam}
		dir := filepath.Join(a.Dir, "plugins")
		if err := linkOnce(filepath.Join(a.Bin, "cadastre-cni"), filepath.Join(dir, addressesOnly)); err != nil {
			return nil, fmt.Errorf("configure the network: %w", err)
		}
		bin = append(bin, dir)
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": networkName, "plugins": []any{plugin}})
	if err != nil {
		return nil, fmt.Errorf("configure the network: %w", err)
	}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, fmt.Errorf("configure the network: %w", err)
	}
	cni := libcni.NewCNIConfigWithCacheDir(
		bin,
		filepath.Join(a.Dir, "cni"),
		&invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}},
	)
	return &Network{cni: cni, list: list}, nil
}

// linkOnce makes a symbolic link at path, and its folder, unless there is one.
func linkOnce(target, path string) error {
	target, err := filepath.Abs(target)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.Symlink(target, path)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
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
