// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// echo answers each UDP packet to an address.
type echo struct {
	conn  *net.UDPConn
	done  chan struct{}
	heard atomic.Uint64
	from  atomic.Pointer[netip.AddrPort] // of the last packet
}

func (c *cluster) echo(ns *netlab.Namespace, at netip.AddrPort) *echo {
	c.t.Helper()
	e := &echo{done: make(chan struct{})}
	c.must(ns.Do(func() (err error) {
		e.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	c.must(deepen(e.conn))
	go func() {
		defer close(e.done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := e.conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error of an earlier answer
			}
			from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			e.from.Store(&from)
			e.heard.Add(1)
			_, _ = e.conn.WriteToUDPAddrPort(buf[:n], from) // a lost answer is noticed by its receiver
		}
	}()
	c.t.Cleanup(e.close)
	return e
}

func (e *echo) at() netip.AddrPort {
	a := e.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func (e *echo) close() {
	_ = e.conn.Close() // a second time
	<-e.done
}

// deepen gives a socket room for what arrives while its reader waits for the processor.
func deepen(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	return errors.Join(err, inner)
}

// dial opens a UDP socket of a namespace to an address.
func (c *cluster) dial(ns *netlab.Namespace, to netip.AddrPort) *net.UDPConn {
	c.t.Helper()
	var conn *net.UDPConn
	c.must(ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	c.must(deepen(conn))
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// flow sends numbered packets in a fixed interval to an echo, each once, and counts those
// that come back.
type flow struct {
	name   string
	client *net.UDPConn
	server *echo
	stop   chan struct{}
	all    sync.WaitGroup
	sender sync.WaitGroup

	dropped int       // packets that the machine had dropped before
	stopped time.Time // when the last packet was sent

	mu   sync.Mutex
	sent []time.Time
	back map[uint64]bool
	last time.Time // when the last new one came back

	unsent map[uint64]error
}

// interval is the time between two packets of a flow.
const interval = 2 * time.Millisecond

// flow begins a flow, and waits until the first packets have come back.
func (c *cluster) flow(from, to place, is4 bool) *flow {
	c.t.Helper()
	server := c.echo(to.ns, netip.AddrPortFrom(to.addr(is4), 0))
	f := &flow{
		name: fmt.Sprintf("%s %s to %s %s", from.name, from.addr(is4), to.name, to.addr(is4)), client: c.dial(from.ns, server.at()),
		server: server, stop: make(chan struct{}), back: map[uint64]bool{}, unsent: map[uint64]error{},
	}
	f.begin()
	c.t.Cleanup(func() { f.close() })
	c.Eventually(f.received, patience, pace).Should(BeNumerically(">=", 5), f.name)
	// The first packets may meet a neighbour that is not known yet.
	f.mu.Lock()
	f.sent, f.back = f.sent[:0:0], map[uint64]bool{}
	f.mu.Unlock()
	return f
}

func (f *flow) begin() {
	f.dropped = drops()
	f.sender.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-f.stop:
				return
			case <-tick.C:
			}
			f.mu.Lock()
			number, now := uint64(len(f.sent)), time.Now()
			f.sent = append(f.sent, now)
			f.mu.Unlock()
			packet := binary.BigEndian.AppendUint64(nil, number)
			if _, err := f.client.Write(binary.BigEndian.AppendUint64(packet, uint64(now.UnixNano()))); err != nil {
				f.mu.Lock()
				f.unsent[number] = err
				f.mu.Unlock()
			}
		}
	})
	f.all.Go(func() {
		buf := make([]byte, 64)
		for {
			n, err := f.client.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n != 16 {
				continue
			}
			number, stamp := binary.BigEndian.Uint64(buf), int64(binary.BigEndian.Uint64(buf[8:]))
			f.mu.Lock()
			if number < uint64(len(f.sent)) && f.sent[number].UnixNano() == stamp && !f.back[number] {
				f.back[number], f.last = true, time.Now()
			}
			f.mu.Unlock()
		}
	})
}

func (f *flow) received() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.back)
}

// receivedSince returns the number of packets that were sent since and have come back.
func (f *flow) receivedSince(since time.Time) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.sent) - 1; i >= 0 && f.sent[i].After(since); i-- {
		if f.back[uint64(i)] {
			n++
		}
	}
	return n
}

