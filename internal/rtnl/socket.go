// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// replySize is the size of the largest answer: the kernel builds dumps in parts of at
	// most 32 KiB.
	replySize = 64 << 10
	// replyTimeout limits the wait for an answer, in seconds.
	replyTimeout = 10
	// dumpAttempts limits the repetitions of a dump that a change has interrupted.
	dumpAttempts = 20
	// sendSize and sendCount limit the requests of one system call. A socket sends at most
	// as many bytes as its buffer has, 208 KiB by default. The answers, of up to 1 KiB
	// with what the kernel adds, have to fit its other buffer of that size.
	sendSize  = 64 << 10
	sendCount = 128
)

// errInterrupted means that the objects of a dump changed during each attempt to read it.
var errInterrupted = errors.New("the kernel's tables changed during each attempt to read them")

// Socket is a netlink socket. It belongs to the network namespace in which it was opened. Any
// goroutine may use it; a batch or a dump excludes the others.
type Socket struct {
	mu    sync.Mutex
	fd    int
	seq   uint32
	reply []byte
}

// Dial opens a socket of a netlink family in the network namespace of the calling thread.
func Dial(family int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", os.NewSyscallError("socket", err))
	}
	s := &Socket{fd: fd}
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			err = os.NewSyscallError("setsockopt", err)
			err = fmt.Errorf("prepare a netlink socket (Linux 4.20 or newer): %w", err)
			return nil, errors.Join(err, s.Close())
		}
	}
	timeout := unix.Timeval{Sec: replyTimeout}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), s.Close())
	}
	return s, nil
}

// Share makes the socket read answers into the memory of another one. Only one goroutine may
// use the two.
func (s *Socket) Share(of *Socket) {
	if of.reply == nil {
		of.reply = make([]byte, replySize)
	}
	s.reply = of.reply
}

