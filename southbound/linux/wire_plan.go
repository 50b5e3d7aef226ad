// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
)

const (
	maxNameLength  = unix.IFNAMSIZ - 1
	maxAliasLength = 255 // IFALIASZ - 1
	// wirePrefix begins the names of host ends.
	wirePrefix = "cad"
)

// wirePlan holds what the value of a pod asks of the kernel.
type wirePlan struct {
	key       string
	netns     string
	namespace kv.NetNSID // that netns named at the ADD
	hostName  string
	podName   string
	mtu       uint32
	hostMAC   hardware
	podMAC    hardware
	table     uint32 // the main table if the value has none
	network   string // with a table of its own; "": none
	addresses []netip.Addr
	host      objects // of the host end
	pod       objects // of the pod's end
}

// isolated reports whether the pod is in a network with a table of its own.
func (p *wirePlan) isolated() bool { return p.table != unix.RT_TABLE_MAIN }

// hostPlan returns the attributes of the host end.
func (p *wirePlan) hostPlan() linkPlan {
	return linkPlan{
		alias:       aliasPrefix + p.key,
		group:       wireGroup,
		mtu:         p.mtu,
		mac:         p.hostMAC,
		noFilter:    p.isolated(),
		noLinkLocal: true,
		noRouters:   true,
	}
}

// podPlan returns the attributes of the pod's end. The rest of it is the pod's own affair.
func (p *wirePlan) podPlan() linkPlan { return linkPlan{mtu: p.mtu, mac: p.podMAC} }

// readWire returns the plan of a value, nil if the value has no wire.
func readWire(key string, value proto.Message) (*wirePlan, error) {
	pod, ok := value.(*kv.PodNetwork)
	if !ok {
		return nil, fmt.Errorf("the value is a %T, want a PodNetwork", value)
	}
	wire := pod.GetWire()
	if wire == nil {
		return nil, nil
	}
	p := &wirePlan{
		key:       key,
		netns:     wire.GetNetns(),
		namespace: wire.GetNamespace().ID(),
		hostName:  wire.GetHostIfName(),
		podName:   pod.GetIfName(),
		mtu:       wire.GetMtu(),
		table:     wire.GetTable(),
		host:      objects{},
		pod:       objects{},
	}
	if p.table == 0 {
		p.table = unix.RT_TABLE_MAIN
	} else {
		p.network = wire.GetPool()
	}
	if err := p.checkNames(); err != nil {
		return nil, err
	}
	var err error
	if p.hostMAC, err = readHardware("host_mac", wire.GetHostMac()); err != nil {
		return nil, err
	}
	if p.podMAC, err = readHardware("pod_mac", wire.GetPodMac()); err != nil {
		return nil, err
	}
	gateways, err := p.readAddresses(pod)
	if err != nil {
		return nil, err
	}
	return p, p.readRoutes(pod.GetRoutes(), gateways)
}

// read returns the plan of a value, nil if the value has no wire.
func (w *wires) read(key string, value proto.Message) (*wirePlan, error) {
	p, err := readWire(key, value)
	if err == nil && p != nil && w.opt.BareHostEnds {
		p.bareHostEnd()
	}
	return p, err
}

// needs returns the network of a pod that is not in the main table.
func (p *wirePlan) needs() []string {
	if p == nil || p.network == "" {
		return nil
	}
	return []string{kv.SinkNetworkPrefix + p.network}
}

// bareHostEnd takes from the plan what another switch has at the host end. The pod still sends
// to the MAC of the plan, which the kernel's link then does not have.
func (p *wirePlan) bareHostEnd() {
	const another = 0x04 // changes the MAC, but not whether it is local or a group
	p.host, p.table = objects{}, unix.RT_TABLE_MAIN
	p.hostMAC[0] ^= another
}

