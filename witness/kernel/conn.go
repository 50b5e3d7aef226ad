// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// bufferSize is the size of the largest reply: the kernel builds dumps in parts of at
// most 32 KiB.
const bufferSize = 64 << 10

// replyTimeout ends a request that the kernel does not answer.
const replyTimeout = 10 // seconds

// dumpAttempts limits the repetitions of a dump that a change has interrupted.
const dumpAttempts = 20

// errInterrupted means that the objects of a dump changed while the kernel listed them.
var errInterrupted = errors.New("the kernel's tables changed during each attempt to read them")

// conn is a netlink socket of the routing family. It belongs to the network namespace
// in which it was opened, and to one goroutine.
type conn struct {
	fd  int
	seq uint32
	*buffers
}

// buffers holds the memory of one request and its answer, for sockets of one goroutine.
type buffers struct{ request, reply []byte }

func newBuffers() *buffers { return &buffers{reply: make([]byte, bufferSize)} }

// dial opens a socket in the network namespace of the calling thread. Kernels before
// 4.20 do not know strict checks: they would ignore the namespace that a dump names
// and return another one's addresses.
func dial(b *buffers) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", os.NewSyscallError("socket", err))
	}
	c := &conn{fd: fd, buffers: b}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		err = fmt.Errorf("ask for strict checks (Linux 4.20 or newer): %w", os.NewSyscallError("setsockopt", err))
		return nil, errors.Join(err, c.close())
	}
	timeout := unix.Timeval{Sec: replyTimeout}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), c.close())
	}
	return c, nil
}

func (c *conn) close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// dump lists all objects of a kind. each may not keep the message: the next one
// overwrites it. A dump that a change has interrupted starts again, after a call of
// reset.
func (c *conn) dump(kind uint16, body []byte, reset func(), each func(body []byte) error) error {
	for range dumpAttempts {
		reset()
		err := c.send(kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, body, each)
		if !errors.Is(err, errInterrupted) {
			return err
		}
	}
	return errInterrupted
}

// call sends a request that has one answer, or none.
func (c *conn) call(kind uint16, body []byte, each func(body []byte) error) error {
	return c.send(kind, unix.NLM_F_REQUEST|unix.NLM_F_ACK, body, each)
}

func (c *conn) send(kind, flags uint16, body []byte, each func(body []byte) error) error {
	c.seq++
	c.request = c.request[:0]
	c.request = binary.NativeEndian.AppendUint32(c.request, uint32(unix.SizeofNlMsghdr+len(body)))
	c.request = binary.NativeEndian.AppendUint16(c.request, kind)
	c.request = binary.NativeEndian.AppendUint16(c.request, flags)
	c.request = binary.NativeEndian.AppendUint32(c.request, c.seq)
	c.request = binary.NativeEndian.AppendUint32(c.request, 0)
	c.request = append(c.request, body...)
	if err := unix.Sendto(c.fd, c.request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	interrupted := false
	for {
		n, err := c.receive()
		if err != nil {
			return err
		}
		done, err := c.messages(c.reply[:n], &interrupted, each)
		switch {
		case err != nil:
			return err
		case done && interrupted:
			return errInterrupted
		case done:
			return nil
		}
	}
}

// receive reads one packet into the buffer. Only the kernel may answer.
func (c *conn) receive() (int, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.reply, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("recvfrom", err)
		case n > len(c.reply):
			return 0, fmt.Errorf("a netlink packet has %d bytes, more than the %d of the buffer", n, len(c.reply))
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid == 0 {
			return n, nil
		}
	}
}

// messages passes the messages of a packet on. done means that the answer is complete.
func (c *conn) messages(packet []byte, interrupted *bool, each func([]byte) error) (done bool, err error) {
	for len(packet) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(packet))
		kind := binary.NativeEndian.Uint16(packet[4:])
		flags := binary.NativeEndian.Uint16(packet[6:])
		seq := binary.NativeEndian.Uint32(packet[8:])
		if size < unix.SizeofNlMsghdr || size > len(packet) {
			return false, fmt.Errorf("a netlink message of %d bytes is in a packet of %d", size, len(packet))
		}
		body := packet[unix.SizeofNlMsghdr:size]
		packet = packet[min(aligned(size), len(packet)):]
		if seq != c.seq {
			continue // the rest of a dump that failed
		}
		if flags&unix.NLM_F_DUMP_INTR != 0 {
			*interrupted = true
		}
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
					return false, unix.Errno(-code)
				}
			}
			return true, nil
		case unix.NLMSG_NOOP:
		default:
			if err := each(body); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// aligned returns the next multiple of 4.
func aligned(n int) int { return (n + 3) &^ 3 }

// appendAttr appends a netlink attribute with a number to a request.
func appendAttr(b []byte, kind uint16, value uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofNlAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, value)
}

// attributes calls each for all attributes of a message.
func attributes(b []byte, each func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return
		}
		const mask = 0x3fff // without the flags "nested" and "network byte order"
		each(binary.NativeEndian.Uint16(b[2:])&mask, b[unix.SizeofNlAttr:size])
		b = b[min(aligned(size), len(b)):]
	}
}

// number returns the value of an attribute of 32 bits, 0 if it is shorter.
func number(value []byte) int32 {
	if len(value) < 4 {
		return 0
	}
	return int32(binary.NativeEndian.Uint32(value))
}
