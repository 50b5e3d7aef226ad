// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
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
	mtu       uint32
	addresses objects
}

// plan returns the attributes of the link.
func (want wireguardLink) plan() linkPlan {
	return linkPlan{alias: nodeAlias, group: unnamedGroup, mtu: want.mtu, noRouters: true}
}

// read reads the wanted link of a value that has one.
func (w *wireguard) read(value *kv.NodeNetwork, plan *nodePlan) error {
	if value.GetTransport() != kv.Transport_WIREGUARD {
		return nil
	}
	want, err := w.readLink(value)
	plan.wireguard = &want
	return err
}

// readLink reads the wanted link from a value. The link has the addresses of the pods'
// gateways, because other nodes accept only addresses of this node's pod subnets from it.
func (w *wireguard) readLink(value *kv.NodeNetwork) (wireguardLink, error) {
	want := wireguardLink{mtu: value.GetMtu(), addresses: objects{}}
	var err error
	if want.private, err = wgtypes.ParseKey(w.private); err != nil {
		return wireguardLink{}, errors.New("the node's private key: want 32 bytes in base64")
	}
	for _, text := range value.GetPodGateways() {
		a, err := readAddr("pod_gateways", text)
		if err != nil {
			return wireguardLink{}, err
		}
		want.addresses[object{kind: addressObject, prefix: whole(a), routed: true}] = true
	}
	return want, nil
}

func (w *wireguard) wanted(plan nodePlan) bool { return plan.wireguard != nil }

// create makes the link, or repairs it.
func (w *wireguard) create(plan nodePlan) error {
	if err := w.open(*plan.wireguard); err != nil {
		return err
	}
	return w.adjust(*plan.wireguard)
}

// replaces reports whether the link has to go. A value cannot ask for another form of it.
func (w *wireguard) replaces(plan nodePlan) bool {
	_, found, err := w.host.own(wireguardName)
	return err == nil && found && plan.wireguard == nil
}

// adjust corrects the keys, the MTU and the addresses.
func (w *wireguard) adjust(want wireguardLink) error {
	link, found, err := w.host.own(wireguardName)
	if err != nil {
		return err
	}
	if !found {
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
	return w.host.dress(link, want.plan(), want.addresses)
}

// open opens the device of the link. It makes the link if it is missing.
func (w *wireguard) open(want wireguardLink) error {
	link, found, err := w.host.own(wireguardName)
	if err != nil {
		return err
	}
	if found && w.device != nil && w.device.works() {
		return nil
	}
	if err := w.end(); err != nil {
		return err
	}
	if !found {
		body := want.plan().birth(wireguardName).
			Nest(unix.IFLA_LINKINFO, rtnl.Message(nil).Text(unix.IFLA_INFO_KIND, wireguardKind))
		link, err = makeLink(w.host.socket, "add WireGuard link "+wireguardName, wireguardName, body)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	if link.kind == wireguardKind {
		w.device, err = openKernelWireguard(w.host)
	} else {
		w.device, err = openUserspaceWireguard(w.host, want.mtu, w.log)
	}
	return err
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
	link, found, err := w.host.own(wireguardName)
	if errors.Is(err, southbound.ErrForeign) || err == nil && !found {
		return w.end()
	}
	if err != nil {
		return err
	}
	return errors.Join(w.end(), removeLink(w.host.socket, link))
}

// retrieve compares the link and its keys with a plan.
func (w *wireguard) retrieve(into *kv.NodeNetwork, plan nodePlan) (partState, error) {
	link, found, err := w.host.own(wireguardName)
	if errors.Is(err, southbound.ErrForeign) || err == nil && !found {
		return partAbsent, nil
	}
	if err != nil {
		return partAbsent, err
	}
	have, err := w.host.addresses(link)
	if err != nil {
		return partAbsent, err
	}
	if w.device == nil && link.kind == wireguardKind {
		if w.device, err = openKernelWireguard(w.host); err != nil {
			return partAbsent, err
		}
	}
	if want := plan.wireguard; want != nil && w.device != nil && w.device.works() &&
		want.plan().dressed(link, want.addresses, have) {
		private, port, err := w.device.key()
		if err != nil {
			return partAbsent, err
		}
		if private == want.private && port == wireguardPort {
			return partComplete, nil
		}
	}
	into.Transport, into.Mtu = kv.Transport_WIREGUARD, link.mtu
	return partDifferent, nil
}
