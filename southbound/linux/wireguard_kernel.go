// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// kernelWireguard is the WireGuard device of the kernel. It works without this process.
type kernelWireguard struct{ client *wgctrl.Client }

var _ wireguardDevice = (*kernelWireguard)(nil)

func openKernelWireguard(host *tunnelHost) (wireguardDevice, error) {
	k := &kernelWireguard{}
	err := host.within(func() (err error) {
		k.client, err = wgctrl.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open WireGuard of the kernel: %w", err)
	}
	return k, nil
}

func (k *kernelWireguard) setKey(private wgtypes.Key, port int) error {
	return k.client.ConfigureDevice(wireguardName, wgtypes.Config{PrivateKey: &private, ListenPort: &port})
}

func (k *kernelWireguard) device() (*wgtypes.Device, error) {
	d, err := k.client.Device(wireguardName)
	if err != nil {
		return nil, fmt.Errorf("read WireGuard link %s: %w", wireguardName, err)
	}
	return d, nil
}

func (k *kernelWireguard) key() (wgtypes.Key, int, error) {
	d, err := k.device()
	if err != nil {
		return wgtypes.Key{}, 0, err
	}
	return d.PrivateKey, d.ListenPort, nil
}

// setPeer changes the peer in one request, which the kernel applies as a whole.
func (k *kernelWireguard) setPeer(public wgtypes.Key, _, peer wireguardPeer) error {
	c := wgtypes.PeerConfig{
		PublicKey:         public,
		Endpoint:          net.UDPAddrFromAddrPort(peer.endpoint),
		ReplaceAllowedIPs: true,
	}
	for _, p := range peer.allowed {
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: p.Addr().AsSlice(), Mask: mask})
	}
	return k.client.ConfigureDevice(wireguardName, wgtypes.Config{Peers: []wgtypes.PeerConfig{c}})
}

func (k *kernelWireguard) removePeer(public wgtypes.Key) error {
	c := wgtypes.PeerConfig{PublicKey: public, Remove: true, UpdateOnly: true}
	return k.client.ConfigureDevice(wireguardName, wgtypes.Config{Peers: []wgtypes.PeerConfig{c}})
}

func (k *kernelWireguard) peers() (map[wgtypes.Key]wireguardPeer, error) {
	d, err := k.device()
	if err != nil {
		return nil, err
	}
	all := make(map[wgtypes.Key]wireguardPeer, len(d.Peers))
	for _, c := range d.Peers {
		var p wireguardPeer
		if c.Endpoint != nil {
			e := c.Endpoint.AddrPort()
			p.endpoint = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
		}
		for _, a := range c.AllowedIPs {
			ip, _ := netip.AddrFromSlice(a.IP)
			bits, _ := a.Mask.Size()
			p.allowed = append(p.allowed, netip.PrefixFrom(ip.Unmap(), bits))
		}
		slices.SortFunc(p.allowed, comparePrefixes)
		all[c.PublicKey] = p
	}
	return all, nil
}

func (k *kernelWireguard) works() bool { return true }

func (k *kernelWireguard) close() error { return k.client.Close() }
