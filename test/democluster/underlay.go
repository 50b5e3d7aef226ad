// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// The networks between the nodes. etcd is reached by addresses that are there
// from the beginning; the nodes' own are of nodeInterconnectCIDR, and follow from
// their IDs.
const (
	underlayBridge = "underlay"
	nodeInterface  = "eth0"
	etcdAddress    = "198.18.0.254"
	managementBits = 24
)

// managementAddress is that of node number n.
func managementAddress(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}), managementBits)
}

// openUnderlay makes the namespace that all nodes are connected to, with etcd's
// address in it.
func openUnderlay() (*netlab.Namespace, error) {
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	err = ns.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: underlayBridge}}); err != nil {
			return fmt.Errorf("make bridge %s: %w", underlayBridge, err)
		}
		bridge, err := netlink.LinkByName(underlayBridge)
		if err != nil {
			return fmt.Errorf("find %s: %w", underlayBridge, err)
		}
		// It keeps its MAC address from now on, and does not take that of its ports.
		if err := netlink.LinkSetHardwareAddr(bridge, bridge.Attrs().HardwareAddr); err != nil {
			return fmt.Errorf("keep the MAC address of %s: %w", underlayBridge, err)
		}
		return addAddress(underlayBridge, netip.PrefixFrom(netip.MustParseAddr(etcdAddress), managementBits))
	})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// openNode makes the namespace of node number n, connects it to the underlay,
// and lets it forward, as a node does.
func openNode(underlay *netlab.Namespace, name string, n int) (*netlab.Namespace, error) {
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	if err := connect(underlay, ns, name); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	err = ns.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return fmt.Errorf("turn forwarding on: %w", err)
		}
		return addAddress(nodeInterface, managementAddress(n))
	})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// connect lays a veth pair between the underlay's bridge and a node.
func connect(underlay, node *netlab.Namespace, name string) error {
	other, err := os.Open(node.Path())
	if err != nil {
		return err
	}
	err = underlay.Do(func() error {
		bridge, err := netlink.LinkByName(underlayBridge)
		if err != nil {
			return fmt.Errorf("find %s: %w", underlayBridge, err)
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index},
			PeerName:  nodeInterface, PeerNamespace: netlink.NsFd(other.Fd()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("connect %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(veth); err != nil {
			return fmt.Errorf("set up %s: %w", name, err)
		}
		return nil
	})
	return errors.Join(err, other.Close())
}

// addAddress gives an interface an address and sets it up.
func addAddress(name string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	a, err := netlink.ParseAddr(address.String())
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		return fmt.Errorf("give %s the address %s: %w", name, address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	return nil
}

// routes are the gateways of all routes that have one, by destination, in the
// current namespace.
func routes() (map[netip.Prefix]netip.Addr, error) {
	list, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	all := map[netip.Prefix]netip.Addr{}
	for _, r := range list {
		gateway, ok := netip.AddrFromSlice(r.Gw.To4())
		if !ok || r.Dst == nil {
			continue
		}
		dst, err := netip.ParsePrefix(r.Dst.String())
		if err != nil {
			return nil, fmt.Errorf("list the routes: %w", err)
		}
		all[dst] = gateway
	}
	return all, nil
}
