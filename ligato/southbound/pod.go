// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gogo/protobuf/proto"
	linux_interfaces "github.com/ligato/vpp-agent/api/models/linux/interfaces"
	linux_l3 "github.com/ligato/vpp-agent/api/models/linux/l3"
	linux_namespace "github.com/ligato/vpp-agent/api/models/linux/namespace"

	"github.com/cadastre/cadastre/api/kv"
)

// values holds Ligato's values by Ligato's keys.
type values map[string]proto.Message

func (v values) iface(i *linux_interfaces.Interface) {
	v[linux_interfaces.InterfaceKey(i.Name)] = i
}

func (v values) route(r *linux_l3.Route) {
	v[linux_l3.RouteKey(r.DstNetwork, r.OutgoingInterface)] = r
}

func (v values) neighbour(iface string, ip netip.Addr, mac string) {
	v[linux_l3.ArpKey(iface, ip.String())] = &linux_l3.ARPEntry{
		Interface: iface,
		IpAddress: ip.String(),
		HwAddress: mac,
	}
}

const (
	// podEndPrefix begins the logical name of the pod's end of a wire. The host end has the
	// name that the value gives it.
	podEndPrefix = "pod-"
	// metricIPv6 is the metric that the kernel gives an IPv6 route without one: Ligato
	// compares it at each resync.
	metricIPv6 = 1024
)

// endpoint holds one address of a pod and its gateway.
type endpoint struct{ address, gateway netip.Addr }

// podValues returns the values of the wire of an attachment, none if another plugin makes
// its interface. On the host, each gateway is an address of the host end, and each address
// of the pod has a route and a permanent neighbour. The pod has the same in the other
// direction, and the routes of the attachment.
func podValues(pod *kv.PodNetwork) (values, error) {
	wire := pod.GetWire()
	if wire == nil {
		return nil, nil
	}
	if err := checkWire(pod, wire); err != nil {
		return nil, err
	}
	endpoints, err := readEndpoints(pod)
	if err != nil {
		return nil, err
	}
	host, inside := wire.GetHostIfName(), podEndPrefix+wire.GetHostIfName()
	hostEnd := vethEnd(host, inside, wire.GetHostMac(), wire.GetMtu())
	podEnd := vethEnd(inside, host, wire.GetPodMac(), wire.GetMtu())
	podEnd.HostIfName = pod.GetIfName()
	podEnd.Namespace = &linux_namespace.NetNamespace{
		Type:      linux_namespace.NetNamespace_FD,
		Reference: wire.GetNetns(),
	}
	v := values{}
	for _, e := range endpoints {
		hostEnd.IpAddresses = appendNew(hostEnd.IpAddresses, whole(e.gateway).String())
		podEnd.IpAddresses = appendNew(podEnd.IpAddresses, whole(e.address).String())
		v.route(linkRoute(host, e.address))
		v.route(linkRoute(inside, e.gateway))
		v.neighbour(host, e.address, wire.GetPodMac())
		v.neighbour(inside, e.gateway, wire.GetHostMac())
	}
	v.iface(hostEnd)
	v.iface(podEnd)
	return v, addRoutes(v, inside, pod.GetRoutes(), endpoints)
}

func checkWire(pod *kv.PodNetwork, wire *kv.Wire) error {
	const maxName = 15
	switch {
	case wire.GetNetns() == "":
		return errors.New("netns is empty: want the path of the pod's network namespace")
	case wire.GetTable() != 0:
		return fmt.Errorf("table %d of network %q: %w: want table 0, the main table",
			wire.GetTable(), wire.GetPool(), errNoRules)
	case badName(wire.GetHostIfName(), maxName):
		return fmt.Errorf("host_if_name %q: want 1 to %d characters without /", wire.GetHostIfName(), maxName)
	case badName(pod.GetIfName(), maxName):
		return fmt.Errorf("if_name %q: want 1 to %d characters without /", pod.GetIfName(), maxName)
	case len(pod.GetAddresses()) == 0 || len(pod.GetAddresses()) != len(pod.GetGateways()):
		return fmt.Errorf("%d addresses and %d gateways: want one gateway for each address, and at least one",
			len(pod.GetAddresses()), len(pod.GetGateways()))
	}
	return nil
}

func badName(name string, longest int) bool {
	return name == "" || len(name) > longest || strings.Contains(name, "/")
}

func readEndpoints(pod *kv.PodNetwork) (all []endpoint, err error) {
	for i, text := range pod.GetAddresses() {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", text, err)
		}
		gateway, err := netip.ParseAddr(pod.GetGateways()[i])
		if err != nil {
			return nil, fmt.Errorf("gateway %q: %w", pod.GetGateways()[i], err)
		}
		e := endpoint{prefix.Addr(), gateway}
		switch {
		case e.address.Is4() != e.gateway.Is4() || e.address == e.gateway:
			return nil, fmt.Errorf("gateway %s of address %s: want another address of its family", e.gateway, e.address)
		case e.gateway.IsLinkLocalUnicast():
			return nil, fmt.Errorf("gateway %s: %w: want an address of the block", e.gateway, errLinkLocal)
		}
		all = append(all, e)
	}
	return all, nil
}

// addRoutes adds the routes of the pod. One without a gateway leads to that of its family.
func addRoutes(v values, inside string, routes []*kv.Route, endpoints []endpoint) error {
	for _, r := range routes {
		dst, err := netip.ParsePrefix(r.GetDst())
		if err != nil {
			return fmt.Errorf("route to %q: %w", r.GetDst(), err)
		}
		var gateway netip.Addr
		for _, e := range endpoints {
			if e.gateway.Is4() == dst.Addr().Is4() && !gateway.IsValid() {
				gateway = e.gateway
			}
		}
		if r.GetGateway() != "" {
			if gateway, err = netip.ParseAddr(r.GetGateway()); err != nil {
				return fmt.Errorf("route to %s: gateway %q: %w", dst, r.GetGateway(), err)
			}
		}
		if !gateway.IsValid() || gateway.Is4() != dst.Addr().Is4() {
			return fmt.Errorf("route to %s: the pod has no gateway of its family", dst)
		}
		v.route(&linux_l3.Route{
			OutgoingInterface: inside,
			Scope:             linux_l3.Route_GLOBAL,
			DstNetwork:        dst.Masked().String(),
			GwAddr:            gateway.String(),
			Metric:            metric(dst.Addr()),
		})
	}
	return nil
}

func vethEnd(name, peer, mac string, mtu uint32) *linux_interfaces.Interface {
	return &linux_interfaces.Interface{
		Name:        name,
		HostIfName:  name,
		Type:        linux_interfaces.Interface_VETH,
		Enabled:     true,
		PhysAddress: mac,
		Mtu:         mtu,
		Link:        &linux_interfaces.Interface_Veth{Veth: &linux_interfaces.VethLink{PeerIfName: peer}},
	}
}

// linkRoute returns the route to one address that is on the link.
func linkRoute(iface string, a netip.Addr) *linux_l3.Route {
	return &linux_l3.Route{
		OutgoingInterface: iface,
		Scope:             linux_l3.Route_LINK,
		DstNetwork:        whole(a).String(),
		Metric:            metric(a),
	}
}

func metric(a netip.Addr) uint32 {
	if a.Is4() {
		return 0
	}
	return metricIPv6
}

// whole returns the prefix of one address.
func whole(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func appendNew(list []string, s string) []string {
	for _, x := range list {
		if x == s {
			return list
		}
	}
	return append(list, s)
}