// halt ends the sending.
func (f *flow) halt() {
	select {
	case <-f.stop:
		return
	default:
		close(f.stop)
	}
	f.sender.Wait()
	f.stopped = time.Now()
}

func (f *flow) close() {
	f.halt()
	_ = f.client.Close() // a second time
	f.all.Wait()
	f.server.close()
}

// loss is the outcome of a flow.
type loss struct {
	sent, lost int
	dropped    int           // packets that a busy machine has dropped meanwhile
	outage     time.Duration // the longest time in which all packets were lost
	detail     string        // the first lost packet
}

func (l loss) String() string {
	return fmt.Sprintf("%d of %d packets lost, at most %d ms in a row", l.lost, l.sent, l.outage.Milliseconds()) + l.detail
}

// quiet is the time without a further packet after which the missing ones are lost.
const quiet = 500 * time.Millisecond

// end ends the flow, and waits for the packets that are under way.
func (f *flow) end() (l loss) {
	f.halt()
	for {
		f.mu.Lock()
		missing, since := len(f.sent)-len(f.back), time.Since(f.last)
		f.mu.Unlock()
		if missing == 0 || since > quiet && time.Since(f.stopped) > quiet {
			break
		}
		<-time.After(pace)
	}
	f.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	var began time.Time
	for i, at := range f.sent {
		switch {
		case f.back[uint64(i)]:
			if !began.IsZero() {
				l.outage = max(l.outage, at.Sub(began))
			}
			began = time.Time{}
		case began.IsZero():
			began = at
			if l.detail == "" {
				l.detail = fmt.Sprintf(" (first packet %d of %d, %v)", i, len(f.sent), f.unsent[uint64(i)])
			}
		}
	}
	l.sent, l.lost, l.dropped = len(f.sent), len(f.sent)-len(f.back), drops()-f.dropped
	return l
}

// halted ends the sending of flows at once, so that one wait serves the packets of all that
// are under way.
func halted(flows []*flow) []*flow {
	for _, f := range flows {
		f.halt()
	}
	return flows
}

// drops returns the number of packets that the machine has dropped because a queue of a
// processor was full: its programs share these, whatever their namespaces.
func drops() (n int) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var processed, dropped int
		if _, err := fmt.Sscanf(line, "%x %x", &processed, &dropped); err == nil {
			n += dropped
		}
	}
	return n
}

// reach sends a packet to an echo at an address until it comes back, and returns the
// source that the receiver saw.
func (c *cluster) reach(from, to place, is4 bool) (seen netip.Addr, err error) {
	c.t.Helper()
	server := c.echo(to.ns, netip.AddrPortFrom(to.addr(is4), 0))
	defer server.close()
	return c.call(from, server.at(), server)
}

// call sends a packet to an address until it comes back from server.
func (c *cluster) call(from place, at netip.AddrPort, server *echo) (netip.Addr, error) {
	client := c.dial(from.ns, at)
	defer client.Close()
	if err := answered(client, 16, 50); err != nil {
		return netip.Addr{}, fmt.Errorf("from %s to %s: %w", from.name, at, err)
	}
	return server.from.Load().Addr(), nil
}

// answered sends packets of a size until one comes back.
func answered(client *net.UDPConn, size, tries int) (err error) {
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

// whole sends a packet that must not be divided, of a size with its IP header.
func (c *cluster) whole(from, to place, is4 bool, size int) error {
	c.t.Helper()
	server := c.echo(to.ns, netip.AddrPortFrom(to.addr(is4), 0))
	defer server.close()
	client := c.dial(from.ns, server.at())
	defer client.Close()
	undivided(c, client, is4)
	undivided(c, server.conn, is4)
	headers := 28
	if !is4 {
		headers = 48
	}
	return answered(client, size-headers, 20)
}

// undivided makes a socket send no fragments.
func undivided(c *cluster, conn *net.UDPConn, is4 bool) {
	raw, err := conn.SyscallConn()
	c.must(err)
	c.must(raw.Control(func(fd uintptr) {
		if is4 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			return
		}
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	}))
	c.must(err)
}

