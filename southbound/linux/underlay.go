// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// Underlay holds the addresses by which other nodes reach this one.
type Underlay struct {
	Addresses []netip.Addr // one of each family at most, IPv4 first
	Link      string       // with the first address
	MTU       int          // the smallest one of the links with the addresses
}

// UnderlayOptions selects the addresses. Without Interface and CIDRs they are those of
// NodeIPs that are on a link, and without NodeIPs the first ones on the links of the
// default routes.
type UnderlayOptions struct {
	Namespace string         // path of a network namespace; "": the caller's
	Interface string         // name of the link with the addresses
	CIDRs     []netip.Prefix // networks of which one contains each address
	NodeIPs   []netip.Addr   // addresses of the Node object; the first on a link counts
}

// defaultMTU is that of a node whose underlay address is on the loopback link and which has
// no default route.
const defaultMTU = 1500

// ReadUnderlay reads the underlay from the kernel. It changes nothing and needs no rights
// in the caller's namespace. The error names what was looked for and what the links have.
func ReadUnderlay(ctx context.Context, opt UnderlayOptions) (u Underlay, err error) {
	if err = context.Cause(ctx); err == nil {
		err = rtnl.Within(opt.Namespace, func() error {
			socket, err := rtnl.Dial(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			u, err = readUnderlay(socket, opt)
			return errors.Join(err, socket.Close())
		})
	}
	if err != nil {
		return Underlay{}, fmt.Errorf("find this node's underlay addresses: %w", err)
	}
	return u, nil
}

// nic is a link with its addresses.
type nic struct {
	hostLink
	addresses []netip.Addr // usable for packets of other nodes, in the kernel's order
}

// hostLinks holds the links of a node that other programs have made.
type hostLinks struct {
	nics     []nic
	defaults map[bool]defaultPath // by family, true for IPv4
}

// defaultPath is the preferred default route of a family.
type defaultPath struct {
	link   uint32
	source netip.Addr // zero: the kernel chooses
	metric uint32
}

func readUnderlay(socket *rtnl.Socket, opt UnderlayOptions) (Underlay, error) {
	links, err := readLinks(socket)
	if err == nil && links.needDefaults(opt) {
		err = links.readDefaults(socket)
	}
	if err != nil {
		return Underlay{}, err
	}
	u := Underlay{}
	for _, is4 := range []bool{true, false} {
		a, n := links.choose(opt, is4)
		if n == nil {
			continue
		}
		mtu := links.mtu(n, is4)
		if len(u.Addresses) == 0 {
			u.Link, u.MTU = n.name, mtu
		}
		u.Addresses, u.MTU = append(u.Addresses, a), min(u.MTU, mtu)
	}
	if len(u.Addresses) == 0 {
		return Underlay{}, links.missing(opt)
	}
	return u, nil
}

// readLinks reads links and addresses.
func readLinks(socket *rtnl.Socket) (*hostLinks, error) {
	links, err := listLinks(socket, "")
	if err != nil {
		return nil, err
	}
	var byLink map[uint32][]netip.Addr
	reset := func() { byLink = map[uint32][]netip.Addr{} }
	body := make(rtnl.Message, unix.SizeofIfAddrmsg)
	err = socket.Dump("addresses", unix.RTM_GETADDR, body, reset, func(b []byte) {
		// Addresses of other families cannot be decoded.
		if a, err := rtnl.DecodeAddress(b); err == nil && usable(a) {
			byLink[a.Link] = append(byLink[a.Link], a.Prefix.Addr())
		}
	})
	if err != nil {
		return nil, err
	}
	h := &hostLinks{defaults: map[bool]defaultPath{}}
	for _, l := range links {
		if !strings.HasPrefix(l.alias, aliasPrefix) {
			h.nics = append(h.nics, nic{l, byLink[l.index]})
		}
	}
	return h, nil
}

// needDefaults reports whether the choice may depend on the default routes. To list them
// the kernel lists all routes of the main table.
func (h *hostLinks) needDefaults(opt UnderlayOptions) bool {
	return len(opt.NodeIPs) == 0 && opt.Interface == "" && len(opt.CIDRs) == 0 ||
		slices.ContainsFunc(h.nics, func(n nic) bool { return n.index == loopback && len(n.addresses) > 0 })
}

func (h *hostLinks) readDefaults(socket *rtnl.Socket) error {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := make(rtnl.Message, unix.SizeofRtMsg)
		body[0], body[7] = family, unix.RTN_UNICAST
		body = body.U32(unix.RTA_TABLE, unix.RT_TABLE_MAIN)
		reset := func() { delete(h.defaults, family == unix.AF_INET) }
		err := socket.Dump("default routes", unix.RTM_GETROUTE, body, reset, func(b []byte) {
			if r, err := rtnl.DecodeRoute(b); err == nil && r.Dst.Bits() == 0 {
				h.noteDefault(r)
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // a node without IPv4 routes has no such table
			return err
		}
	}
	return nil
}

// usable reports whether packets of other nodes can have an address as destination: of global
// scope, permanent or of a lease, not deprecated, not a temporary one of privacy extensions.
func usable(a rtnl.Address) bool {
	const unfit = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED
	ip := a.Prefix.Addr()
	temporary := ip.Is6() && a.Flags&unix.IFA_F_SECONDARY != 0
	return a.Flags&unfit == 0 && !temporary && ip.IsGlobalUnicast()
}

// noteDefault notes a default route if it is the preferred one of its family so far.
func (h *hostLinks) noteDefault(r rtnl.Route) {
	is4 := r.Family == unix.AF_INET
	link := r.Link
	if len(r.Hops) > 0 {
		link = r.Hops[0].Link
	}
	if have, known := h.defaults[is4]; !known || r.Metric < have.metric {
		h.defaults[is4] = defaultPath{link, r.Source, r.Metric}
	}
}

// choose returns the address of a family and its link, nil for none.
func (h *hostLinks) choose(opt UnderlayOptions, is4 bool) (netip.Addr, *nic) {
	fits := func(a netip.Addr) bool {
		inside := func(p netip.Prefix) bool { return p.Contains(a) }
		return a.Is4() == is4 && (len(opt.CIDRs) == 0 || slices.ContainsFunc(opt.CIDRs, inside))
	}
	for _, wanted := range opt.NodeIPs {
		wanted = wanted.Unmap()
		for i := range h.nics {
			n := &h.nics[i]
			named := opt.Interface == "" || opt.Interface == n.name
			if fits(wanted) && named && slices.Contains(n.addresses, wanted) {
				return wanted, n
			}
		}
	}
	if opt.Interface == "" && len(opt.CIDRs) == 0 {
		if len(opt.NodeIPs) > 0 {
			return netip.Addr{}, nil
		}
		return h.onDefault(is4)
	}
	for i := range h.nics {
		n := &h.nics[i]
		if opt.Interface != "" && opt.Interface != n.name {
			continue
		}
		if k := slices.IndexFunc(n.addresses, fits); k >= 0 {
			return n.addresses[k], n
		}
	}
	return netip.Addr{}, nil
}

// onDefault returns the address of a family on the link of its default route.
func (h *hostLinks) onDefault(is4 bool) (netip.Addr, *nic) {
	route, ok := h.defaults[is4]
	if !ok {
		return netip.Addr{}, nil
	}
	if route.source.IsValid() { // it may be on another link
		for i := range h.nics {
			if slices.Contains(h.nics[i].addresses, route.source) {
				return route.source, &h.nics[i]
			}
		}
	}
	for i := range h.nics {
		n := &h.nics[i]
		if n.index != route.link {
			continue
		}
		if k := slices.IndexFunc(n.addresses, func(a netip.Addr) bool { return a.Is4() == is4 }); k >= 0 {
			return n.addresses[k], n
		}
	}
	return netip.Addr{}, nil
}

// mtu returns the MTU of the link that packets from an address of n leave by: n, or for an
// address of the loopback link that of the default route.
func (h *hostLinks) mtu(n *nic, is4 bool) int {
	if n.index != loopback {
		return int(n.mtu)
	}
	if route, ok := h.defaults[is4]; ok {
		for i := range h.nics {
			if h.nics[i].index == route.link {
				return int(h.nics[i].mtu)
			}
		}
	}
	return defaultMTU
}

// missing returns the error of a node without an underlay address.
func (h *hostLinks) missing(opt UnderlayOptions) error {
	var wanted string
	switch {
	case opt.Interface != "" && len(opt.CIDRs) > 0:
		wanted = fmt.Sprintf("link %q (cadastre.underlay.interface) has no address in %s (cadastre.underlay.cidrs)",
			opt.Interface, joined(opt.CIDRs))
	case opt.Interface != "":
		wanted = fmt.Sprintf("link %q (cadastre.underlay.interface) has no address", opt.Interface)
	case len(opt.CIDRs) > 0:
		wanted = fmt.Sprintf("no link has an address in %s (cadastre.underlay.cidrs)", joined(opt.CIDRs))
	case len(opt.NodeIPs) > 0:
		wanted = fmt.Sprintf(
			"no link has an address of the Node object, %s; name a link in cadastre.underlay.interface",
			joined(opt.NodeIPs),
		)
	default:
		wanted = "there is no Node object, and no default route whose link has an address; " +
			"name a link in cadastre.underlay.interface"
	}
	return fmt.Errorf("%s; the links have %s", wanted, h)
}

// String lists the links that have addresses, at most shownLinks.
func (h *hostLinks) String() string {
	const shownLinks = 16
	var all []string
	for i := range h.nics {
		if n := &h.nics[i]; len(n.addresses) > 0 {
			all = append(all, n.name+" "+joined(n.addresses))
		}
	}
	if len(all) == 0 {
		return "no address"
	}
	if more := len(all) - shownLinks; more > 0 {
		all = append(all[:shownLinks], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// joined writes a list with blanks between the elements.
func joined[T fmt.Stringer](all []T) string {
	var texts []string
	for _, x := range all {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, " ")
}