func (p *wirePlan) checkNames() error {
	switch {
	case p.netns == "":
		return errors.New("netns is empty: want the path of the pod's network namespace")
	case !strings.HasPrefix(p.hostName, wirePrefix) || len(p.hostName) > maxNameLength:
		return fmt.Errorf("host_if_name %q: want %q and at most %d characters", p.hostName, wirePrefix, maxNameLength)
	case p.podName == "" || len(p.podName) > maxNameLength:
		return fmt.Errorf("if_name %q: want 1 to %d characters", p.podName, maxNameLength)
	case strings.Contains(p.podName, "%"):
		return fmt.Errorf("if_name %q: the kernel replaces %%d in it by a number: want a name without %%", p.podName)
	case len(aliasPrefix+p.key) > maxAliasLength:
		return fmt.Errorf("key %q: want at most %d characters", p.key, maxAliasLength-len(aliasPrefix))
	case p.table == unix.RT_TABLE_LOCAL || p.table == unix.RT_TABLE_DEFAULT:
		return fmt.Errorf("table %d belongs to the kernel: want another one", p.table)
	}
	return nil
}

// readAddresses adds the objects of all addresses and returns the gateways.
func (p *wirePlan) readAddresses(pod *kv.PodNetwork) (gateways []netip.Addr, err error) {
	if len(pod.GetAddresses()) == 0 || len(pod.GetAddresses()) != len(pod.GetGateways()) {
		return nil, fmt.Errorf(
			"%d addresses and %d gateways: want one gateway for each address, and at least one",
			len(pod.GetAddresses()),
			len(pod.GetGateways()),
		)
	}
	for i, text := range pod.GetAddresses() {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", text, err)
		}
		gateway, err := netip.ParseAddr(pod.GetGateways()[i])
		if err != nil {
			return nil, fmt.Errorf("gateway %q: %w", pod.GetGateways()[i], err)
		}
		address := prefix.Addr()
		if address.Is4() != gateway.Is4() || address == gateway {
			return nil, fmt.Errorf("gateway %s of address %s: want another address of its family", gateway, address)
		}
		p.addresses = append(p.addresses, address)
		gateways = append(gateways, gateway)
		p.host[object{kind: addressObject, prefix: whole(gateway)}] = true
		p.host[object{kind: neighbourObject, prefix: whole(address), mac: p.podMAC}] = true
		p.host[object{kind: routeObject, prefix: whole(address), table: p.table}] = true
		p.pod[object{kind: addressObject, prefix: whole(address)}] = true
		p.pod[object{kind: neighbourObject, prefix: whole(gateway), mac: p.hostMAC}] = true
		if p.isolated() {
			family := defaultRoute(familyOf(address))
			p.host[object{kind: ruleObject, prefix: family, table: p.table}] = true
		}
	}
	return gateways, nil
}

// readRoutes adds the pod's routes. A route without a gateway leads to that of its family.
func (p *wirePlan) readRoutes(routes []*kv.Route, gateways []netip.Addr) error {
	for _, r := range routes {
		dst, err := netip.ParsePrefix(r.GetDst())
		if err != nil {
			return fmt.Errorf("route to %q: %w", r.GetDst(), err)
		}
		var gateway netip.Addr
		for _, g := range gateways {
			if g.Is4() == dst.Addr().Is4() && !gateway.IsValid() {
				gateway = g
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
		p.pod[object{kind: routeObject, prefix: dst.Masked(), gateway: gateway, table: unix.RT_TABLE_MAIN}] = true
	}
	return nil
}

// whole returns the prefix of one address.
func whole(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func readHardware(field, text string) (h hardware, err error) {
	mac, err := net.ParseMAC(text)
	if err == nil && (len(mac) != len(h) || mac[0]&1 != 0) {
		err = errors.New("want the address of one Ethernet interface, such as 0a:58:0a:01:05:02")
	}
	if err != nil {
		return h, fmt.Errorf("%s %q: %w", field, text, err)
	}
	copy(h[:], mac)
	return h, nil
}
