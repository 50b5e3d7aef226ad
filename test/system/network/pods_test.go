// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
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
	*stage.Attachment
	node *node
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
	p := &pod{place: place{name: name, ns: n.namespace()}, node: n}
	var err error
	p.Attachment, err = stage.NewAttachment(n.Agent, n.ns.Do, n.listPath(), name, p.ns.Path())
	n.must(err)
	return p
}

// add runs ADD.
func (p *pod) add() (err error) {
	p.addresses, err = p.Add(p.node.t.Context())
	return err
}

func (p *pod) check() error { return p.Check(p.node.t.Context()) }

func (p *pod) del() error { return p.Del(p.node.t.Context()) }

// hostIf returns the name of the node's end of the wire.
func (p *pod) hostIf() string { return p.Result.Interfaces[0].Name }

// pod makes a pod and attaches it.
func (n *node) pod(name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	n.must(p.add())
	return p
}
