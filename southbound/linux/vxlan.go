// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// vxlanName is the name of the node's VXLAN link.
	vxlanName = "cadvxlan"
	vxlanKind = "vxlan"
	// vxlanPort is the port that IANA assigned to VXLAN. Linux's own default, 8472, is
	// the one of flannel and Cilium: on a node that had one of them, two links with one
	// VNI would be in each other's way.
	vxlanPort = 4789
)

// vxlan is the part of NodeNetwork that makes the node's VXLAN link. It learns no
// addresses: vxlanPeers writes them.
type vxlan struct {
	host *tunnelHost
	// name and alias are those of the link of a network; "": the node's.
	name, alias string
	// made is called when the link is made; may be nil.
	made func()
}

// label returns the name of the link.
func (v *vxlan) label() string { return cmp.Or(v.name, vxlanName) }

// mark returns the alias of the link.
func (v *vxlan) mark() string { return cmp.Or(v.alias, nodeAlias) }

// vxlanLink holds the wanted attributes of the link.
type vxlanLink struct {
	vni       uint32
	local     netip.Addr
	mac       hardware
	mtu       uint32 // 0: the kernel's
	addresses objects
}

// readVXLAN reads the wanted link from a value. The link uses one family of the underlay,
// that of the node's first address.
func readVXLAN(value *kv.NodeNetwork) (vxlanLink, error) {
	want, err := readVXLANLink(value.GetVni(), value.GetMtu(), value.GetUnderlay())
	if err != nil {
		return vxlanLink{}, err
	}
	if want.mac, err = readHardware("vxlan_mac", value.GetVxlanMac()); err != nil {
		return vxlanLink{}, err
	}
	addresses, err := readPrefixes("vxlan_ips", value.GetVxlanIps())
	want.addresses = routedAddresses(addresses)
	return want, err
}

// readVXLANLink reads what each VXLAN link has.
func readVXLANLink(vni, mtu uint32, underlay []string) (want vxlanLink, err error) {
	want = vxlanLink{vni: vni, mtu: mtu}
	if vni == 0 || vni >= 1<<24 {
		return vxlanLink{}, fmt.Errorf("vni %d: want 1 to %d", vni, 1<<24-1)
	}
	if len(underlay) == 0 {
		return vxlanLink{}, errors.New("underlay: want an address of this node on the underlay")
	}
	want.local, err = readAddr("underlay", underlay[0])
	return want, err
}

func (v *vxlan) read(value *kv.NodeNetwork, plan *nodePlan) error {
	if value.GetTransport() != kv.Transport_VXLAN {
		return nil
	}
	want, err := readVXLAN(value)
	plan.vxlan = &want
	return err
}

func (v *vxlan) wanted(plan nodePlan) bool { return plan.vxlan != nil }

// form returns the attribute of a request that makes the link, with its fixed attributes, or that
// changes its local address.
func (want vxlanLink) form(fixed rtnl.Message) rtnl.Message {
	local := uint16(unix.IFLA_VXLAN_LOCAL)
	if want.local.Is6() {
		local = unix.IFLA_VXLAN_LOCAL6
	}
	data := fixed.U32(unix.IFLA_VXLAN_ID, want.vni).Attr(local, want.local.AsSlice())
	return rtnl.Message(nil).Nest(unix.IFLA_LINKINFO, rtnl.Message(nil).
		Text(unix.IFLA_INFO_KIND, vxlanKind).
		Nest(unix.IFLA_INFO_DATA, data))
}

// plan returns the attributes of the link that can be changed. Packets from the link of a network
// are looked up in a table of their own.
func (v *vxlan) plan(want vxlanLink) linkPlan {
	return linkPlan{
		alias:     v.mark(),
		group:     unnamedGroup,
		mtu:       want.mtu,
		mac:       want.mac,
		noFilter:  v.name != "",
		noRouters: true,
	}
}

// link returns the VXLAN link.
func (v *vxlan) link() (link hostLink, found bool, err error) {
	ours := func(alias string) bool {
		return alias == v.mark() || v.name != "" && strings.HasPrefix(alias, networkAlias)
	}
	link, found, err = v.host.marked(v.label(), v.mark(), ours)
	if found && link.kind != vxlanKind {
		const text = "link %s is of type %s, not vxlan: %w"
		return hostLink{}, false, fmt.Errorf(text, v.label(), link.kind, southbound.ErrForeign)
	}
	return link, found, err
}

// create makes the link, or repairs it.
func (v *vxlan) create(plan nodePlan) error { return v.ensure(*plan.vxlan) }

// ensure makes the wanted link, or repairs it.
func (v *vxlan) ensure(want vxlanLink) error {
	link, found, err := v.link()
	if err != nil {
		return err
	}
	if found && !link.vxlan.sameForm(want) {
		if err := v.remove(); err != nil {
			return err
		}
		found = false
	}
	if !found {
		if v.made != nil {
			v.made()
		}
		if link, err = v.add(want); err != nil {
			return err
		}
	}
	return v.adjust(link, want)
}

