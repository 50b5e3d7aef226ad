// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// vxlanName is the name of the node's VXLAN link.
	vxlanName = "cadvxlan"
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
	vni       int
	local     netip.Addr
	mac       net.HardwareAddr
	mtu       int // 0: the kernel's
	addresses []netip.Prefix
}

// readVXLAN reads the wanted link from a value. The link uses one family of the underlay,
// that of the node's first address.
func readVXLAN(value *kv.NodeNetwork) (vxlanLink, error) {
	want, err := readVXLANLink(value.GetVni(), value.GetMtu(), value.GetUnderlay())
	if err != nil {
		return vxlanLink{}, err
	}
	if want.mac, err = readMAC("vxlan_mac", value.GetVxlanMac()); err != nil {
		return vxlanLink{}, err
	}
	if want.addresses, err = readPrefixes("vxlan_ips", value.GetVxlanIps()); err != nil {
		return vxlanLink{}, err
	}
	return want, nil
}

// readVXLANLink reads what each VXLAN link has.
func readVXLANLink(vni, mtu uint32, underlay []string) (want vxlanLink, err error) {
	want = vxlanLink{vni: int(vni), mtu: int(mtu)}
	if vni == 0 || vni >= 1<<24 {
		return vxlanLink{}, fmt.Errorf("vni %d: want 1 to %d", vni, 1<<24-1)
	}
	if len(underlay) == 0 {
		return vxlanLink{}, errors.New("underlay: want an address of this node on the underlay")
	}
	want.local, err = readAddr("underlay", underlay[0])
	return want, err
}

func (v *vxlan) wanted(value *kv.NodeNetwork) bool { return value.GetTransport() == kv.Transport_VXLAN }

func (v *vxlan) validate(value *kv.NodeNetwork) error {
	_, err := readVXLAN(value)
	return err
}

// link returns the VXLAN link, nil if it is missing.
func (v *vxlan) link() (*netlink.Vxlan, error) {
	ours := func(alias string) bool {
		return alias == v.mark() || v.name != "" && strings.HasPrefix(alias, networkAlias)
	}
	link, err := v.host.marked(v.label(), v.mark(), ours)
	if err != nil || link == nil {
		return nil, err
	}
	found, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("link %s is of type %s, not vxlan: %w", v.label(), link.Type(), southbound.ErrForeign)
	}
	return found, nil
}

// create makes the link, or repairs it.
func (v *vxlan) create(value *kv.NodeNetwork) error {
	want, err := readVXLAN(value)
	if err != nil {
		return err
	}
	return v.ensure(want)
}

// ensure makes the wanted link, or repairs it.
func (v *vxlan) ensure(want vxlanLink) error {
	link, err := v.link()
	if err != nil {
		return err
	}
	if link != nil && !want.sameForm(link) {
		if err := v.remove(); err != nil {
			return err
		}
		link = nil
	}
	made := link == nil
	if v.made != nil && made {
		v.made()
	}
	if made {
		link, err = v.add(want)
	}
	if err == nil {
		err = v.adjust(link, want)
	}
	if err != nil && made && link != nil {
		err = errors.Join(err, v.remove())
	}
	return err
}

// replaces reports whether the link has to go, or has to be made again.
func (v *vxlan) replaces(value *kv.NodeNetwork) bool {
	link, err := v.link()
	if err != nil || link == nil {
		return false
	}
	want, err := readVXLAN(value)
	return !v.wanted(value) || err == nil && !want.sameForm(link)
}

// sameForm reports whether a link has the attributes that cannot be changed.
func (want vxlanLink) sameForm(link *netlink.Vxlan) bool {
	local, _ := netip.AddrFromSlice(link.SrcAddr)
	return link.VxlanId == want.vni && link.Port == vxlanPort && !link.Learning && link.VtepDevIndex == 0 &&
		local.Unmap().Is4() == want.local.Is4()
}

// sameLocal reports whether a link has the wanted address on the underlay.
func (want vxlanLink) sameLocal(link *netlink.Vxlan) bool {
	local, _ := netip.AddrFromSlice(link.SrcAddr)
	return local.Unmap() == want.local
}

