// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
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

const (
	// ownAlias begins the alias of each link that this package makes.
	ownAlias = "cadastre:"
	// answerTimeout bounds the wait for each answer of the kernel.
	answerTimeout = 10 * time.Second
	// readTries limits the attempts of a read while the kernel's state changes.
	readTries = 10
	// defaultMTU is that of a node whose underlay address is on the loopback link and
	// which has no default route.
	defaultMTU = 1500
)

// ReadUnderlay reads the underlay from the kernel. It changes nothing and needs no rights
// in the caller's namespace. The error names what was looked for and what the links have.
func ReadUnderlay(ctx context.Context, opt UnderlayOptions) (u Underlay, err error) {
	err = rtnl.Within(opt.Namespace, func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer handle.Close()
		if err := handle.SetSocketTimeout(answerTimeout); err != nil {
			return err
		}
		for range readTries {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if u, err = readUnderlay(handle, opt); !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		return err
	})
	if err != nil {
		return Underlay{}, fmt.Errorf("find this node's underlay addresses: %w", err)
	}
	return u, nil
}

// nic is a link with its addresses.
type nic struct {
	netlink.LinkAttrs
	addresses []netip.Addr // usable for packets of other nodes, in the kernel's order
}

// hostLinks holds the links of a node that other programs have made.
type hostLinks struct {
	nics     []nic
	defaults map[bool]defaultPath // by family, true for IPv4
}

// defaultPath is the preferred default route of a family.
type defaultPath struct {
	link   int
	source netip.Addr // zero: the kernel chooses
	metric int
}

func readUnderlay(handle *netlink.Handle, opt UnderlayOptions) (Underlay, error) {
	links, err := readLinks(handle)
	if err == nil && links.needDefaults(opt) {
		err = links.readDefaults(handle)
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
			u.Link, u.MTU = n.Name, mtu
		}
		u.Addresses, u.MTU = append(u.Addresses, a), min(u.MTU, mtu)
	}
	if len(u.Addresses) == 0 {
		return Underlay{}, links.missing(opt)
	}
	return u, nil
}

// readLinks reads links and addresses.
func readLinks(handle *netlink.Handle) (*hostLinks, error) {
	links, err := handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addresses, err := handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	byLink := map[int][]netip.Addr{}
	for _, a := range addresses {
		if ip, ok := usable(a); ok {
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], ip)
		}
	}
	h := &hostLinks{defaults: map[bool]defaultPath{}}
	for _, l := range links {
		if a := l.Attrs(); !strings.HasPrefix(a.Alias, ownAlias) {
			h.nics = append(h.nics, nic{*a, byLink[a.Index]})
		}
	}
	return h, nil
}

// needDefaults reports whether the choice may depend on the default routes. To list them
// the kernel lists all routes.
func (h *hostLinks) needDefaults(opt UnderlayOptions) bool {
	return len(opt.NodeIPs) == 0 && opt.Interface == "" && len(opt.CIDRs) == 0 ||
		slices.ContainsFunc(h.nics, func(n nic) bool { return n.Flags&net.FlagLoopback != 0 && len(n.addresses) > 0 })
}

func (h *hostLinks) readDefaults(handle *netlink.Handle) error {
	for family, is4 := range map[int]bool{netlink.FAMILY_V4: true, netlink.FAMILY_V6: false} {
		routes, err := handle.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		if err != nil {
			return fmt.Errorf("list default routes: %w", err)
		}
		for _, r := range routes {
			h.noteDefault(r, is4)
		}
	}
	return nil
}

// usable returns an address that packets of other nodes can have as destination: of global
// scope, permanent or of a lease, not deprecated, not a temporary one of privacy extensions.
func usable(a netlink.Addr) (netip.Addr, bool) {
	const unfit = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED
	ip, ok := netip.AddrFromSlice(a.IP)
	ip = ip.Unmap()
	temporary := ip.Is6() && a.Flags&unix.IFA_F_SECONDARY != 0
	fit := ok && a.Flags&unfit == 0 && !temporary
	return ip, fit && ip.IsGlobalUnicast()
}

// noteDefault notes a default route if it is the preferred one of its family so far.
func (h *hostLinks) noteDefault(r netlink.Route, is4 bool) {
	if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.Type != unix.RTN_UNICAST || r.Table != unix.RT_TABLE_MAIN {
		return
	}
	link := r.LinkIndex
	if link == 0 && len(r.MultiPath) > 0 {
		link = r.MultiPath[0].LinkIndex
	}
	source, _ := netip.AddrFromSlice(r.Src)
	if have, known := h.defaults[is4]; !known || r.Priority < have.metric {
		h.defaults[is4] = defaultPath{link, source.Unmap(), r.Priority}
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
			named := opt.Interface == "" || opt.Interface == n.Name
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
		if opt.Interface != "" && opt.Interface != n.Name {
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
		if n.Index != route.link {
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
	if n.Flags&net.FlagLoopback == 0 {
		return n.MTU
	}
	if route, ok := h.defaults[is4]; ok {
		for i := range h.nics {
			if h.nics[i].Index == route.link {
				return h.nics[i].MTU
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
			all = append(all, n.Name+" "+joined(n.addresses))
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
