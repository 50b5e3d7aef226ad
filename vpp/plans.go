// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
)

// Roles in the tags of interfaces.
const (
	roleMain           = "main"    // the underlay
	roleHost           = "host"    // to the node's own programs
	roleBVI            = "bvi"     // routed interface of a bridge domain
	roleGateway        = "gateway" // the pods' gateway
	roleTunnel         = "tunnel"
	rolePod            = "pod"
	roleTable          = "network"
	roleDomain         = "domain"
	roleNetworkGateway = "network-gateway"
	roleLinkBVI        = "network-bvi"
	roleLinkDomain     = "network-domain"
)

// nodeDomain is the bridge domain of the node's own tunnels. Those of networks have their VNI.
const nodeDomain = 1

// linkName and vppLinkName are the ends of the link between the node's kernel and VPP.
const (
	linkName    = "vpp1"
	vppLinkName = "vpp2"
)

// planner derives the objects of values. It keeps what the value "node" says, because other
// values lead over its interfaces.
type planner struct {
	opt  Options
	node nodeValue
}

// nodeValue holds the last value "node". Any goroutine may call it: notes do.
type nodeValue struct {
	last atomic.Pointer[kv.NodeNetwork]
}

func (v *nodeValue) get() *kv.NodeNetwork { return v.last.Load() }

func (v *nodeValue) set(m *kv.NodeNetwork) { v.last.Store(m) }

// hasMain reports whether VPP has an interface of the underlay.
func (r *planner) hasMain() bool { return r.opt.Main.Name != "" }

// gatewayTag returns the tag of the interface with the gateways of the pods in a table.
func gatewayTag(network string, table uint32) string {
	if table == 0 {
		return tagOf(roleGateway, kv.SinkNode)
	}
	return tagOf(roleNetworkGateway, network)
}

// bviTag returns the tag of the routed interface of the tunnels of a network, "" for the
// node's own.
func bviTag(network string) string {
	if network == "" {
		return tagOf(roleBVI, kv.SinkNode)
	}
	return tagOf(roleLinkBVI, network)
}

func mainTag() string { return tagOf(roleMain, kv.SinkNode) }
func hostTag() string { return tagOf(roleHost, kv.SinkNode) }

// nodePlan returns the objects of the value "node".
func (r *planner) nodePlan(m *kv.NodeNetwork) (*plan, error) {
	p, id := &plan{key: kv.SinkNode}, fmt.Sprint(m.GetId())
	gateways, err := readAddrs("pod_gateways", m.GetPodGateways())
	if err != nil {
		return nil, err
	}
	gateway := &link{tag: gatewayTag("", 0), kind: loopLink, mac: derivedMAC("gateway " + id)}
	for _, a := range gateways {
		gateway.addresses = append(gateway.addresses, whole(a))
	}
	p.links = append(p.links, gateway)
	if r.hasMain() {
		ips, err := readPrefixes("node_ips", m.GetNodeIps())
		if err != nil {
			return nil, err
		}
		p.links = append(p.links, &link{
			tag:       mainTag(),
			kind:      packetLink,
			hostName:  r.opt.Main.Name,
			mac:       derivedMAC("main " + id),
			mtu:       r.opt.Main.MTU,
			addresses: ips,
		})
		for _, a := range r.opt.Main.Gateways {
			p.routes = append(p.routes, route{place: place{dst: defaultRoute(a)}, via: a, link: mainTag()})
		}
	}
	if err := r.addHostLink(p, m); err != nil {
		return nil, err
	}
	if m.GetTransport() != kv.Transport_VXLAN {
		return p, nil
	}
	vxlan, err := readPrefixes("vxlan_ips", m.GetVxlanIps())
	if err != nil {
		return nil, err
	}
	hardware, err := readMAC("vxlan_mac", m.GetVxlanMac())
	if err != nil {
		return nil, err
	}
	p.domains = append(p.domains, domain{id: nodeDomain, tag: tagOf(roleDomain, kv.SinkNode)})
	p.links = append(p.links, &link{
		tag:       bviTag(""),
		kind:      loopLink,
		mac:       hardware,
		addresses: vxlan,
		domain:    nodeDomain,
		bvi:       true,
	})
	return p, nil
}

