// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
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
	// dumpTries limits the attempts of a list while the kernel's state changes.
	dumpTries = 10
)

// tunnelHost reads and writes the node's own links in one network namespace.
type tunnelHost struct {
	namespace string // path, "": the process's
	monitor   *monitor
	kernel    *netlink.Handle
	socket    *rtnl.Socket
}

// newTunnelHost opens netlink sockets in a namespace.
func newTunnelHost(opt Options) (*tunnelHost, error) {
	h := &tunnelHost{namespace: opt.Namespace, monitor: opt.withDefaults().monitor}
	err := h.within(func() (err error) {
		if h.socket, err = rtnl.Dial(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		if h.kernel, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			err = errors.Join(err, h.socket.Close())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the kernel's links: %w", err)
	}
	return h, nil
}

// close closes the sockets.
func (h *tunnelHost) close() {
	h.kernel.Close()
	_ = h.socket.Close()
}

// within calls f in the namespace of the host.
func (h *tunnelHost) within(f func() error) error { return rtnl.Within(h.namespace, f) }

// links lists all links.
func (h *tunnelHost) links() ([]netlink.Link, error) {
	links, err := listAll(h.kernel.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// listAll repeats a list that a change has interrupted.
func listAll[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		all, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// own returns the link called name of the value "node", nil if there is no such link. A
// link that lacks the marks of this package is foreign.
func (h *tunnelHost) own(name string) (netlink.Link, error) {
	return h.marked(name, nodeAlias, func(alias string) bool { return alias == nodeAlias })
}

// marked returns the link called name, nil if there is no such link. It is foreign unless ours
// accepts its alias, or it is half made.
func (h *tunnelHost) marked(name, alias string, ours func(alias string) bool) (netlink.Link, error) {
	link, err := h.kernel.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	a := link.Attrs()
	if !ours(a.Alias) && (a.Alias != "" || a.Group != unnamedGroup) {
		return nil, fmt.Errorf(
			"link %s of type %s has alias %q, not %q: %w; rename or remove it",
			name,
			link.Type(),
			a.Alias,
			alias,
			southbound.ErrForeign,
		)
	}
	return link, nil
}

// removeLink removes a link. A missing one is not an error.
func (h *tunnelHost) removeLink(link netlink.Link) error {
	if err := h.kernel.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// dress gives a link its alias, MTU and addresses, and sets it up.
func (h *tunnelHost) dress(link netlink.Link, alias string, mtu int, addresses []netip.Prefix) error {
	a := link.Attrs()
	if a.Alias != alias {
		if err := h.kernel.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("set alias %s of %s: %w", alias, a.Name, err)
		}
	}
	if mtu != 0 && a.MTU != mtu {
		if err := h.kernel.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set MTU %d of %s: %w", mtu, a.Name, err)
		}
	}
	if err := h.setAddresses(link, addresses); err != nil {
		return err
	}
	if err := h.within(func() error { return ignoreRouters(a.Name) }); err != nil {
		return err
	}
	if a.Flags&net.FlagUp == 0 {
		if err := h.kernel.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", a.Name, err)
		}
	}
	return nil
}

// setAddresses makes wanted the addresses of a link. It adds before it removes, so that a
// family has an address all the time. It adds again what the kernel removes together with
// the first IPv4 address of a prefix.
func (h *tunnelHost) setAddresses(link netlink.Link, wanted []netip.Prefix) error {
	name := link.Attrs().Name
	for {
		have, err := h.addresses(link)
		if err != nil {
			return err
		}
		for _, p := range wanted {
			if slices.Contains(have, p) {
				continue
			}
			addr, err := netlink.ParseAddr(p.String())
			if err == nil {
				addr.Flags = unix.IFA_F_NODAD
				err = h.kernel.AddrReplace(link, addr)
			}
			if err != nil {
				return fmt.Errorf("add address %s to %s: %w", p, name, err)
			}
		}
		removed := false
		for _, p := range have {
			if slices.Contains(wanted, p) {
				continue
			}
			addr, err := netlink.ParseAddr(p.String())
			if err == nil {
				err = h.kernel.AddrDel(link, addr)
			}
			if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s from %s: %w", p, name, err)
			}
			removed = true
		}
		if !removed {
			return nil
		}
	}
}

// dressed reports whether dress would change nothing; have holds the link's addresses.
func (h *tunnelHost) dressed(link netlink.Link, alias string, mtu int, addresses, have []netip.Prefix) bool {
	a, obeys := link.Attrs(), false
	err := h.within(func() error { obeys = linkObeysRouters(a.Name); return nil })
	return err == nil && !obeys && a.Alias == alias && (mtu == 0 || a.MTU == mtu) && a.Flags&net.FlagUp != 0 &&
		len(have) == len(addresses) &&
		!slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return !slices.Contains(have, p) })
}

// addresses returns the addresses of a link without those that the kernel gives to it.
func (h *tunnelHost) addresses(link netlink.Link) ([]netip.Prefix, error) {
	list, err := listAll(func() ([]netlink.Addr, error) { return h.kernel.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var all []netip.Prefix
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if p := netip.PrefixFrom(ip.Unmap(), bits); !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p)
		}
	}
	return all, nil
}
