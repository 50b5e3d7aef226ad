// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// place is an end of an exchange: a pod, a node, or what the router plays.
type place struct {
	name      string
	ns        *netlab.Namespace
	addresses []netip.Addr
}

// addr returns the address of a family.
func (p place) addr(is4 bool) netip.Addr {
	for _, a := range p.addresses {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// pod is a pod of a node.
type pod struct {
	place
	node   *node
	rt     *libcni.RuntimeConf
	list   *libcni.NetworkConfigList
	result *types100.Result
}

// host returns the node itself as an end, by its address on the underlay.
func (n *node) host() place {
	p := place{name: n.Node, ns: n.ns}
	for _, is4 := range n.families() {
		p.addresses = append(p.addresses, n.underlay(n.id, is4).Addr())
	}
	return p
}

// outside returns a host beyond the router.
func (c *cluster) outside() place {
	return place{"outside", c.router, []netip.Addr{netip.MustParseAddr(outside4), netip.MustParseAddr(outside6)}}
}

// newPod makes a pod without a network.
func (n *node) newPod(name string) *pod {
	n.t.Helper()
	list, err := libcni.ConfListFromFile(n.listPath())
	n.must(err)
	p := &pod{place: place{name: name, ns: n.namespace()}, node: n, list: list}
	p.rt = &libcni.RuntimeConf{
		ContainerID: fmt.Sprintf("%s-%s", n.Node, name), NetNS: p.ns.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}},
	}
	return p
}

func (p *pod) cni(f func(ctx context.Context, cni *libcni.CNIConfig) error) error {
	n := p.node
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, filepath.Join(n.Dir, "cache"), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}})
	return n.ns.Do(func() error { return f(n.t.Context(), cni) })
}

// add runs ADD.
func (p *pod) add() error {
	return p.cni(func(ctx context.Context, cni *libcni.CNIConfig) error {
		answer, err := cni.AddNetworkList(ctx, p.list, p.rt)
		if err == nil {
			p.result, err = types100.NewResultFromResult(answer)
		}
		if err != nil {
			return err
		}
		p.addresses = nil
		for _, ip := range p.result.IPs {
			if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				p.addresses = append(p.addresses, a.Unmap())
			}
		}
		return nil
	})
}

func (p *pod) check() error {
	return p.cni(func(ctx context.Context, cni *libcni.CNIConfig) error { return cni.CheckNetworkList(ctx, p.list, p.rt) })
}

func (p *pod) del() error {
	return p.cni(func(ctx context.Context, cni *libcni.CNIConfig) error { return cni.DelNetworkList(ctx, p.list, p.rt) })
}

// hostIf returns the name of the node's end of the wire.
func (p *pod) hostIf() string { return p.result.Interfaces[0].Name }

// pod makes a pod and attaches it.
func (n *node) pod(name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	n.must(p.add())
	return p
}
