// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// forged returns the frame of a UDP packet with the payload "forged".
func forged(pod *labPod, from, to netip.AddrPort) []byte {
	gateway, _ := readHardware("host_mac", pod.value.Wire.HostMac)
	own, _ := readHardware("pod_mac", pod.value.Wire.PodMac)
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = append(udp, 0, 8+6, 0, 0) // without a checksum
	udp = append(udp, "forged"...)
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 1, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum&0xffff+sum>>16))
	frame := append(append(gateway[:], own[:]...), 8, 0)
	return append(append(frame, ip...), udp...)
}

// SECURITY.md names what a pod can do with the source address of another pod, and how an
// administrator prevents it. The pod can send, and the answer goes to the owner. The pod
// cannot send with an IPv4 address of the node.
func TestAForgedSourceGetsNoAnswer(t *testing.T) {
	l := newWireLab(t, Options{})
	web, db, evil := l.pod(), l.pod(), l.pod()
	for _, p := range []*labPod{web, db, evil} {
		l.create(p)
	}
	server := l.listen(web.Namespace, netip.AddrPortFrom(web.ip[0], 0).String())
	owner := l.listen(db.Namespace, netip.AddrPortFrom(db.ip[0], 0).String())
	at := server.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	source := owner.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	buf := make([]byte, 100)
	receive := func() (all []string) { // what arrives, up to the datagram of the owner
		t.Helper()
		_, err := owner.WriteToUDPAddrPort([]byte("own"), at)
		l.must(err)
		_ = server.SetReadDeadline(time.Now().Add(answerTime))
		for !slices.Contains(all, "own") {
			n, err := server.Read(buf)
			l.must(err)
			all = append(all, string(buf[:n]))
		}
		return all
	}
	gateway := netip.AddrPortFrom(netip.MustParseAddr("10.1.5.1"), source.Port())
	l.must(transmit(evil.Namespace, "eth0", forged(evil, gateway, at)))
	l.Expect(receive()).To(Equal([]string{"own"}), "the kernel drops what has an address of the node")
	l.must(transmit(evil.Namespace, "eth0", forged(evil, source, at)))
	l.Expect(receive()).To(Equal([]string{"forged", "own"}))
	_, err := server.WriteToUDPAddrPort([]byte("answer"), source)
	l.must(err)
	_ = owner.SetReadDeadline(time.Now().Add(answerTime))
	n, err := owner.Read(buf)
	l.must(err)
	l.Expect(string(buf[:n])).To(Equal("answer"))

	setting(t, l.host, "net.ipv4.conf.all.rp_filter", "1")
	l.must(transmit(evil.Namespace, "eth0", forged(evil, source, at)))
	l.Expect(receive()).To(Equal([]string{"own"}))
}

// A pod that says by ARP that it has the address of another pod, or of the gateway, gets
// none of their packets. The neighbours at both ends of a wire are permanent, and each pod
// has a wire of its own.
func TestAPodCannotAnswerForAnotherOne(t *testing.T) {
	l := newWireLab(t, Options{})
	web, evil := l.pod(), l.pod()
	l.create(web)
	l.create(evil)
	own, _ := readHardware("pod_mac", evil.value.Wire.PodMac)
	for _, claimed := range []netip.Addr{web.ip[0], netip.MustParseAddr("10.1.5.1")} {
		frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own[:]...)
		frame = append(append(frame, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2), own[:]...) // an answer that was not asked for
		frame = append(append(frame, claimed.AsSlice()...), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
		l.must(transmit(evil.Namespace, "eth0", append(frame, claimed.AsSlice()...)))
		_, err := l.exchange(evil.Namespace, l.host, netip.MustParseAddr("10.1.5.1"), 1) // behind it on the wire
		l.must(err)
	}
	for _, from := range []*labPod{web, evil} {
		_, err := l.exchange(from.Namespace, l.host, netip.MustParseAddr("10.1.5.1"), 1)
		l.must(err)
	}
	_, err := l.exchange(l.host, web.Namespace, web.ip[0], 1)
	l.must(err)
	_, err = l.exchange(evil.Namespace, web.Namespace, web.ip[0], 1)
	l.must(err)
	l.complete(web, evil)
}
