// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"fmt"
	"net/netip"

	prototypes "github.com/gogo/protobuf/types"
	linux_interfaces "github.com/ligato/vpp-agent/api/models/linux/interfaces"
	linux_l3 "github.com/ligato/vpp-agent/api/models/linux/l3"
	"github.com/ligato/vpp-agent/api/models/netalloc"
	kvs "github.com/ligato/vpp-agent/plugins/kvscheduler/api"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/api/kv"
)

// metricNodes marks the routes to other nodes. Ligato sets no routing protocol, so nothing
// else tells them from the routes of other programs after a restart. It is not a small number:
// dhcpcd gives 200 and the link's index to its routes, NetworkManager at least 100.
const metricNodes = 51930

// hostLinks tells Ligato about the node's own links that routes to other nodes lead
// through. A link is an EXISTING interface without addresses of its own, and its addresses
// are notifications from the southbound: Ligato uses them and never adds or removes any.
type hostLinks struct {
	scheduler kvs.KVScheduler
	known     values              // by Ligato's key; they stay as long as the process runs
	addresses map[string]struct{} // Ligato's keys of the notified addresses
}

// via returns the name of the link on which gateway is a neighbour, "" if it is on none. The
// link may be down: Ligato makes the route when it is up.
func (h *hostLinks) via(gateway netip.Addr) (string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return "", fmt.Errorf("read the node's links: %w", err)
	}
	for _, link := range links {
		name := link.Attrs().Name
		addrs, err := netlink.AddrList(link, family(gateway))
		if err != nil {
			return "", fmt.Errorf("read the addresses of link %s: %w", name, err)
		}
		for _, a := range addrs {
			ones, bits := a.Mask.Size()
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ones < bits && ip.Unmap() != gateway &&
				netip.PrefixFrom(ip.Unmap(), ones).Contains(gateway) {
				return name, h.use(name, netip.PrefixFrom(ip.Unmap(), ones))
			}
		}
	}
	return "", nil
}

// adopt makes the links known that have routes to other nodes from a former process.
// Ligato reads the routes of known links only.
func (h *hostLinks) adopt() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return fmt.Errorf("read the node's routes: %w", err)
		}
		for _, r := range routes {
			if r.Priority != metricNodes || r.LinkIndex == 0 {
				continue
			}
			link, err := netlink.LinkByIndex(r.LinkIndex)
			if err != nil {
				return fmt.Errorf("read link %d, which a route to %s has: %w", r.LinkIndex, r.Dst, err)
			}
			h.know(link.Attrs().Name)
		}
	}
	return nil
}

// know makes a link known to Ligato.
func (h *hostLinks) know(name string) {
	h.known.iface(&linux_interfaces.Interface{
		Name:       name,
		HostIfName: name,
		Type:       linux_interfaces.Interface_EXISTING,
		Enabled:    true,
		LinkOnly:   true,
	})
}

// use makes a link and one of its addresses known to Ligato.
func (h *hostLinks) use(name string, address netip.Prefix) error {
	h.know(name)
	key := linux_interfaces.InterfaceAddressKey(name, address.String(), netalloc.IPAddressSource_STATIC)
	if _, ok := h.addresses[key]; ok {
		return nil
	}
	err := h.scheduler.PushSBNotification(kvs.KVWithMetadata{Key: key, Value: &prototypes.Empty{}})
	if err != nil {
		return fmt.Errorf("tell Ligato about address %s of link %s: %w", address, name, err)
	}
	h.addresses[key] = struct{}{}
	return nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// routeValues returns the value of a route to the pods of another node.
func (h *hostLinks) routeValues(r *kv.NodeRoute) (v values, pending string, err error) {
	switch {
	case r.GetTransport() != kv.Transport_DIRECT:
		return nil, "", fmt.Errorf("transport %s: the Linux plugins of Ligato have no links of this kind: want DIRECT",
			r.GetTransport())
	case r.GetTable() != 0:
		return nil, "", fmt.Errorf("table %d: %w: want table 0, the main table", r.GetTable(), errNoRules)
	case r.GetGateway() == "":
		return nil, "node " + r.GetNodeName() + " has not published its address", nil
	}
	dst, err := netip.ParsePrefix(r.GetDst())
	if err != nil {
		return nil, "", fmt.Errorf("dst %q: %w", r.GetDst(), err)
	}
	gateway, err := netip.ParseAddr(r.GetGateway())
	if err != nil {
		return nil, "", fmt.Errorf("gateway %q: %w", r.GetGateway(), err)
	}
	if gateway.IsLinkLocalUnicast() {
		return nil, "", fmt.Errorf("gateway %s: %w: want an address of the node's network", gateway, errLinkLocal)
	}
	link, err := h.via(gateway)
	switch {
	case err != nil:
		return nil, "", err
	case link == "":
		return nil, fmt.Sprintf("gateway %s is on no link of this node", gateway), nil
	}
	v = values{}
	v.route(&linux_l3.Route{
		OutgoingInterface: link,
		Scope:             linux_l3.Route_GLOBAL,
		DstNetwork:        dst.Masked().String(),
		GwAddr:            gateway.String(),
		Metric:            metricNodes,
	})
	return v, "", nil
}
