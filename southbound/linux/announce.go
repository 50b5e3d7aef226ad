// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// announce tells the neighbours on a link that an address is at the link's MAC address now.
// Otherwise a neighbour that has talked to an earlier owner of the address goes on with that
// one's MAC address for up to a minute. It needs CAP_NET_RAW.
func announce(ns *rtnl.Namespace, link linkID, mac hardware, address netip.Addr) error {
	frame := advertisement(mac, address)
	if address.Is4() {
		frame = arpAnnouncement(mac, address)
	}
	var socket int
	err := ns.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return fmt.Errorf("announce %s on link %s: %w", address, link.name, err)
	}
	to := &unix.SockaddrLinklayer{Ifindex: int(link.index), Halen: 6}
	err = errors.Join(
		os.NewSyscallError("send", unix.Sendto(socket, frame, 0, to)),
		os.NewSyscallError("close", unix.Close(socket)),
	)
	if err != nil {
		return fmt.Errorf("announce %s on link %s: %w", address, link.name, err)
	}
	return nil
}

// arpAnnouncement returns an Ethernet frame with an ARP announcement (RFC 5227): a request to
// all for the sender's own address.
func arpAnnouncement(mac hardware, address netip.Addr) []byte {
	all := hardware{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	b := ethernet(all, mac, unix.ETH_P_ARP)
	b = binary.BigEndian.AppendUint16(b, unix.ARPHRD_ETHER)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, 6, 4, 0, 1) // lengths of the addresses; a request
	b = append(append(b, mac[:]...), address.AsSlice()...)
	return append(append(b, make([]byte, 6)...), address.AsSlice()...)
}

// advertisement returns an Ethernet frame with an unsolicited neighbour advertisement to all
// nodes, which overrides what they know (RFC 4861, section 7.2.6).
func advertisement(mac hardware, address netip.Addr) []byte {
	const kind, override, linkLayer = 136, 0x20, 2
	to := netip.IPv6LinkLocalAllNodes()
	icmp := append([]byte{kind, 0, 0, 0, override, 0, 0, 0}, address.AsSlice()...)
	icmp = append(append(icmp, linkLayer, 1), mac[:]...)
	pseudo := append(append(address.AsSlice(), to.AsSlice()...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(icmp[2:], checksum(append(pseudo, icmp...)))
	b := ethernet(hardware{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6)
	b = append(b, 0x60, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, 255) // only hop limit 255 is accepted
	return append(append(append(b, address.AsSlice()...), to.AsSlice()...), icmp...)
}

func ethernet(to, from hardware, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(to[:], from[:]...), kind)
}

// checksum returns the checksum of the Internet protocols (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
