// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// nodeAlias marks the links of the value "node".
	nodeAlias = "cadastre:" + kv.SinkNode
	// unnamedGroup is the group of these links. A request that makes a link cannot give it
	// an alias, but a group: it marks a link that a crash has left without an alias.
	unnamedGroup = 0xCAD0
)

// tunnelHost reads and writes the node's own links in one network namespace.
type tunnelHost struct {
	namespace string // path, "": the process's
	monitor   *monitor
	socket    *rtnl.Socket
}

// newTunnelHost opens a netlink socket in a namespace.
func newTunnelHost(opt Options) (*tunnelHost, error) {
	h := &tunnelHost{namespace: opt.Namespace, monitor: opt.withDefaults().monitor}
	err := h.within(func() (err error) {
		h.socket, err = rtnl.Dial(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the kernel's links: %w", err)
	}
	return h, nil
}

// close closes the socket.
func (h *tunnelHost) close() { _ = h.socket.Close() }

// within calls f in the namespace of the host.
func (h *tunnelHost) within(f func() error) error { return rtnl.Within(h.namespace, f) }

// own returns the link called name of the value "node". A link that lacks the marks of this
// package is foreign.
func (h *tunnelHost) own(name string) (link hostLink, found bool, err error) {
	return h.marked(name, nodeAlias, func(alias string) bool { return alias == nodeAlias })
}

// marked returns the link called name. It is foreign unless ours accepts its alias, or it is half
// made.
func (h *tunnelHost) marked(name, alias string, ours func(alias string) bool) (link hostLink, found bool, err error) {
	link, found, err = getLink(h.socket, name)
	if err != nil || !found {
		return hostLink{}, false, err
	}
	if !ours(link.alias) && (link.alias != "" || link.group != unnamedGroup) {
		const text = "link %s of type %s has alias %q, not %q: %w; rename or remove it"
		return hostLink{}, false, fmt.Errorf(text, name, link.kind, link.alias, alias, southbound.ErrForeign)
	}
	return link, true, nil
}

// dress gives a link its attributes and addresses, and sets it up.
func (h *tunnelHost) dress(link hostLink, plan linkPlan, addresses objects) error {
	if err := plan.writeSettings(link, h.within); err != nil {
		return err
	}
	if err := h.socket.Run(plan.requests(link)); err != nil {
		return err
	}
	return h.converge(link, addresses, h.addresses)
}

// converge makes wanted the objects of a link, of those that read returns. It adds before it
// removes, so that a family has an address all the time. It adds again what the kernel removes
// together with the first IPv4 address of a prefix.
func (h *tunnelHost) converge(link hostLink, wanted objects, read func(hostLink) (*linkObjects, error)) error {
	var left error
	for range attempts {
		have, err := read(link)
		if err != nil {
			return err
		}
		d := wanted.differences(have)
		if left = d.err("of link " + link.name); left == nil {
			return nil
		}
		if err := h.socket.Run(d.requests(link.linkID)); err != nil {
			return fmt.Errorf("link %s: %w", link.name, err)
		}
	}
	return fmt.Errorf("another program changes them at the same time: %w", left)
}

// dressed reports whether dress would change nothing; have holds the link's addresses.
func (plan linkPlan) dressed(link hostLink, addresses objects, have *linkObjects) bool {
	return errors.Join(plan.differences(link, ofNode), addresses.differences(have).err(ofNode)) == nil
}

// addresses returns the addresses of a link of ours without those that the kernel gives to it.
func (h *tunnelHost) addresses(link hostLink) (*linkObjects, error) {
	list, err := listAddresses(h.socket, link.index)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("link %s: %w", link.name, err)
	}
	all := objects{}
	for _, p := range list {
		all[p.object] = true
	}
	return &linkObjects{all: all, ours: all}, nil
}

// routedAddresses returns addresses, to whose prefixes the kernel makes routes.
func routedAddresses(all []netip.Prefix) objects {
	wanted := objects{}
	for _, p := range all {
		wanted[object{kind: addressObject, prefix: p, routed: true}] = true
	}
	return wanted
}
