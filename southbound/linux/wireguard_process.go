// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// wireguardMTU is the MTU of the link if the value has none.
const wireguardMTU = device.DefaultMTU

// userspaceWireguard is a WireGuard device in this process, on a TUN link. Its goroutines
// end with close.
type userspaceWireguard struct{ device *device.Device }

var _ wireguardDevice = (*userspaceWireguard)(nil)

// openUserspaceWireguard makes the link, or takes over the one that an earlier agent has
// left.
func openUserspaceWireguard(host *tunnelHost, mtu uint32, log *slog.Logger) (wireguardDevice, error) {
	if mtu == 0 {
		mtu = wireguardMTU
	}
	u := &userspaceWireguard{}
	err := host.within(func() error {
		link, err := tun.CreateTUN(wireguardName, int(mtu))
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("another process, perhaps another agent, serves it: %w", err)
		}
		if err != nil {
			return err
		}
		if err := keepTUN(link); err != nil {
			return errors.Join(err, link.Close())
		}
		logger := &device.Logger{
			Verbosef: device.DiscardLogf,
			Errorf:   func(format string, args ...any) { log.Warn("wireguard: " + fmt.Sprintf(format, args...)) },
		}
		u.device = device.NewDevice(link, &namespaceBind{conn.NewDefaultBind(), host}, logger)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make WireGuard link %s in this process, on /dev/net/tun: %w", wireguardName, err)
	}
	link, _, err := getLink(host.socket, wireguardName)
	if err == nil {
		group := rtnl.Message(nil).U32(unix.IFLA_GROUP, unnamedGroup)
		err = host.socket.Run([]*rtnl.Request{changeLink("set its group", link.index, 0, 0, group)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mark link %s: %w", wireguardName, err), u.close())
	}
	return u, nil
}

// keepTUN makes the link stay when the process ends.
func keepTUN(link tun.Device) error {
	raw, err := link.File().SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 1) })
	return errors.Join(err, inner)
}

// namespaceBind opens its sockets in the network namespace of the link: the device may
// open them again on a thread in another one.
type namespaceBind struct {
	conn.Bind
	host *tunnelHost
}

// Open opens the sockets.
func (b *namespaceBind) Open(port uint16) (receive []conn.ReceiveFunc, actual uint16, err error) {
	err = b.host.within(func() (err error) {
		receive, actual, err = b.Bind.Open(port)
		return err
	})
	return receive, actual, err
}

func (u *userspaceWireguard) setKey(private wgtypes.Key, port int) error {
	err := u.device.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", hex.EncodeToString(private[:]), port))
	if err != nil {
		return err
	}
	return u.device.Up()
}

// setPeer sends only what differs: replacing all accepted addresses leaves a moment
// without them. A new peer is greeted at once. It may still have the keys of an earlier
// agent, and would send packets that this one cannot decrypt for up to 15 s.
func (u *userspaceWireguard) setPeer(public wgtypes.Key, before, peer wireguardPeer) error {
	var s strings.Builder
	fmt.Fprintf(&s, "public_key=%s\nendpoint=%s\n", hex.EncodeToString(public[:]), peer.endpoint)
	gone := slices.ContainsFunc(before.allowed, func(p netip.Prefix) bool { return !slices.Contains(peer.allowed, p) })
	if gone {
		s.WriteString("replace_allowed_ips=true\n")
	}
	for _, p := range peer.allowed {
		fmt.Fprintf(&s, "allowed_ip=%s\n", p)
	}
	if err := u.device.IpcSet(s.String()); err != nil || before.endpoint.IsValid() {
		return err
	}
	// turning the keepalive on sends one; turning it off again saves all further ones
	greeting := "public_key=%[1]s\npersistent_keepalive_interval=1\npublic_key=%[1]s\npersistent_keepalive_interval=0\n"
	return u.device.IpcSet(fmt.Sprintf(greeting, hex.EncodeToString(public[:])))
}

func (u *userspaceWireguard) removePeer(public wgtypes.Key) error {
	return u.device.IpcSet(fmt.Sprintf("public_key=%s\nremove=true\n", hex.EncodeToString(public[:])))
}

// read calls line for each line of the device's description.
func (u *userspaceWireguard) read(line func(name, value string) error) error {
	text, err := u.device.IpcGet()
	if err != nil {
		return fmt.Errorf("read WireGuard link %s: %w", wireguardName, err)
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "=")
		if err := line(name, value); err != nil {
			return fmt.Errorf("read WireGuard link %s: line %q: %w", wireguardName, name, err)
		}
	}
	return lines.Err()
}

func (u *userspaceWireguard) key() (private wgtypes.Key, port int, err error) {
	err = u.read(func(name, value string) (err error) {
		switch name {
		case "private_key":
			private, err = hexKey(value)
		case "listen_port":
			port, err = strconv.Atoi(value)
		}
		return err
	})
	return private, port, err
}

func (u *userspaceWireguard) peers() (map[wgtypes.Key]wireguardPeer, error) {
	all := map[wgtypes.Key]wireguardPeer{}
	var public wgtypes.Key
	err := u.read(func(name, value string) (err error) {
		p := all[public]
		switch name {
		case "public_key":
			public, err = hexKey(value)
			p = wireguardPeer{}
		case "endpoint":
			p.endpoint, err = netip.ParseAddrPort(value)
		case "allowed_ip":
			var prefix netip.Prefix
			prefix, err = netip.ParsePrefix(value)
			p.allowed = append(p.allowed, prefix)
		default:
			return nil
		}
		all[public] = p
		return err
	})
	for _, p := range all {
		slices.SortFunc(p.allowed, comparePrefixes)
	}
	return all, err
}

// hexKey parses a key as the device writes it.
func hexKey(text string) (wgtypes.Key, error) {
	bytes, err := hex.DecodeString(text)
	if err != nil {
		return wgtypes.Key{}, err
	}
	return wgtypes.NewKey(bytes)
}

// works reports whether the device is open: it ends when its link is removed.
func (u *userspaceWireguard) works() bool {
	select {
	case <-u.device.Wait():
		return false
	default:
		return true
	}
}

func (u *userspaceWireguard) close() error {
	u.device.Close()
	return nil
}
