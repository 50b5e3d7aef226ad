// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// answerTime bounds the wait for a packet that must come.
const answerTime = 10 * time.Second

// listen opens a UDP socket in a namespace.
func (l *wireLab) listen(ns *netlab.Namespace, at string) *net.UDPConn {
	l.t.Helper()
	var conn net.PacketConn
	l.must(ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", at)
		return err
	}))
	l.t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UDPConn)
}

// dialUDP opens a connected UDP socket in a namespace.
func (l *wireLab) dialUDP(ns *netlab.Namespace, to string) *net.UDPConn {
	l.t.Helper()
	var conn net.Conn
	l.must(ns.Do(func() (err error) {
		conn, err = net.Dial("udp", to)
		return err
	}))
	l.t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UDPConn)
}

// exchange sends a datagram from one namespace to an address in another, and the answer
// back. It returns the source that the receiver saw.
func (l *wireLab) exchange(from, to *netlab.Namespace, ip netip.Addr, size int) (netip.Addr, error) {
	l.t.Helper()
	server := l.listen(to, netip.AddrPortFrom(ip, 0).String())
	client := l.dialUDP(from, server.LocalAddr().String())
	defer func() { _, _ = server.Close(), client.Close() }()
	payload, buf := make([]byte, size), make([]byte, 1<<16)
	if _, err := client.Write(payload); err != nil {
		return netip.Addr{}, err
	}
	_ = server.SetReadDeadline(time.Now().Add(answerTime))
	n, source, err := server.ReadFromUDPAddrPort(buf)
	if err != nil || n != size {
		return netip.Addr{}, fmt.Errorf("received %d bytes: %w", n, err)
	}
	if _, err := server.WriteToUDPAddrPort(payload, source); err != nil {
		return netip.Addr{}, err
	}
	_ = client.SetReadDeadline(time.Now().Add(answerTime))
	_, err = client.Read(buf)
	return source.Addr().Unmap(), err
}

func TestPodsReachEachOtherAndTheNode(t *testing.T) {
	l := newWireLab(t, Options{})
	a, b := l.pod(), l.pod()
	l.create(a)
	l.create(b)
	gateways := []netip.Addr{netip.MustParseAddr("10.1.5.1"), netip.MustParseAddr("fd01::1")}
	for i := range a.ip {
		source, err := l.exchange(a.Namespace, b.Namespace, b.ip[i], 100)
		l.Expect(err).NotTo(HaveOccurred(), "pod to pod %s", b.ip[i])
		l.Expect(source).To(Equal(a.ip[i]))
		source, err = l.exchange(a.Namespace, l.host, gateways[i], 100)
		l.Expect(err).NotTo(HaveOccurred(), "pod to node %s", gateways[i])
		l.Expect(source).To(Equal(a.ip[i]))
		source, err = l.exchange(l.host, b.Namespace, b.ip[i], 100)
		l.Expect(err).NotTo(HaveOccurred(), "node to pod %s", b.ip[i])
		l.Expect(source).To(Equal(gateways[i]))
	}
}

// TestPacketsOfTheMTUPass sends packets that may not be fragmented.
func TestPacketsOfTheMTUPass(t *testing.T) {
	l := newWireLab(t, Options{})
	a, b := l.pod(), l.pod()
	l.create(a)
	l.create(b)
	for i, header := range []int{20 + 8, 40 + 8} {
		_, err := l.exchange(a.Namespace, b.Namespace, b.ip[i], 1450-header)
		l.Expect(err).NotTo(HaveOccurred())
		client := l.dialUDP(a.Namespace, netip.AddrPortFrom(b.ip[i], 9).String())
		raw, err := client.SyscallConn()
		l.must(err)
		l.must(raw.Control(func(fd uintptr) {
			if i == 0 {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			}
		}))
		l.must(err)
		_, err = client.Write(make([]byte, 1450-header+1))
		l.Expect(err).To(MatchError(unix.EMSGSIZE))
	}
}

// TestTCPPassesWithTheDefaultOffloads sends 4 MiB each way, in segments that the links may
// put together.
func TestTCPPassesWithTheDefaultOffloads(t *testing.T) {
	l := newWireLab(t, Options{})
	a, b := l.pod(), l.pod()
	l.create(a)
	l.create(b)
	const size = 4 << 20
	for i := range a.ip {
		var listener net.Listener
		l.must(b.Do(func() (err error) {
			listener, err = net.Listen("tcp", netip.AddrPortFrom(b.ip[i], 0).String())
			return err
		}))
		var group sync.WaitGroup
		group.Go(func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, io.LimitReader(conn, size))
			_ = conn.Close()
		})
		var conn net.Conn
		l.must(a.Do(func() (err error) {
			conn, err = net.Dial("tcp", listener.Addr().String())
			return err
		}))
		_ = conn.SetDeadline(time.Now().Add(answerTime))
		group.Go(func() { _, _ = conn.Write(make([]byte, size)) })
		n, err := io.Copy(io.Discard, conn)
		l.Expect(err).NotTo(HaveOccurred())
		l.Expect(n).To(BeEquivalentTo(size))
		group.Wait()
		_, _ = conn.Close(), listener.Close()
	}
}

// flood sends datagrams without a pause until it is stopped, whatever errors come.
type flood struct {
	stop atomic.Bool
	done sync.WaitGroup
	sent atomic.Int64
}