// addHostLink adds VPP's end of the link to the node's kernel. Without an interface of the
// underlay the default routes lead there.
func (r *planner) addHostLink(p *plan, m *kv.NodeNetwork) error {
	own, err := readEnds("host_interconnect_vpp", m.GetHostInterconnectVpp())
	if err != nil || len(own) == 0 {
		return err
	}
	theirs, err := readEnds("host_interconnect_linux", m.GetHostInterconnectLinux())
	if err != nil {
		return err
	}
	l := &link{
		tag:        hostTag(),
		kind:       packetLink,
		hostName:   vppLinkName,
		mac:        hostLinkMAC(m, vppLinkName),
		mtu:        m.GetMtu(),
		addresses:  own,
		neighbours: map[netip.Addr]mac{},
	}
	for _, t := range theirs {
		l.neighbours[t.Addr()] = hostLinkMAC(m, linkName)
		// VPP's own address is /32: no connected route leads to the other end.
		p.routes = append(p.routes, route{place: place{dst: whole(t.Addr())}, via: t.Addr(), link: l.tag})
		if !r.hasMain() {
			p.routes = append(p.routes, route{place: place{dst: defaultRoute(t.Addr())}, via: t.Addr(), link: l.tag})
		}
	}
	p.links = append(p.links, l)
	behind, err := readPrefixes("host_destinations", m.GetHostDestinations())
	if err != nil {
		return err
	}
	for _, dst := range behind {
		for _, t := range theirs {
			if t.Addr().Is4() == dst.Addr().Is4() {
				p.routes = append(p.routes, route{place: place{dst: dst.Masked()}, via: t.Addr(), link: l.tag})
			}
		}
	}
	return nil
}

// hostLinkMAC returns the MAC of one end of the link between kernel and VPP.
func hostLinkMAC(m *kv.NodeNetwork, end string) mac {
	return derivedMAC(fmt.Sprintf("%s %d", end, m.GetId()))
}

// networkPlan returns the objects of a network with a table of its own.
func (r *planner) networkPlan(key string, m *kv.Network) (*plan, error) {
	p := &plan{key: key}
	subnets, err := readPrefixes("subnets", m.GetSubnets())
	if err != nil {
		return nil, err
	}
	if m.GetTable() == 0 {
		for _, s := range subnets {
			if m.GetClosed() { // packets to pods that are not there must not leave by the default route
				p.routes = append(p.routes, route{place: place{dst: s.Masked()}, drop: true})
			}
		}
		return p, nil
	}
	p.tables = []table{{id: m.GetTable(), name: tagOf(roleTable, m.GetName())}}
	gateway := &link{
		tag:       gatewayTag(m.GetName(), m.GetTable()),
		kind:      loopLink,
		mac:       derivedMAC("gateway " + key),
		table:     m.GetTable(),
		addresses: []netip.Prefix{whole(networkGateway)},
	}
	if m.GetVni() == 0 { // the network of the node's own tunnels is that of its pods
		gateways, err := readAddrs("pod_gateways", r.node.get().GetPodGateways())
		if err != nil {
			return nil, err
		}
		for _, a := range gateways {
			gateway.addresses = append(gateway.addresses, whole(a))
		}
	}
	p.links = append(p.links, gateway)
	families := map[netip.Prefix]bool{}
	for _, s := range subnets {
		// Packets to pods that are not there must not leave by the default route.
		p.routes = append(p.routes, route{place: place{m.GetTable(), s.Masked()}, drop: true})
		if all := defaultRoute(s.Addr()); !families[all] {
			families[all] = true
			// Only the default network leads to the node's table, where pods of others would be.
			p.routes = append(p.routes, route{place: place{m.GetTable(), all}, drop: m.GetVni() != 0})
		}
		if m.GetVni() == 0 { // the node's own tunnels and programs reach it from the main table
			p.routes = append(p.routes, route{place: place{0, s.Masked()}, into: m.GetTable()})
		}
	}
	return p, nil
}

