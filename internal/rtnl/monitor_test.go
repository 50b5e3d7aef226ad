// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"encoding/binary"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// routeLab is a network namespace with a monitor of its IPv4 routes.
type routeLab struct {
	Gomega
	*rtnl.Monitor[netip.Addr]
	ns             *netlab.Namespace
	begun, decoded atomic.Int32
	clumsy         atomic.Bool // Decode panics
}

func newRouteLab(t *testing.T) *routeLab {
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	l := &routeLab{Gomega: NewWithT(t)}
	var err error
	l.ns, err = netlab.New()
	l.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = l.ns.Close() })
	l.Monitor = rtnl.NewMonitor(l.ns.Path(), rtnl.Source[netip.Addr]{
		Family: unix.NETLINK_ROUTE,
		Groups: []int{unix.RTNLGRP_IPV4_ROUTE},
		Begin:  func() error { l.begun.Add(1); return nil },
		Decode: func(kind uint16, body []byte) (a netip.Addr, ok bool) {
			l.decoded.Add(1)
			if l.clumsy.Load() {
				panic("index out of range")
			}
			rtnl.Attributes(body[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
				if kind == unix.RTA_DST {
					a, _ = netip.AddrFromSlice(v)
				}
			})
			return a, kind == unix.RTM_NEWROUTE
		},
	}, rtnl.Source[netip.Addr]{Family: 999})
	return l
}

// follow follows the routes.
func (l *routeLab) follow() *rtnl.Follower[netip.Addr] {
	f, err := l.Follow(unix.NETLINK_ROUTE)
	l.Expect(err).NotTo(HaveOccurred())
	return f
}

// add adds routes to addresses from 10.0.0.0 on, and removes them.
func (l *routeLab) add(first, count uint32) {
	l.Expect(rtnl.Within(l.ns.Path(), func() error {
		s, err := rtnl.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		var added, removed []*rtnl.Request
		for i := range count {
			m := make(rtnl.Message, unix.SizeofRtMsg)
			m[0], m[1], m[4], m[5], m[7] = unix.AF_INET, 32, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RTN_BLACKHOLE
			m = m.Attr(unix.RTA_DST, binary.BigEndian.AppendUint32(nil, 10<<24+first+i))
			added = append(added, &rtnl.Request{Kind: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: m})
			removed = append(removed, &rtnl.Request{Kind: unix.RTM_DELROUTE, Body: m})
		}
		if err := s.Run(added); err != nil {
			return err
		}
		return s.Run(removed)
	})).To(Succeed())
}

// subscribed returns the number of sockets of the namespace that receive announcements.
func (l *routeLab) subscribed() (n int) {
	l.Expect(l.ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(text)) {
			if groups := strings.Fields(line)[3]; groups != "00000000" && groups != "Groups" {
				n++
			}
		}
		return err
	})).To(Succeed())
	return n
}

