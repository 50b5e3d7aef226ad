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

	"golang.org/x/sys/unix"
)

// ErrOverrun means that announcements were lost: anything may have changed.
var ErrOverrun = errors.New("the kernel's announcements have overrun their queue")

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
	ended         map[int]chan struct{}    // by family: closed when the last reader has ended
}

// subscription is the socket of a family with its followers.
type subscription[A any] struct {
	Source[A]
	monitor   *Monitor[A]
	file      *os.File
	followers []*Follower[A] // replaced, not changed: the reader may have the former ones
	before    chan struct{}  // closed when the reader of the subscription before has ended
	ended     chan struct{}
}

// NewMonitor returns a monitor of the network namespace of a path; "" is that of the caller of
// Follow. Each source has a family of its own.
func NewMonitor[A any](path string, sources ...Source[A]) *Monitor[A] {
	return &Monitor[A]{
		path: path, sources: sources,
		subscriptions: map[int]*subscription[A]{}, ended: map[int]chan struct{}{},
	}
}

// News is an announcement or an error: ErrOverrun, or the reason why no more news come.
type News[A any] struct {
	Announcement A
	Err          error
}

// Follower receives announcements. It reads News until it is closed, as all other followers
// wait for it.
type Follower[A any] struct {
	News          chan News[A]
	left          chan struct{}
	subscriptions []*subscription[A]
}

// Follow subscribes to families. Whatever changes after its return is announced.
func (m *Monitor[A]) Follow(families ...int) (*Follower[A], error) {
	m.mu.Lock()
	f := &Follower[A]{News: make(chan News[A]), left: make(chan struct{})}
	var err error
	for _, family := range families {
		s := m.subscriptions[family]
		if s == nil {
			s, err = m.subscribe(family)
		}
		if err != nil {
			m.mu.Unlock()
			f.Close()
			return nil, fmt.Errorf("subscribe to netlink family %d: %w", family, err)
		}
		s.followers = append(slices.Clip(s.followers), f)
		f.subscriptions = append(f.subscriptions, s)
	}
	m.mu.Unlock()
	return f, nil
}

// subscribe opens the subscription of a family.
func (m *Monitor[A]) subscribe(family int) (*subscription[A], error) {
	i := slices.IndexFunc(m.sources, func(s Source[A]) bool { return s.Family == family })
	if i < 0 {
		return nil, errors.New("it is not one of this monitor")
	}
	s := &subscription[A]{Source: m.sources[i], monitor: m, before: m.ended[family], ended: make(chan struct{})}
	err := Within(m.path, func() (err error) {
		s.file, err = listen(family, s.Groups)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.subscriptions[family], m.ended[family] = s, s.ended
	go s.run()
	return s, nil
}

// listen opens a socket that receives the announcements of groups.
func listen(family int, groups []int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, announcementBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, announcementBuffer) // as much as the system allows
	}
	for _, group := range groups {
		joined := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		err = errors.Join(err, os.NewSyscallError("setsockopt", joined))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Close ends the news. The last follower of a subscription ends and awaits it.
func (f *Follower[A]) Close() {
	close(f.left)
	for _, s := range f.subscriptions {
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
}

// drop makes the next follower of the family open another subscription.
func (m *Monitor[A]) drop(s *subscription[A]) {
	if m.subscriptions[s.Family] == s {
		delete(m.subscriptions, s.Family)
	}
}

// run reads announcements until the last follower leaves, or until a failure.
func (s *subscription[A]) run() {
	defer close(s.ended)
	if s.before != nil { // Begin and Decode belong to one reader at a time
		<-s.before
	}
	err := s.read()
	s.monitor.mu.Lock()
	s.monitor.drop(s)
	s.monitor.mu.Unlock()
	s.tell(News[A]{Err: err})
}

func (s *subscription[A]) read() (err error) {
	defer func() {
		if v := recover(); v != nil { // a mistake of Begin or Decode ends the news, not the process
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	packet := make([]byte, replySize)
	for err = s.begin(); err == nil; {
		n, failed := s.file.Read(packet)
		if failed == nil {
			failed = Messages(packet[:n], s.pass)
		} else if !errors.Is(failed, unix.ENOBUFS) {
			return failed
		}
		if failed != nil { // also a packet that is larger than the buffer
			s.drain(packet)
			err = s.begin()
			s.tell(News[A]{Err: ErrOverrun})
		}
	}
	return err
}

func (s *subscription[A]) begin() error {
	if s.Begin == nil {
		return nil
	}
	return s.Begin()
}

// drain empties the queue. After an overrun the kernel drops all announcements until then, and
// does not tell of them.
func (s *subscription[A]) drain(packet []byte) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return // the file is closed
	}
	_ = raw.Read(func(fd uintptr) bool { // an error comes again with the next packet
		for {
			_, err := unix.Read(int(fd), packet)
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
}

// pass decodes an announcement and passes it on.
func (s *subscription[A]) pass(kind, _ uint16, _ uint32, body []byte) (more bool, err error) {
	if a, ok := s.Decode(kind, body); ok {
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
		case f.News <- news:
		case <-f.left:
		}
	}
}