// connect opens a TCP connection between two places.
func (c *cluster) connect(from, to place, is4 bool) (client, server net.Conn, err error) {
	var listener *net.TCPListener
	err = to.ns.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.addr(is4), 0)))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	err = from.ns.Do(func() (err error) {
		client, err = (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	server, err = listener.AcceptTCP()
	return client, server, err
}

// transfer sends size random bytes by TCP, and compares what arrives.
func (c *cluster) transfer(from, to place, is4 bool, size int) error {
	client, server, err := c.connect(from, to, is4)
	if err != nil {
		return fmt.Errorf("TCP from %s to %s: %w", from.name, to.name, err)
	}
	defer client.Close()
	defer server.Close()
	late := time.Now().Add(patience)
	if err := errors.Join(client.SetDeadline(late), server.SetDeadline(late)); err != nil {
		return err
	}
	sums := [2]hash.Hash{sha256.New(), sha256.New()}
	sent := make(chan error, 1)
	go func() {
		source := rand.NewChaCha8([32]byte{1})
		_, err := io.CopyN(io.MultiWriter(client, sums[0]), source, int64(size))
		sent <- errors.Join(err, client.(*net.TCPConn).CloseWrite())
	}()
	n, err := io.Copy(sums[1], server)
	if err = errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("TCP from %s to %s, after %d bytes: %w", from.name, to.name, n, err)
	}
	if string(sums[0].Sum(nil)) != string(sums[1].Sum(nil)) {
		return fmt.Errorf("TCP from %s to %s: %d other bytes arrived", from.name, to.name, n)
	}
	return nil
}

// throughput sends by TCP for a time, and returns bits a second.
func (c *cluster) throughput(from, to place, is4 bool, length time.Duration) float64 {
	c.t.Helper()
	client, server, err := c.connect(from, to, is4)
	c.must(err)
	defer client.Close()
	defer server.Close()
	go func() {
		buf := make([]byte, 1<<17)
		for {
			if _, err := client.Write(buf); err != nil {
				return
			}
		}
	}()
	began, total, buf := time.Now(), 0, make([]byte, 1<<18)
	for time.Since(began) < length {
		n, err := server.Read(buf)
		c.must(err)
		total += n
	}
	return float64(total) * 8 / time.Since(began).Seconds()
}

// strays counts the packets to pods that reach the router unwrapped: nodes have sent them
// by their default route.
type strays struct {
	n    atomic.Int64
	last atomic.Pointer[string]
}

// watchStrays looks at all packets to the router until the test ends.
func (c *cluster) watchStrays() *strays {
	s := &strays{}
	fd := -1
	c.must(c.router.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8})
	}))
	file := os.NewFile(uintptr(fd), "packets")
	raw, err := file.SyscallConn()
	c.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 128)
		for {
			var n int
			var from unix.Sockaddr
			var inner error
			err := raw.Read(func(fd uintptr) bool {
				n, from, inner = unix.Recvfrom(int(fd), buf, 0)
				return !errors.Is(inner, unix.EAGAIN)
			})
			if err != nil {
				return
			}
			if at, ok := from.(*unix.SockaddrLinklayer); ok && inner == nil && at.Pkttype == unix.PACKET_HOST {
				s.note(buf[:n])
			}
		}
	}()
	c.t.Cleanup(func() { _ = file.Close(); <-done })
	return s
}

// note counts a packet to an address of a pod.
func (s *strays) note(packet []byte) {
	var source, to netip.Addr
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		source, _ = netip.AddrFromSlice(packet[12:16])
		to, _ = netip.AddrFromSlice(packet[16:20])
	case len(packet) >= 40 && packet[0]>>4 == 6:
		source, _ = netip.AddrFromSlice(packet[8:24])
		to, _ = netip.AddrFromSlice(packet[24:40])
	default:
		return
	}
	for _, pods := range []string{"10.1.0.0/16", "fd00:1::/48"} {
		if netip.MustParsePrefix(pods).Contains(to) {
			text := fmt.Sprintf("from %s to %s", source, to)
			s.last.Store(&text)
			s.n.Add(1)
		}
	}
}

// expectNone fails if a packet has left by a default route.
func (s *strays) expectNone(c *cluster) {
	c.t.Helper()
	if n := s.n.Load(); n > 0 {
		c.t.Errorf("%d packets to pods have left by a default route, the last one %s", n, *s.last.Load())
	}
}
