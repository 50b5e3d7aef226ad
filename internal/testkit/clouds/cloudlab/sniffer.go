// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sniffer counts the source addresses of packets that a machine sends through an interface.
type sniffer struct {
	done chan struct{}
	end  chan struct{}
}

// sniff watches the bridge's end of an interface.
func (h *hypervisor) sniff(port, link string) (*sniffer, error) {
	fd := -1
	err := h.l.fabric.Do(func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		again := unix.Timeval{Usec: 200_000}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &again),
		)
	})
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	s := &sniffer{done: make(chan struct{}), end: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer func() { _ = unix.Close(fd) }()
		h.listen(fd, port, s.end)
	}()
	return s, nil
}

func (s *sniffer) close() {
	close(s.end)
	<-s.done
}

func (h *hypervisor) listen(fd int, port string, end chan struct{}) {
	frame := make([]byte, 64)
	for {
		select {
		case <-end:
			return
		default:
		}
		n, from, err := unix.Recvfrom(fd, frame, 0)
		if err != nil {
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
				continue
			}
			return
		}
		if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue // to the machine
		}
		if a := source(frame[:n]); a.IsValid() && !a.IsUnspecified() && !a.IsLinkLocalUnicast() {
			h.count(port, a, describe(frame[:n]))
		}
	}
}

// describe returns the destination and the protocol of a frame.
func describe(frame []byte) string {
	if binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP {
		return fmt.Sprintf("to %s protocol %d", netip.AddrFrom4([4]byte(frame[30:34])), frame[23])
	}
	if len(frame) < 55 {
		return "too short"
	}
	return fmt.Sprintf("to %s protocol %d type %d", netip.AddrFrom16([16]byte(frame[38:54])), frame[20], frame[54])
}

func (h *hypervisor) count(port string, a netip.Addr, what string) {
	h.counting.Lock()
	defer h.counting.Unlock()
	if h.sources[port] == nil {
		h.sources[port] = map[netip.Addr]packets{}
	}
	h.sources[port][a] = packets{h.sources[port][a].count + 1, what}
}

// source returns the source address of an Ethernet frame with IPv4 or IPv6.
func source(frame []byte) netip.Addr {
	if len(frame) < 34 {
		return netip.Addr{}
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		return netip.AddrFrom4([4]byte(frame[26:30]))
	case unix.ETH_P_IPV6:
		if len(frame) >= 38 {
			return netip.AddrFrom16([16]byte(frame[22:38]))
		}
	}
	return netip.Addr{}
}
