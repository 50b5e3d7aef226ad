// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cadastre/cadastre/test/netlab"
)

const (
	networkName  = "demo"
	bridgeName   = "cni0"
	podInterface = "eth0"
	podNamespace = "demo" // Kubernetes'
)

// network is a CNI network, used as a container runtime does.
type network struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newNetwork is bridge's, with addresses from cadastre-cni; without namespaces
// it is cadastre-cni alone.
func newNetwork(p place, w way) (*network, error) {
	ipam := map[string]any{"type": "cadastre-cni", "socket": p.socket()}
	plugin := map[string]any{"type": "bridge", "bridge": bridgeName, "isGateway": true, "ipMasq": false, "ipam": ipam}
	if w == wayNone {
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
	cni := libcni.NewCNIConfigWithCacheDir([]string{p.bin}, filepath.Join(p.dir, "cni"), nil)
	return &network{cni: cni, list: list}, nil
}

// pod is a network namespace with the address that it was given.
type pod struct {
	name    string
	ns      *netlab.Namespace
	netns   string // CNI_NETNS
	address netip.Prefix
	gateway netip.Addr
}

// containerID looks like a container runtime's.
func (p *pod) containerID() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(podNamespace+"/"+p.name)))
}

func (p *pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.containerID(), NetNS: p.netns, IfName: podInterface, Args: [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", podNamespace}, {"K8S_POD_NAME", p.name}, {"K8S_POD_INFRA_CONTAINER_ID", p.containerID()},
	}}
}

// add is CNI's ADD.
func (n *network) add(ctx context.Context, p *pod) error {
	answer, err := n.cni.AddNetworkList(ctx, n.list, p.runtimeConf())
	if err != nil {
		return fmt.Errorf("ADD %s: %w", p.name, err)
	}
	result, err := types100.NewResultFromResult(answer)
	if err != nil {
		return fmt.Errorf("ADD %s: %w", p.name, err)
	}
	if len(result.IPs) != 1 {
		return fmt.Errorf("ADD %s: %d addresses, not one: %s", p.name, len(result.IPs), result)
	}
	if p.address, err = netip.ParsePrefix(result.IPs[0].Address.String()); err != nil {
		return fmt.Errorf("ADD %s: %w", p.name, err)
	}
	p.gateway, _ = netip.AddrFromSlice(result.IPs[0].Gateway)
	p.gateway = p.gateway.Unmap()
	return nil
}

// check is CNI's CHECK, against what ADD has answered.
func (n *network) check(ctx context.Context, p *pod) error {
	if err := n.cni.CheckNetworkList(ctx, n.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("CHECK %s: %w", p.name, err)
	}
	return nil
}

// del is CNI's DEL.
func (n *network) del(ctx context.Context, p *pod) error {
	if err := n.cni.DelNetworkList(ctx, n.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("DEL %s: %w", p.name, err)
	}
	return nil
}

// inside are the addresses that the pod's interface really has; none where
// there is no such interface.
func (p *pod) inside() (addrs []netip.Prefix, err error) {
	err = p.ns.Do(func() error {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, i := range all {
			if i.Name != podInterface {
				continue
			}
			has, err := i.Addrs()
			if err != nil {
				return err
			}
			for _, a := range has {
				prefix, err := netip.ParsePrefix(a.String())
				if err != nil {
					return err
				}
				addrs = append(addrs, prefix)
			}
		}
		return nil
	})
	return addrs, err
}