// add makes the link. It returns the link also if only a later step failed.
func (v *vxlan) add(want vxlanLink) (*netlink.Vxlan, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU, attrs.Group = v.label(), want.mac, want.mtu, unnamedGroup
	link := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: want.vni, SrcAddr: want.local.AsSlice(), Port: vxlanPort}
	if err := v.host.kernel.LinkAdd(link); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil, v.inTheWay(want)
		}
		return nil, fmt.Errorf("add VXLAN link %s: %w", v.label(), err)
	}
	return link, nil
}

// inTheWay names the link with the same VNI and port.
func (v *vxlan) inTheWay(want vxlanLink) error {
	links, err := v.host.links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if other, ok := l.(*netlink.Vxlan); ok && other.VxlanId == want.vni && other.Port == vxlanPort {
			return fmt.Errorf(
				"add VXLAN link %s with VNI %d and port %d: link %s has both: %w; remove it, or set another cadastre.vni",
				v.label(),
				want.vni,
				vxlanPort,
				other.Name,
				southbound.ErrForeign,
			)
		}
	}
	return fmt.Errorf("add VXLAN link %s with VNI %d: %w", v.label(), want.vni, unix.EEXIST)
}

// adjust corrects the attributes that can be changed.
func (v *vxlan) adjust(link *netlink.Vxlan, want vxlanLink) error {
	local, _ := netip.AddrFromSlice(link.SrcAddr)
	if local.Unmap() != want.local {
		if err := v.host.within(func() error { return setVXLANLocal(link.Index, want) }); err != nil {
			return fmt.Errorf("set local address %s of %s: %w", want.local, v.label(), err)
		}
	}
	if !slices.Equal(link.HardwareAddr, want.mac) {
		if err := v.host.kernel.LinkSetHardwareAddr(link, want.mac); err != nil {
			return fmt.Errorf("set MAC address %s of %s: %w", want.mac, v.label(), err)
		}
	}
	return v.host.dress(link, v.mark(), want.mtu, want.addresses)
}

// setVXLANLocal changes the local address of a link, and nothing else: the kernel refuses
// a request that has other attributes, even if they are the same.
func setVXLANLocal(index int, want vxlanLink) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(want.vni)))
	kind := nl.IFLA_VXLAN_LOCAL
	if want.local.Is6() {
		kind = nl.IFLA_VXLAN_LOCAL6
	}
	data.AddRtAttr(kind, want.local.AsSlice())
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// remove removes the link with its forwarding entries, neighbours and routes.
func (v *vxlan) remove() error {
	link, err := v.link()
	if errors.Is(err, southbound.ErrForeign) || err == nil && link == nil {
		return nil // what is there is not ours
	}
	if err != nil {
		return err
	}
	return v.host.removeLink(link)
}

// retrieve compares the link with the wanted value.
func (v *vxlan) retrieve(into, wanted *kv.NodeNetwork) (partState, error) {
	link, err := v.link()
	if errors.Is(err, southbound.ErrForeign) || err == nil && link == nil {
		return partAbsent, nil
	}
	if err != nil {
		return partAbsent, err
	}
	have, err := v.host.addresses(link)
	if err != nil {
		return partAbsent, err
	}
	local, _ := netip.AddrFromSlice(link.SrcAddr)
	local = local.Unmap()
	want, err := readVXLAN(wanted)
	if err == nil && v.wanted(wanted) && want.sameForm(link) && local == want.local &&
		slices.Equal(link.HardwareAddr, want.mac) && v.host.dressed(link, v.mark(), want.mtu, want.addresses, have) {
		return partComplete, nil
	}
	into.Transport = kv.Transport_VXLAN
	into.Vni, into.VxlanMac, into.Mtu = uint32(link.VxlanId), link.HardwareAddr.String(), uint32(link.MTU)
	into.VxlanIps, into.Underlay = texts(have), nil
	if local.IsValid() {
		into.Underlay = []string{local.String()}
	}
	return partDifferent, nil
}
