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

// The networks between the nodes: each node has a network of its own to a router, and
// etcd is on the router. So packets between pods of two nodes need the VXLAN link.
const (
	nodeInterface  = "eth0"
	etcdAddress    = "198.18.0.254"
	managementBits = 24
)

// managementAddress is that of node number n, routerAddress the router's in its network.
func managementAddress(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(n), 1}), managementBits)
}

func routerAddress(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(n), 254}), managementBits)
}

// openUnderlay makes the namespace of the router, with etcd's address in it.
func openUnderlay() (*netlab.Namespace, error) {
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	err = ns.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return fmt.Errorf("turn forwarding on: %w", err)
		}
		return addAddress("lo", netip.PrefixFrom(netip.MustParseAddr(etcdAddress), 32))
	})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// openNode makes the namespace of node number n, and connects it to the router.
func openNode(underlay *netlab.Namespace, name string, n int) (*netlab.Namespace, error) {
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	if err := connect(underlay, ns, name, n); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	err = ns.Do(func() error {
		if err := addAddress(nodeInterface, managementAddress(n)); err != nil {
			return err
		}
		route := &netlink.Route{Gw: routerAddress(n).Addr().AsSlice()}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("add the default route: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// connect lays a veth pair between the router and node number n.
func connect(underlay, node *netlab.Namespace, name string, n int) error {
	other, err := os.Open(node.Path())
	if err != nil {
		return err
	}
	err = underlay.Do(func() error {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name},
			PeerName:  nodeInterface, PeerNamespace: netlink.NsFd(other.Fd()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("connect %s: %w", name, err)
		}
		return addAddress(name, routerAddress(n))
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
		if !ok || r.Dst == nil || r.Dst.IP.IsUnspecified() {
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
