// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// announcementBuffer is the size of the queue of a subscription, large enough for the
// announcements of a resync.
const announcementBuffer = 4 << 20

// Source is a netlink family with the groups to which the kernel announces changes.
type Source[A any] struct {
	Family int
	Groups []int
	// Begin is called before the first announcement, and after a loss; may be nil.
	Begin func() error
	// Decode returns what an announcement says, or false if nobody needs to know. It may not
	// keep the body.
	Decode func(kind uint16, body []byte) (A, bool)
}

// Monitor passes on what the kernel announces in one network namespace. It has one socket for
// each family that is followed, and decodes an announcement once for all followers. Any
// goroutine may use it.
type Monitor[A any] struct {
	path    string
	sources []Source[A]

	mu            sync.Mutex
	subscriptions map[int]*subscription[A] // by family
}

// subscription is the socket of a family with its followers.
type subscription[A any] struct {
	monitor   *Monitor[A]
	source    Source[A]
	file      *os.File
	raw       syscall.RawConn
	followers []*Follower[A] // replaced, not changed: the reader may have the former ones
	ended     chan struct{}
}

// NewMonitor returns a monitor of the network namespace of a path; "" is that of the caller of
// Follow. Each source has a family of its own.
func NewMonitor[A any](path string, sources ...Source[A]) *Monitor[A] {
	return &Monitor[A]{path: path, sources: sources, subscriptions: map[int]*subscription[A]{}}
}

// News is an announcement, or tells that some were lost: then anything may have changed.
type News[A any] struct {
	Announcement A
	Lost         bool
}

// Follower receives announcements. It reads News until it is closed, as all other followers
// wait for it.
type Follower[A any] struct {
	News   <-chan News[A]
	Failed <-chan error // has an element after a failure: no more news come of a family

	news          chan News[A]
	failed        chan error
	left          chan struct{}
	subscriptions []*subscription[A]
}

// Follow subscribes to families. Whatever changes after its return is announced.
func (m *Monitor[A]) Follow(families ...int) (*Follower[A], error) {
	f := &Follower[A]{
		news:   make(chan News[A]),
		failed: make(chan error, len(families)),
		left:   make(chan struct{}),
	}
	f.News, f.Failed = f.news, f.failed
	for _, family := range families {
		if err := m.join(family, f); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// join adds a follower to the subscription of a family. The first one opens it.
func (m *Monitor[A]) join(family int, f *Follower[A]) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.subscriptions[family]
	if s == nil {
		i := slices.IndexFunc(m.sources, func(source Source[A]) bool { return source.Family == family })
		if i < 0 {
			return fmt.Errorf("netlink family %d is not one of this monitor", family)
		}
		s = &subscription[A]{monitor: m, source: m.sources[i], ended: make(chan struct{})}
		if err := s.open(m.path); err != nil {
			return fmt.Errorf("subscribe to netlink family %d: %w", family, err)
		}
		m.subscriptions[family] = s
		go s.run()
	}
	s.followers = append(slices.Clip(s.followers), f)
	f.subscriptions = append(f.subscriptions, s)
	return nil
}

// Close ends the news. The last follower of a subscription ends and awaits it.
func (f *Follower[A]) Close() {
	close(f.left)
	for _, s := range f.subscriptions {
		s.leave(f)
	}
}

func (s *subscription[A]) leave(f *Follower[A]) {
	m := s.monitor
	m.mu.Lock()
	s.followers = slices.DeleteFunc(slices.Clone(s.followers), func(x *Follower[A]) bool { return x == f })
	last := len(s.followers) == 0
	if last {
		m.drop(s)
	}
	m.mu.Unlock()
	if last {
		_ = s.file.Close() // the reader ends by that
		<-s.ended
	}
}

// drop makes the next follower of the family open another subscription.
func (m *Monitor[A]) drop(s *subscription[A]) {
	if m.subscriptions[s.source.Family] == s {
		delete(m.subscriptions, s.source.Family)
	}
}

// open opens the socket in the network namespace of a path.
func (s *subscription[A]) open(path string) error {
	const flags = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	var fd int
	err := Within(path, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, flags, s.source.Family)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return err
	}
	s.file = os.NewFile(uintptr(fd), "netlink")
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, announcementBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, announcementBuffer) // as much as the system allows
	}
	for _, group := range s.source.Groups {
		joined := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		err = errors.Join(err, os.NewSyscallError("setsockopt", joined))
	}
	if err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	if err != nil {
		return errors.Join(err, s.file.Close())
	}
	return nil
}

// run reads announcements until the last follower leaves, or until a failure, of which it tells
// all followers.
func (s *subscription[A]) run() {
	defer close(s.ended)
	err := s.read()
	s.monitor.mu.Lock()
	s.monitor.drop(s)
	followers := s.followers
	s.monitor.mu.Unlock()
	for _, f := range followers {
		f.failed <- err
	}
}

func (s *subscription[A]) read() (err error) {
	defer func() {
		if v := recover(); v != nil { // a mistake of Begin or Decode ends the news, not the process
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	if err := s.begin(); err != nil {
		return err
	}
	packet := make([]byte, replySize)
	for {
		n, err := s.receive(packet)
		lost := errors.Is(err, unix.ENOBUFS) || n > len(packet)
		if err != nil && !lost {
			return err
		}
		if !lost {
			lost = Messages(packet[:n], s.pass) != nil
		}
		if lost {
			s.drain(packet)
			if err := s.begin(); err != nil {
				return err
			}
			s.tell(News[A]{Lost: true})
		}
	}
}

// drain empties the queue. After an overrun the kernel drops all announcements until then, and
// does not tell of them.
func (s *subscription[A]) drain(packet []byte) {
	_ = s.raw.Read(func(fd uintptr) bool { // an error comes again with the next packet
		for {
			_, _, err := unix.Recvfrom(int(fd), packet, 0)
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
}

func (s *subscription[A]) begin() error {
	if s.source.Begin == nil {
		return nil
	}
	return s.source.Begin()
}

// receive reads a packet of the kernel, and returns its size, which may exceed that of the buffer.
func (s *subscription[A]) receive(packet []byte) (n int, err error) {
	for {
		var from unix.Sockaddr
		closed := s.raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), packet, unix.MSG_TRUNC)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case closed != nil:
			return 0, closed
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("recvfrom", err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid == 0 {
			return n, nil
		}
	}
}

// pass decodes an announcement and passes it on.
func (s *subscription[A]) pass(kind, _ uint16, _ uint32, body []byte) (more bool, err error) {
	if a, ok := s.source.Decode(kind, body); ok {
		s.tell(News[A]{Announcement: a})
	}
	return true, nil
}

// tell waits until each follower has taken the news, or has left.
func (s *subscription[A]) tell(news News[A]) {
	s.monitor.mu.Lock()
	followers := s.followers
	s.monitor.mu.Unlock()
	for _, f := range followers {
		select {
		case f.news <- news:
		case <-f.left:
		}
	}
}
