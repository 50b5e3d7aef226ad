// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/southbound/linux/rtnl"
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