func (l *wireLab) flood(from *netlab.Namespace, text string, targets ...string) *flood {
	l.t.Helper()
	f := &flood{}
	for _, to := range targets {
		conn := l.dialUDP(from, to)
		f.done.Go(func() {
			for !f.stop.Load() {
				if _, err := conn.Write([]byte(text)); err == nil {
					f.sent.Add(1)
				}
			}
		})
	}
	l.t.Cleanup(f.end)
	return f
}

func (f *flood) end() {
	f.stop.Store(true)
	f.done.Wait()
}

// drain reads what a socket has already, and returns the number of datagrams.
func drain(conn *net.UDPConn) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64)
	read := raw.Read(func(fd uintptr) bool {
		for {
			if _, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err != nil {
				return true
			}
			n++
		}
	})
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	return n, errors.Join(read, err)
}

// TestAnAddressIsReusedWhileTheOldPodSends detaches a pod that sends to the node and to
// another pod without a pause, of both families, and gives its addresses to a new pod at
// once. After the deletion, not one packet of the old pod arrives, and none reaches it.
func TestAnAddressIsReusedWhileTheOldPodSends(t *testing.T) {
	l := newWireLab(t, Options{})
	other := l.pod()
	l.create(other)
	sinks := []*net.UDPConn{
		l.listen(l.host, "0.0.0.0:7000"), l.listen(l.host, "[::]:7001"),
		l.listen(other.Namespace, "0.0.0.0:7000"), l.listen(other.Namespace, "[::]:7001"),
	}
	const rounds = 20
	for round := range rounds {
		old := l.podWith(l.namespace(), fmt.Sprintf("pod/k8s/old%d/eth0", round), 900)
		l.create(old)
		inbox := l.listen(old.Namespace, "[::]:7002")
		f := l.flood(old.Namespace, "old", "10.1.5.1:7000", "[fd01::1]:7001",
			netip.AddrPortFrom(other.ip[0], 7000).String(), netip.AddrPortFrom(other.ip[1], 7001).String())
		for _, s := range sinks { // it arrives now
			_ = s.SetReadDeadline(time.Now().Add(answerTime))
			_, _, err := s.ReadFromUDPAddrPort(make([]byte, 64))
			l.must(err)
		}
		l.delete(old)
		for _, s := range sinks {
			_, err := drain(s)
			l.must(err)
		}
		sent := f.sent.Load()
		fresh := l.podWith(l.namespace(), fmt.Sprintf("pod/k8s/new%d/eth0", round), 900)
		l.create(fresh)
		answers := l.listen(fresh.Namespace, "[::]:7002")
		for i, ip := range fresh.ip {
			for _, from := range []*netlab.Namespace{l.host, other.Namespace} {
				_, err := l.exchange(from, fresh.Namespace, ip, 10)
				l.Expect(err).NotTo(HaveOccurred(), "the new pod has the address %d", i)
				conn := l.dialUDP(from, netip.AddrPortFrom(ip, 7002).String())
				_, err = conn.Write([]byte("to the new one"))
				l.must(err)
				_ = answers.SetReadDeadline(time.Now().Add(answerTime))
				_, _, err = answers.ReadFromUDPAddrPort(make([]byte, 64))
				l.must(err)
			}
		}
		l.Eventually(f.sent.Load).Should(BeNumerically(">", sent), "the old pod goes on")
		for i, s := range sinks {
			n, err := drain(s)
			l.must(err)
			l.Expect(n).To(BeZero(), "round %d: packets of the old pod at sink %d after the deletion", round, i)
		}
		n, err := drain(inbox)
		l.must(err)
		l.Expect(n).To(BeZero(), "round %d: packets that reached the old pod", round)
		f.end()
		l.delete(fresh)
		for more := true; more && round%5 == 4; { // with and without sweeping between
			more, err = l.wires.Sweep(context.Background())
			l.must(err)
		}
		_, _ = old.Close(), fresh.Close()
	}
}

// TestTheOldPodCannotComeBack lets the old pod do to its end what root may do there.
func TestTheOldPodCannotComeBack(t *testing.T) {
	l := newWireLab(t, Options{})
	sink := l.listen(l.host, "[::]:7000")
	l.must(l.host.Do(func() error { return nil }))
	old := l.pod()
	l.create(old)
	l.delete(old)
	l.must(old.Do(func() error {
		s, err := ownSocket()
		if err != nil {
			return err
		}
		link, _, err := getLink(s, "eth0")
		if err != nil {
			return err
		}
		for _, flags := range []uint32{0, unix.IFF_UP} {
			if err := s.Run(oneRequest(changeLink("change", link.index, flags, unix.IFF_UP, nil))); err != nil {
				return err
			}
		}
		p, err := readWire(old.key, old.value)
		if err != nil {
			return err
		}
		have, err := readObjects(s, link.index)
		if err != nil {
			return err
		}
		d := p.pod.differences(have[link.index])
		return errors.Join(s.Run(d.requests(link.linkID)), s.Close())
	}))
	f := l.flood(old.Namespace, "old", "10.1.5.1:7000", "[fd01::1]:7000")
	other := l.pod()
	l.create(other) // has the gateways' addresses
	_, err := l.exchange(other.Namespace, l.host, netip.MustParseAddr("10.1.5.1"), 10)
	l.Expect(err).NotTo(HaveOccurred())
	before := f.sent.Load()
	l.Eventually(f.sent.Load).Should(BeNumerically(">", before))
	n, err := drain(sink)
	l.must(err)
	l.Expect(n).To(BeZero())
	_, err = os.Stat(old.Path())
	l.must(err)
}