// TestAllFollowersShareOneSocket also has a follower that does not read, and leaves.
func TestAllFollowersShareOneSocket(t *testing.T) {
	l := newRouteLab(t)
	idle, a, b := l.follow(), l.follow(), l.follow()
	l.Expect(l.subscribed()).To(Equal(1))
	for i := range uint32(3) {
		l.add(i, 1)
		news := rtnl.News[netip.Addr]{Announcement: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
		switch i {
		case 0:
			l.Eventually(idle.News).Should(Receive(Equal(news)))
		case 1: // it has not read these
			idle.Close()
		}
		l.Eventually(a.News).Should(Receive(Equal(news)))
		l.Eventually(b.News).Should(Receive(Equal(news)))
	}
	a.Close()
	l.add(3, 1)
	l.Eventually(b.News).Should(Receive(Equal(rtnl.News[netip.Addr]{Announcement: netip.MustParseAddr("10.0.0.3")})))
	l.Eventually(l.decoded.Load).Should(BeEquivalentTo(8), "each route comes and goes, and is decoded once")
	b.Close()
	l.Expect(l.subscribed()).To(BeZero(), "the last follower has left")
	l.Expect(l.begun.Load()).To(BeEquivalentTo(1))
	c := l.follow()
	defer c.Close()
	l.add(4, 1)
	l.Eventually(c.News).Should(Receive(Equal(rtnl.News[netip.Addr]{Announcement: netip.MustParseAddr("10.0.0.4")})))
	l.Expect(l.begun.Load()).To(BeEquivalentTo(2))
}

// TestAnOverrunIsToldToAllFollowers has more announcements than the queue holds.
func TestAnOverrunIsToldToAllFollowers(t *testing.T) {
	l := newRouteLab(t)
	a, b := l.follow(), l.follow()
	defer a.Close()
	defer b.Close()
	l.add(0, 20000)
	first := rtnl.News[netip.Addr]{Announcement: netip.MustParseAddr("10.0.0.0")}
	for _, want := range []rtnl.News[netip.Addr]{first, {Err: rtnl.ErrOverrun}} {
		for _, f := range []*rtnl.Follower[netip.Addr]{a, b} {
			l.Eventually(f.News, "10s").Should(Receive(Equal(want)))
		}
	}
	l.Expect(l.begun.Load()).To(BeEquivalentTo(2), "what Begin has read may have changed")
	l.add(0, 1)
	for _, f := range []*rtnl.Follower[netip.Addr]{a, b} {
		l.Eventually(f.News, "10s").Should(Receive(Equal(first)))
	}
}

func TestAFailureIsToldToAllFollowers(t *testing.T) {
	l := newRouteLab(t)
	a, b := l.follow(), l.follow()
	l.clumsy.Store(true)
	l.add(0, 1)
	for _, f := range []*rtnl.Follower[netip.Addr]{a, b} {
		news := rtnl.News[netip.Addr]{}
		l.Eventually(f.News).Should(Receive(&news))
		l.Expect(news.Err).To(MatchError(ContainSubstring("panic: index out of range")))
	}
	l.clumsy.Store(false)
	c := l.follow()
	defer c.Close()
	a.Close()
	b.Close()
	l.add(1, 1)
	l.Eventually(c.News).Should(Receive(Equal(rtnl.News[netip.Addr]{Announcement: netip.MustParseAddr("10.0.0.1")})))
}

func TestWhatCannotBeFollowed(t *testing.T) {
	l := newRouteLab(t)
	for family, text := range map[int]string{998: "subscribe to netlink family 998: it is not one of this monitor", 999: "subscribe to netlink family 999: socket"} {
		_, err := l.Follow(unix.NETLINK_ROUTE, family)
		l.Expect(err).To(MatchError(HavePrefix(text)))
		l.Expect(l.subscribed()).To(BeZero(), "the subscription to the other family has ended")
	}
	_, err := rtnl.NewMonitor("/nowhere", rtnl.Source[int]{Family: unix.NETLINK_ROUTE}).Follow(unix.NETLINK_ROUTE)
	l.Expect(err).To(MatchError(rtnl.ErrNone))
}

// The last follower leaves while its reader begins, and another one comes: what Begin and
// Decode keep belongs to one reader at a time.
func TestOneReaderAtATime(t *testing.T) {
	l := newRouteLab(t)
	var begun atomic.Int32
	hold := make(chan struct{})
	m := rtnl.NewMonitor(l.ns.Path(), rtnl.Source[int]{
		Family: unix.NETLINK_ROUTE,
		Begin: func() error {
			if begun.Add(1) == 1 {
				<-hold
			}
			return nil
		},
		Decode: func(uint16, []byte) (int, bool) { return 0, false },
	})
	first, err := m.Follow(unix.NETLINK_ROUTE)
	l.Expect(err).NotTo(HaveOccurred())
	l.Eventually(begun.Load).Should(BeEquivalentTo(1))
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		l.Expect(err).NotTo(HaveOccurred())
		return len(all)
	}
	open, left := files(), make(chan struct{})
	go func() {
		defer close(left)
		first.Close()
	}()
	l.Eventually(files).Should(BeNumerically("<", open), "the socket is closed, and its reader still begins")
	second, err := m.Follow(unix.NETLINK_ROUTE)
	l.Expect(err).NotTo(HaveOccurred())
	l.Consistently(begun.Load, 50*time.Millisecond, 10*time.Millisecond).Should(BeEquivalentTo(1))
	close(hold)
	l.Eventually(begun.Load).Should(BeEquivalentTo(2))
	<-left
	second.Close()
}
