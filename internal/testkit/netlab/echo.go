// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Echo answers each UDP packet to an address.
type Echo struct {
	Conn  *net.UDPConn
	done  chan struct{}
	heard atomic.Uint64
	from  atomic.Pointer[netip.AddrPort] // of the last packet
}

// NewEcho opens an echo in a namespace.
func NewEcho(t testing.TB, ns *Namespace, at netip.AddrPort) *Echo {
	t.Helper()
	e := &Echo{done: make(chan struct{})}
	must(t, ns.Do(func() (err error) {
		e.Conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	must(t, deepen(e.Conn))
	go e.serve()
	t.Cleanup(e.Close)
	return e
}

func (e *Echo) serve() {
	defer close(e.done)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := e.Conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier answer
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		e.from.Store(&from)
		e.heard.Add(1)
		_, _ = e.Conn.WriteToUDPAddrPort(buf[:n], from) // its receiver notices a lost answer
	}
}

// At returns the address of the echo.
func (e *Echo) At() netip.AddrPort {
	a := e.Conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Heard returns the number of packets that have arrived.
func (e *Echo) Heard() uint64 { return e.heard.Load() }

// From returns the source of the last packet, the zero value if none has arrived.
func (e *Echo) From() netip.AddrPort {
	if from := e.from.Load(); from != nil {
		return *from
	}
	return netip.AddrPort{}
}

// Close ends the echo. It may be called again.
func (e *Echo) Close() {
	_ = e.Conn.Close() // a second time
	<-e.done
}

// deepen gives a socket room for what arrives while its reader waits for the processor.
func deepen(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(
		func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) },
	)
	return errors.Join(err, inner)
}

// Dial opens a UDP socket of a namespace to an address.
func Dial(t testing.TB, ns *Namespace, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	must(t, ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	must(t, deepen(conn))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Reach sends a packet to an echo at an address until it comes back, and returns the
// source that the receiver saw.
func Reach(t testing.TB, from, to Place, is4 bool) (seen netip.Addr, err error) {
	t.Helper()
	server := NewEcho(t, to.Net, netip.AddrPortFrom(to.Addr(is4), 0))
	defer server.Close()
	return Call(t, from, server.At(), server)
}

// Call sends a packet to an address until it comes back from server, and returns the source
// that server saw.
func Call(t testing.TB, from Place, at netip.AddrPort, server *Echo) (netip.Addr, error) {
	t.Helper()
	client := Dial(t, from.Net, at)
	defer func() { _ = client.Close() }()
	if err := Answered(client, 16, 50); err != nil {
		return netip.Addr{}, fmt.Errorf("from %s to %s: %w", from.Name, at, err)
	}
	return server.From().Addr(), nil
}

// Answered sends packets of a size until one comes back.
func Answered(client *net.UDPConn, size, tries int) (err error) {
	packet, buf := make([]byte, size), make([]byte, 1<<16)
	for range tries {
		if _, err = client.Write(packet); err != nil {
			if errors.Is(err, syscall.EMSGSIZE) {
				return err
			}
			<-time.After(20 * time.Millisecond)
			continue
		}
		if err = client.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		var n int
		if n, err = client.Read(buf); err == nil {
			if n != size {
				return fmt.Errorf("%d bytes came back, not %d", n, size)
			}
			return nil
		}
	}
	return err
}

// Whole sends a packet that must not be divided, of a size with its IP header.
func Whole(t testing.TB, from, to Place, is4 bool, size int) error {
	t.Helper()
	server := NewEcho(t, to.Net, netip.AddrPortFrom(to.Addr(is4), 0))
	defer server.Close()
	client := Dial(t, from.Net, server.At())
	defer func() { _ = client.Close() }()
	must(t, errors.Join(undivided(client, is4), undivided(server.Conn, is4)))
	headers := 28
	if !is4 {
		headers = 48
	}
	return Answered(client, size-headers, 20)
}

// undivided makes a socket send no fragments.
func undivided(conn *net.UDPConn, is4 bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		if is4 {
			inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			return
		}
		inner = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	})
	return errors.Join(err, inner)
}

// must ends the test with an error of this machine.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
