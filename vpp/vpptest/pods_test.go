// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/traffic"
)

// pod is a pod of a node, attached as a runtime does.
type pod struct {
	traffic.Place
	node   *node
	rt     *libcni.RuntimeConf
	list   *libcni.NetworkConfigList
	result *types100.Result
}

// newPod makes a pod without a network.
func (n *node) newPod(name string) *pod {
	n.t.Helper()
	list, err := libcni.ConfListFromFile(n.listPath())
	n.must(err)
	p := &pod{Place: traffic.Place{Name: name, Net: n.namespace()}, node: n, list: list}
	p.rt = &libcni.RuntimeConf{
		ContainerID: fmt.Sprintf("%s-%s", n.Node, name), NetNS: p.Net.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}},
	}
	return p
}

func (p *pod) cni(f func(ctx context.Context, cni *libcni.CNIConfig) error) error {
	n := p.node
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.Bin}, filepath.Join(n.Dir, "cache"), run)
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
		p.Addresses = nil
		for _, ip := range p.result.IPs {
			if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				p.Addresses = append(p.Addresses, a.Unmap())
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

// pod makes a pod and attaches it.
func (n *node) pod(name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	n.must(p.add())
	return p
}

// podIn makes a pod in a network.
func (n *node) podIn(network, name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	text, err := os.ReadFile(n.listPath())
	n.must(err)
	plugin := fmt.Sprintf(`"ipam":{"pool":%q,`, network)
	changed := strings.Replace(strings.Join(strings.Fields(string(text)), ""), `"ipam":{`, plugin, 1)
	n.Expect(changed).To(ContainSubstring(plugin))
	p.list, err = libcni.ConfListFromBytes([]byte(changed))
	n.must(err)
	n.Eventually(p.add, patience, pace).Should(Succeed()) // the node may not have followed the network yet
	return p
}

// network adds a pod network with a range of each family.
func (c *cluster) network(name, v4, v6 string) {
	c.t.Helper()
	file := filepath.Join(c.dir, name+".yaml")
	var text strings.Builder
	fmt.Fprintf(&text, "pools:\n- name: %[1]s\n  network: %[1]s\n  ranges:\n  - {cidr: %s, oneNodePrefixLen: 24}\n", name, v4)
	if c.v6 {
		fmt.Fprintf(&text, "  - {cidr: \"%s\", oneNodePrefixLen: 64}\n", v6)
	}
	c.must(os.WriteFile(file, []byte(text.String()), 0o600))
	out, err := c.nodes[0].CLI(c.t.Context(), "apply", "-f", file)
	c.Expect(err).NotTo(HaveOccurred(), out)
}

// reached waits until packets of each family come back.
func (c *cluster) reached(from, to traffic.Place) {
	c.t.Helper()
	for _, is4 := range c.families() {
		if !to.Addr(is4).IsValid() {
			continue
		}
		c.Eventually(func() error { _, err := traffic.Reach(c.t, from, to, is4); return err }, patience, pace).
			Should(Succeed(), "%s to %s", from.Name, to.Name)
	}
}

// unreached fails if a packet comes back.
func (c *cluster) unreached(from, to traffic.Place) {
	c.t.Helper()
	for _, is4 := range c.families() {
		e := traffic.NewEcho(c.t, to.Net, netip.AddrPortFrom(to.Addr(is4), 0))
		_ = from.Net.Do(func() error { // a pod of a network may have no route at all
			conn, err := net.Dial("udp", e.At().String())
			if err != nil {
				return err
			}
			defer conn.Close()
			return traffic.Answered(conn.(*net.UDPConn), 16, 3)
		})
		c.Expect(e.Heard()).To(BeZero(), "%s has heard %s", to.Name, from.Name)
		e.Close()
	}
}