// networkGateway is the address that interfaces in a network's table have. It makes VPP take
// IPv4 packets there, and is the source of its ICMP errors.
var networkGateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// linkPlan returns the objects of the tunnels of a network.
func (r *planner) linkPlan(key string, m *kv.NetworkLink) (*plan, error) {
	hardware, err := readMAC("mac", m.GetMac())
	if err != nil {
		return nil, err
	}
	if m.GetVni() == nodeDomain || m.GetVni() == 0 {
		return nil, fmt.Errorf("vni %d: want another one than 0 and that of the node's bridge domain", m.GetVni())
	}
	return &plan{
		key:     key,
		domains: []domain{{id: m.GetVni(), tag: tagOf(roleLinkDomain, m.GetNetwork())}},
		links: []*link{{
			tag:    bviTag(m.GetNetwork()),
			kind:   loopLink,
			mac:    hardware,
			table:  m.GetTable(),
			lender: gatewayTag(m.GetNetwork(), m.GetTable()),
			domain: m.GetVni(),
			bvi:    true,
		}},
	}, nil
}

// tunnelPlan returns the objects of a tunnel. Its neighbours are on the routed interface of its
// bridge domain.
func (r *planner) tunnelPlan(key string, m *kv.NodeTunnel, live bool) (*plan, error) {
	if m.GetTransport() != kv.Transport_VXLAN {
		return nil, fmt.Errorf("transport %s: VPP has VXLAN alone; set transport: vxlan", m.GetTransport())
	}
	hardware, err := readMAC("mac", m.GetMac())
	if err != nil {
		return nil, err
	}
	theirs, err := readAddrs("underlay", m.GetUnderlay())
	if err != nil {
		return nil, err
	}
	src, dst, err := r.underlay(theirs)
	if err != nil && live { // this node's own underlay may be known later
		return nil, err
	}
	ips, err := readAddrs("vxlan_ips", m.GetVxlanIps())
	if err != nil {
		return nil, err
	}
	in, vni := uint32(nodeDomain), r.node.get().GetVni()
	if m.GetNetwork() != "" {
		in, vni = m.GetVni(), m.GetVni()
	}
	n := &neighbours{link: bviTag(m.GetNetwork()), all: map[netip.Addr]mac{}}
	for _, a := range ips {
		n.all[a] = hardware
	}
	return &plan{key: key, neighbours: n, links: []*link{{
		tag:      tagOf(roleTunnel, key),
		kind:     vxlanLink,
		src:      src,
		dst:      dst,
		vni:      vni,
		instance: instanceOf(key, m),
		domain:   in,
		macs:     []mac{hardware},
	}}}, nil
}

// neighbours are those of a tunnel on the routed interface of its bridge domain.
type neighbours struct {
	link string // tag
	all  map[netip.Addr]mac
}

// underlay returns this node's address and that of another one, of the same family.
func (r *planner) underlay(theirs []netip.Addr) (src, dst netip.Addr, err error) {
	own, err := readAddrs("underlay of this node", r.node.get().GetUnderlay())
	if err != nil {
		return src, dst, err
	}
	if len(own) == 0 {
		ips, err := readPrefixes("node_ips", r.node.get().GetNodeIps())
		if err != nil {
			return src, dst, err
		}
		for _, p := range ips {
			own = append(own, p.Addr())
		}
	}
	for _, a := range own {
		for _, b := range theirs {
			if a.Is4() == b.Is4() {
				return a, b, nil
			}
		}
	}
	return src, dst, fmt.Errorf("underlay %v: this node has %v: want one of the same family", theirs, own)
}