// replaces reports whether the link has to go, or has to be made again.
func (v *vxlan) replaces(plan nodePlan) bool {
	link, found, err := v.link()
	return err == nil && found && (plan.vxlan == nil || !link.vxlan.sameForm(*plan.vxlan))
}

// add makes the link.
func (v *vxlan) add(want vxlanLink) (hostLink, error) {
	fixed := rtnl.Message(nil).
		U8(unix.IFLA_VXLAN_LEARNING, 0).
		Attr(unix.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, vxlanPort))
	what := fmt.Sprintf("add VXLAN link %s with VNI %d", v.label(), want.vni)
	body := append(v.plan(want).birth(v.label()), want.form(fixed)...)
	link, err := makeLink(v.host.socket, what, v.label(), body)
	if errors.Is(err, unix.EEXIST) {
		return hostLink{}, v.inTheWay(want, err)
	}
	return link, err
}

// inTheWay names the link with the same VNI and port, which has failed the request for another.
func (v *vxlan) inTheWay(want vxlanLink, failed error) error {
	links, err := listLinks(v.host.socket, vxlanKind)
	if err != nil {
		return err
	}
	for _, other := range links {
		if other.vxlan.vni == want.vni && other.vxlan.port == vxlanPort {
			const text = "%w: link %s has this VNI, and port %d: %w; remove it, or set another cadastre.vni"
			return fmt.Errorf(text, failed, other.name, vxlanPort, southbound.ErrForeign)
		}
	}
	return failed
}

// adjust corrects the attributes that can be changed. The request for the local address has
// nothing else: the kernel refuses one that has other attributes, even if they are the same.
func (v *vxlan) adjust(link hostLink, want vxlanLink) error {
	if link.vxlan.local != want.local {
		what := fmt.Sprintf("set local address %s of %s", want.local, v.label())
		if err := v.host.socket.Run([]*rtnl.Request{changeLink(what, link.index, 0, 0, want.form(nil))}); err != nil {
			return err
		}
	}
	return v.host.dress(link, v.plan(want), want.addresses)
}

// remove removes the link with its forwarding entries, neighbours and routes.
func (v *vxlan) remove() error {
	link, found, err := v.link()
	if errors.Is(err, southbound.ErrForeign) || err == nil && !found {
		return nil // what is there is not ours
	}
	if err != nil {
		return err
	}
	return removeLink(v.host.socket, link)
}

// retrieve compares the link with a plan.
func (v *vxlan) retrieve(into *kv.NodeNetwork, plan nodePlan) (partState, error) {
	link, found, err := v.link()
	if errors.Is(err, southbound.ErrForeign) || err == nil && !found {
		return partAbsent, nil
	}
	if err != nil {
		return partAbsent, err
	}
	have, err := v.host.addresses(link)
	if err != nil {
		return partAbsent, err
	}
	if plan.vxlan != nil && v.complete(link, *plan.vxlan, have) {
		return partComplete, nil
	}
	into.Transport = kv.Transport_VXLAN
	into.Vni, into.VxlanMac, into.Mtu = link.vxlan.vni, link.mac.String(), link.mtu
	into.VxlanIps, into.Underlay = nil, nil
	for o := range have.all {
		into.VxlanIps = append(into.VxlanIps, o.prefix.String())
	}
	slices.Sort(into.VxlanIps)
	if link.vxlan.local.IsValid() {
		into.Underlay = []string{link.vxlan.local.String()}
	}
	return partDifferent, nil
}

// complete reports whether ensure would change nothing; have holds the link's addresses.
func (v *vxlan) complete(link hostLink, want vxlanLink, have *linkObjects) bool {
	return link.vxlan.sameForm(want) && link.vxlan.local == want.local &&
		v.plan(want).dressed(link, want.addresses, have)
}

// vxlanForm holds what a VXLAN link has beside other links.
type vxlanForm struct {
	vni    uint32
	port   uint16
	learns bool
	below  uint32     // index of the link that it sends through; 0: any
	local  netip.Addr // on the underlay
}

// parseVXLAN reads the attributes of IFLA_INFO_DATA.
func parseVXLAN(info []byte) (f vxlanForm) {
	rtnl.Attributes(info, func(kind uint16, v []byte) {
		switch {
		case kind == unix.IFLA_VXLAN_ID:
			f.vni = rtnl.Number(v)
		case kind == unix.IFLA_VXLAN_PORT && len(v) == 2:
			f.port = binary.BigEndian.Uint16(v)
		case kind == unix.IFLA_VXLAN_LEARNING && len(v) == 1:
			f.learns = v[0] != 0
		case kind == unix.IFLA_VXLAN_LINK:
			f.below = rtnl.Number(v)
		case kind == unix.IFLA_VXLAN_LOCAL || kind == unix.IFLA_VXLAN_LOCAL6:
			f.local, _ = netip.AddrFromSlice(v)
		}
	})
	return f
}

// sameForm reports whether a link has the attributes that cannot be changed.
func (f vxlanForm) sameForm(want vxlanLink) bool {
	return f == vxlanForm{vni: want.vni, port: vxlanPort, local: f.local} && f.local.Is4() == want.local.Is4()
}
