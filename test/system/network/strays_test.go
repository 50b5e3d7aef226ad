// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

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