// instanceOf returns the number of a tunnel, which is in the name of its interface. It follows
// from the node's ID, in a network also from its name.
func instanceOf(key string, m *kv.NodeTunnel) uint32 {
	const (
		ids     = 0x07ffffff
		network = 0x08000000
	)
	if m.GetNetwork() == "" {
		return firstInstance | m.GetNodeId()&ids
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return firstInstance | network | h.Sum32()&ids
}

// routePlan returns the route to the pods of another node.
func (r *planner) routePlan(key string, m *kv.NodeRoute) (*plan, error) {
	dst, err := netip.ParsePrefix(m.GetDst())
	if err != nil {
		return nil, fmt.Errorf("dst %q: %w", m.GetDst(), err)
	}
	if m.GetGateway() == "" { // packets to it do not leave by the default route
		return &plan{key: key, routes: []route{{place: place{m.GetTable(), dst.Masked()}, unreachable: true}}}, nil
	}
	gateway, err := netip.ParseAddr(m.GetGateway())
	if err != nil {
		return nil, fmt.Errorf("gateway %q: %w", m.GetGateway(), err)
	}
	at := route{place: place{m.GetTable(), dst.Masked()}, via: gateway}
	switch {
	case m.GetTransport() == kv.Transport_VXLAN:
		at.link = bviTag(m.GetNetwork())
	case m.GetTransport() != kv.Transport_DIRECT:
		return nil, fmt.Errorf("transport %s: VPP has VXLAN and direct routes alone", m.GetTransport())
	case r.hasMain():
		at.link = mainTag()
	default:
		at.link = hostTag()
	}
	return &plan{key: key, routes: []route{at}}, nil
}

// podPlan returns the objects of a pod, nil if another plugin makes its interface. hostID is
// the index of the kernel's link.
func (r *planner) podPlan(key string, m *kv.PodNetwork, hostID int) (*plan, error) {
	wire := m.GetWire()
	if wire == nil {
		return nil, nil
	}
	own, err := readMAC("host_mac", wire.GetHostMac())
	if err != nil {
		return nil, err
	}
	pods, err := readMAC("pod_mac", wire.GetPodMac())
	if err != nil {
		return nil, err
	}
	addresses, err := readPrefixes("addresses", m.GetAddresses())
	if err != nil {
		return nil, err
	}
	l := &link{
		tag:        tagOf(rolePod, wire.GetHostIfName()),
		kind:       packetLink,
		hostName:   wire.GetHostIfName(),
		hostID:     hostID,
		mac:        own,
		mtu:        wire.GetMtu(),
		table:      wire.GetTable(),
		lender:     gatewayTag(wire.GetPool(), wire.GetTable()),
		neighbours: map[netip.Addr]mac{},
	}
	p := &plan{key: key, links: []*link{l}}
	for _, a := range addresses {
		l.neighbours[a.Addr()] = pods
		p.routes = append(p.routes, route{place: place{l.table, whole(a.Addr())}, via: a.Addr(), link: l.tag})
	}
	return p, nil
}

// egressPlan returns the translation of what leaves the cluster.
func (r *planner) egressPlan(m *kv.Egress) (*plan, error) {
	p := &plan{key: kv.SinkEgress}
	sources, err := readPrefixes("sources", m.GetSources())
	if err != nil || !r.hasMain() { // without it the node's kernel sees the packets
		return p, err
	}
	for _, s := range sources {
		if s.Addr().Is4() {
			p.nat = &nat{link: mainTag()}
		}
	}
	return p, nil
}

// message returns a value of a type, or an error.
func message[T proto.Message](value proto.Message) (T, error) {
	m, ok := value.(T)
	if !ok {
		return m, fmt.Errorf("the value is a %T, want a %T", value, m)
	}
	return m, nil
}

func readAddrs(field string, texts []string) (all []netip.Addr, err error) {
	for _, t := range texts {
		a, err := netip.ParseAddr(t)
		if err != nil {
			if p, prefixErr := netip.ParsePrefix(t); prefixErr == nil {
				a, err = p.Addr(), nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", field, t, err)
		}
		all = append(all, a)
	}
	return all, nil
}

// readEnds reads the addresses of one end of a link. An address has no length of its own.
func readEnds(field string, texts []string) (all []netip.Prefix, err error) {
	addresses, err := readAddrs(field, texts)
	for _, a := range addresses {
		all = append(all, whole(a))
	}
	return all, err
}

func readPrefixes(field string, texts []string) (all []netip.Prefix, err error) {
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, fmt.Errorf("%s %q: want address/prefix-length: %w", field, t, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func readMAC(field, text string) (m mac, err error) {
	hardware, err := net.ParseMAC(text)
	if err == nil && (len(hardware) != len(m) || hardware[0]&1 != 0) {
		err = errors.New("want the address of one Ethernet interface, such as 0a:58:0a:01:05:02")
	}
	if err != nil {
		return m, fmt.Errorf("%s %q: %w", field, text, err)
	}
	copy(m[:], hardware)
	return m, nil
}

// whole returns the prefix of one address.
func whole(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// defaultRoute returns the destination of all addresses of the family of a.
func defaultRoute(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
