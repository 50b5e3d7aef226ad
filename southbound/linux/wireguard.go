// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
)

// wireguard is the part of NodeNetwork that makes the node's WireGuard link. The kernel
// makes it if it can. Otherwise this process does it on a TUN link, which stays when the
// process ends, with its routes. Until the next agent takes it over, packets to pods of
// other nodes are dropped, and never leave the node unencrypted.
type wireguard struct {
	host    *tunnelHost
	private string // the node's private key in base64
	log     *slog.Logger
	device  wireguardDevice // nil: not opened
}

// wireguardLink holds the wanted attributes of the link.
type wireguardLink struct {
	private   wgtypes.Key
	mtu       int
	addresses []netip.Prefix
}

// read reads the wanted link from a value. The link has the addresses of the pods'
// gateways, because other nodes accept only addresses of this node's pod subnets from it.
func (w *wireguard) read(value *kv.NodeNetwork) (wireguardLink, error) {
	want := wireguardLink{mtu: int(value.GetMtu())}
	var err error
	if want.private, err = wgtypes.ParseKey(w.private); err != nil {
		return wireguardLink{}, errors.New("the node's private key: want 32 bytes in base64")
	}
	for _, text := range value.GetPodGateways() {
		a, err := readAddr("pod_gateways", text)
		if err != nil {
			return wireguardLink{}, err
		}
		want.addresses = append(want.addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	return want, nil
}

func (w *wireguard) wanted(value *kv.NodeNetwork) bool {
	return value.GetTransport() == kv.Transport_WIREGUARD
}

func (w *wireguard) validate(value *kv.NodeNetwork) error {
	_, err := w.read(value)
	return err
}

// create makes the link, or repairs it.
func (w *wireguard) create(value *kv.NodeNetwork) error {
	want, err := w.read(value)
	if err != nil {
		return err
	}
	made, err := w.open(want)
	if err == nil {
		err = w.adjust(want)
	}
	if err != nil && made {
		err = errors.Join(err, w.remove())
	}
	return err
}

// replaces reports whether the link has to go. A value cannot ask for another form of it.
func (w *wireguard) replaces(value *kv.NodeNetwork) bool {
	link, err := w.host.own(wireguardName)
	return err == nil && link != nil && !w.wanted(value)
}

// adjust corrects the keys, the MTU and the addresses.
func (w *wireguard) adjust(want wireguardLink) error {
	link, err := w.host.own(wireguardName)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("link %s was removed", wireguardName)
	}
	private, port, err := w.device.key()
	if err != nil {
		return err
	}
	if private != want.private || port != wireguardPort {
		if err := w.device.setKey(want.private, wireguardPort); err != nil {
			return fmt.Errorf("set the private key of %s: %w", wireguardName, err)
		}
	}
	return w.host.dress(link, nodeAlias, want.mtu, want.addresses)
}

// open opens the device of the link. It makes the link if it is missing.
func (w *wireguard) open(want wireguardLink) (made bool, err error) {
	link, err := w.host.own(wireguardName)
	if err != nil {
		return false, err
	}
	if link != nil && w.device != nil && w.device.works() {
		return false, nil
	}
	if err := w.end(); err != nil {
		return false, err
	}
	if link != nil && link.Type() == "wireguard" {
		w.device, err = openKernelWireguard(w.host)
		return false, err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Group, attrs.MTU = wireguardName, unnamedGroup, want.mtu
		err := w.host.kernel.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		if err == nil {
			w.device, err = openKernelWireguard(w.host)
			return true, err
		}
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return false, fmt.Errorf("add WireGuard link %s: %w", wireguardName, err)
		}
	}
	w.device, err = openUserspaceWireguard(w.host, want.mtu, w.log)
	return link == nil, err
}

// end closes the device, and leaves the link.
func (w *wireguard) end() error {
	if w.device == nil {
		return nil
	}
	device := w.device
	w.device = nil
	return device.close()
}

// remove removes the link and ends the device.
func (w *wireguard) remove() error {
	link, err := w.host.own(wireguardName)
	if errors.Is(err, southbound.ErrForeign) || err == nil && link == nil {
		return w.end()
	}
	if err != nil {
		return err
	}
	return errors.Join(w.end(), w.host.removeLink(link))
}

// retrieve compares the link and its keys with the wanted value.
func (w *wireguard) retrieve(into, wanted *kv.NodeNetwork) (partState, error) {
	link, err := w.host.own(wireguardName)
	if errors.Is(err, southbound.ErrForeign) || err == nil && link == nil {
		return partAbsent, nil
	}
	if err != nil {
		return partAbsent, err
	}
	have, err := w.host.addresses(link)
	if err != nil {
		return partAbsent, err
	}
	if w.device == nil && link.Type() == "wireguard" {
		if w.device, err = openKernelWireguard(w.host); err != nil {
			return partAbsent, err
		}
	}
	if want, err := w.read(wanted); err == nil && w.wanted(wanted) && w.device != nil && w.device.works() &&
		w.host.dressed(link, nodeAlias, want.mtu, want.addresses, have) {
		private, port, err := w.device.key()
		if err != nil {
			return partAbsent, err
		}
		if private == want.private && port == wireguardPort {
			return partComplete, nil
		}
	}
	into.Transport, into.Mtu = kv.Transport_WIREGUARD, uint32(link.Attrs().MTU)
	return partDifferent, nil
}
