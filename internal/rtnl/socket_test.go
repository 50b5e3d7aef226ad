// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"encoding/binary"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// TestRunTakesAnyNumberOfRequests adds and removes more routes than one system call can
// carry, or its answers fit; the one that fails is named, and the others are made.
func TestRunTakesAnyNumberOfRequests(t *testing.T) {
	const count, bad = 20000, 12345
	err := rtnl.Apart(func() error {
		s, err := rtnl.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		for _, x := range []struct{ kind, flags uint16 }{
			{unix.RTM_NEWROUTE, unix.NLM_F_CREATE | unix.NLM_F_EXCL}, {unix.RTM_DELROUTE, 0},
		} {
			var all []*rtnl.Request
			for i := range count {
				m := make(rtnl.Message, unix.SizeofRtMsg)
				m[0], m[1], m[4], m[5], m[7] = unix.AF_INET, 32, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RTN_BLACKHOLE
				if i == bad {
					m[1] = 33
				}
				address := binary.BigEndian.AppendUint32(nil, 10<<24+uint32(i))
				all = append(all, &rtnl.Request{
					What:  "change a route",
					Kind:  x.kind,
					Flags: x.flags,
					Body:  m.Attr(unix.RTA_DST, address),
				})
			}
			if err := s.Run(all); err == nil || !errors.Is(err, unix.EINVAL) || !errors.Is(all[bad].Err, unix.EINVAL) {
				t.Errorf("Run returned %v, and request %d has %v: want invalid argument", err, bad, all[bad].Err)
			}
			for i, r := range all {
				if i != bad && r.Err != nil {
					t.Fatalf("request %d: %v", i, r.Err)
				}
			}
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAFamilyThatTheKernelLacksHasNoObjects: 12, DECnet, has left the kernel, and is answered as IPv6 is after a start with ipv6.disable=1.
func TestAFamilyThatTheKernelLacksHasNoObjects(t *testing.T) {
	g := NewWithT(t)
	s, err := rtnl.Dial(unix.NETLINK_ROUTE)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = s.Close() }()
	for _, kind := range []uint16{unix.RTM_GETRULE, unix.RTM_GETROUTE, unix.RTM_GETNEIGH, unix.RTM_GETADDR} {
		for family, some := range map[byte]bool{12: false, unix.AF_INET: kind != unix.RTM_GETNEIGH} {
			body, found := make(rtnl.Message, unix.SizeofRtMsg), 0
			if kind == unix.RTM_GETADDR {
				body = make(rtnl.Message, unix.SizeofIfAddrmsg)
			}
			body[0] = family
			err := s.Dump("objects", kind, body, func() { found = 0 }, func(b []byte) {
				g.Expect(b[0]).To(Equal(family))
				found++
			})
			g.Expect(err).NotTo(HaveOccurred(), "kind %d of family %d", kind, family)
			if some || family == 12 {
				g.Expect(found > 0).To(Equal(some), "kind %d of family %d", kind, family)
			}
		}
	}
}