// Close closes the socket.
func (s *Socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// Cookie returns a number of the socket's network namespace that the kernel gives to no
// other one until the next boot, 0 before Linux 5.14.
func (s *Socket) Cookie() uint64 {
	cookie, err := unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// Request is one request of a batch.
type Request struct {
	What  string // for errors, such as "add route 10.1.5.7/32"
	Kind  uint16
	Flags uint16 // beside NLM_F_REQUEST and NLM_F_ACK
	Body  []byte
	// Allow has the errors that mean success, such as EEXIST if the object may be there.
	Allow []unix.Errno
	// Each receives the answers of the request, whose bytes it may not keep; may be nil.
	Each func(kind uint16, body []byte)
	Err  error // set by Run
}

// Run sends requests in one system call, or in several if they are too many for one. The
// kernel executes them one after another, also behind one that fails, before Run returns.
// Run returns the first error; each request has its own.
func (s *Socket) Run(requests []*Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := requests; len(rest) > 0; {
		n := fitting(rest)
		if err := s.exchange(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return outcome(requests)
}

// fitting returns the number of requests for the next system call, at least 1.
func fitting(requests []*Request) int {
	size := 0
	for i, r := range requests {
		size += unix.SizeofNlMsghdr + aligned(len(r.Body))
		if i > 0 && (i == sendCount || size > sendSize) {
			return i
		}
	}
	return len(requests)
}

// exchange sends requests in one system call and waits for their acknowledgements.
func (s *Socket) exchange(requests []*Request) error {
	first := s.seq + 1
	var packet []byte
	for _, r := range requests {
		packet = s.append(packet, r.Kind, unix.NLM_F_REQUEST|unix.NLM_F_ACK|r.Flags, r.Body)
	}
	if err := s.send(packet); err != nil {
		return err
	}
	for open := len(requests); open > 0; {
		packet, err := s.receive()
		if err != nil {
			return err
		}
		err = Messages(packet, func(kind uint16, _ uint16, seq uint32, body []byte) (bool, error) {
			i := int(seq - first)
			if i < 0 || i >= len(requests) {
				return true, nil // of an earlier call that gave up
			}
			if kind == unix.NLMSG_ERROR {
				requests[i].Err = acknowledgement(body)
				open--
			} else if each := requests[i].Each; each != nil {
				each(kind, body)
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// outcome explains the errors of requests, and returns the first one.
func outcome(requests []*Request) (failed error) {
	for _, r := range requests {
		for _, allowed := range r.Allow {
			if errors.Is(r.Err, allowed) {
				r.Err = nil
			}
		}
		if r.Err != nil {
			r.Err = fmt.Errorf("%s: %w", r.What, explain(r.Err))
			if failed == nil {
				failed = r.Err
			}
		}
	}
	return failed
}

// Dump lists all objects of a kind. reset is called before each attempt; each may not keep
// the message. A family of addresses that the kernel does not have, such as IPv6 after a start
// with ipv6.disable=1, has no objects.
func (s *Socket) Dump(what string, kind uint16, body []byte, reset func(), each func(body []byte)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range dumpAttempts {
		reset()
		complete, err := s.dumpOnce(kind, body, each)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", what, explain(err))
		}
		if complete {
			return nil
		}
	}
	return fmt.Errorf("list %s: %w", what, errInterrupted)
}

func (s *Socket) dumpOnce(kind uint16, body []byte, each func(body []byte)) (complete bool, err error) {
	if err := s.send(s.append(nil, kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, body)); err != nil {
		return false, err
	}
	complete = true
	family := byte(unix.AF_UNSPEC)
	if len(body) > 0 {
		family = body[0]
	}
	for done := false; !done; {
		packet, err := s.receive()
		if err != nil {
			return false, err
		}
		err = Messages(packet, func(kind, flags uint16, seq uint32, body []byte) (bool, error) {
			if seq != s.seq {
				return true, nil
			}
			if flags&unix.NLM_F_DUMP_INTR != 0 {
				complete = false
			}
			if kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR {
				done = true
				return false, acknowledgement(body)
			}
			if len(body) > 0 && (body[0] == family || family == unix.AF_UNSPEC || body[0] == unix.AF_UNSPEC) {
				each(body) // the kernel answers with all families if it lacks the requested one
			}
			return true, nil
		})
		if err != nil {
			return false, err
		}
	}
	return complete, nil
}

// append appends a message and gives it the next sequence number.
func (s *Socket) append(packet []byte, kind, flags uint16, body []byte) []byte {
	s.seq++
	packet = binary.NativeEndian.AppendUint32(packet, uint32(unix.SizeofNlMsghdr+len(body)))
	packet = binary.NativeEndian.AppendUint16(packet, kind)
	packet = binary.NativeEndian.AppendUint16(packet, flags)
	packet = binary.NativeEndian.AppendUint32(packet, s.seq)
	packet = binary.NativeEndian.AppendUint32(packet, 0)
	packet = append(packet, body...)
	return append(packet, make([]byte, aligned(len(body))-len(body))...)
}

func (s *Socket) send(packet []byte) error {
	err := unix.Sendto(s.fd, packet, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	return os.NewSyscallError("sendto", err)
}

// receive reads one packet of the kernel, which the next call overwrites.
func (s *Socket) receive() ([]byte, error) {
	if s.reply == nil {
		s.reply = make([]byte, replySize)
	}
	for {
		n, from, err := unix.Recvfrom(s.fd, s.reply, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, os.NewSyscallError("recvfrom", err)
		case n > len(s.reply):
			return nil, fmt.Errorf("a netlink packet has %d bytes, more than the %d of the buffer", n, len(s.reply))
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid == 0 {
			return s.reply[:n], nil
		}
	}
}

// Messages calls each for the messages of a packet until it returns false.
func Messages(packet []byte, each func(kind, flags uint16, seq uint32, body []byte) (bool, error)) error {
	for len(packet) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(packet))
		if size < unix.SizeofNlMsghdr || size > len(packet) {
			return fmt.Errorf("a netlink message of %d bytes is in a packet of %d", size, len(packet))
		}
		kind, flags := binary.NativeEndian.Uint16(packet[4:]), binary.NativeEndian.Uint16(packet[6:])
		seq := binary.NativeEndian.Uint32(packet[8:])
		more, err := each(kind, flags, seq, packet[unix.SizeofNlMsghdr:size])
		if !more || err != nil {
			return err
		}
		packet = packet[min(aligned(size), len(packet)):]
	}
	return nil
}

// refusal is an error of the kernel with its explanation.
type refusal struct {
	unix.Errno
	text string
}

func (r refusal) Error() string { return r.Errno.Error() + " (" + r.text + ")" }
func (r refusal) Unwrap() error { return r.Errno }

// acknowledgement returns the error of an NLMSG_ERROR or NLMSG_DONE.
func acknowledgement(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	code := int32(binary.NativeEndian.Uint32(body))
	if code == 0 {
		return nil
	}
	text := ""
	if len(body) > 4+unix.SizeofNlMsghdr {
		Attributes(body[4+unix.SizeofNlMsghdr:], func(kind uint16, v []byte) {
			if kind == unix.NLMSGERR_ATTR_MSG {
				text = Text(v)
			}
		})
	}
	if text == "" {
		return unix.Errno(-code)
	}
	return refusal{unix.Errno(-code), text}
}

// explain adds the right that a request lacks.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: it needs CAP_NET_ADMIN in the network namespace", err)
	}
	return err
}
