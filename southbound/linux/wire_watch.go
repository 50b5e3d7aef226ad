// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// watchBuffer is the size of the queue of announcements, large enough for those of a burst.
const watchBuffer = 4 << 20

// Watch calls changed for each wire whose host end loses an object, and for all wires after
// each slowComparison.
func (w *Wires) Watch(ctx context.Context, changed func(key string)) error {
	var fd int
	err := w.ns.Do(func() (err error) {
		fd, err = subscribe()
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the kernel's links: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		_ = file.Close()
	}()
	packet, due := make([]byte, 64<<10), w.opt.Now().Add(slowComparison)
	for ctx.Err() == nil {
		if err := file.SetReadDeadline(due); err != nil {
			return fmt.Errorf("watch the kernel's links: %w", err)
		}
		if ctx.Err() != nil {
			break
		}
		n, err := file.Read(packet)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			due = w.opt.Now().Add(slowComparison)
			changed("")
		case errors.Is(err, unix.ENOBUFS): // some announcements are lost
			changed("")
		case err != nil:
			return fmt.Errorf("watch the kernel's links: %w", err)
		default:
			w.announce(packet[:n], changed)
		}
	}
	return nil
}

// subscribe opens a socket that receives the announcements of changes.
func subscribe() (fd int, err error) {
	const flags = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if fd, err = unix.Socket(unix.AF_NETLINK, flags, unix.NETLINK_ROUTE); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range []int{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err == nil && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer) != nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, watchBuffer)
	}
	if err != nil {
		return -1, errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
	}
	return fd, nil
}

// announce calls changed for the wires that a packet of announcements is about. The removal
// of an object counts, not the making of one: this process makes them. A link counts if it
// is down.
func (w *Wires) announce(packet []byte, changed func(key string)) {
	told := map[string]bool{}
	tell := func(key string) {
		if key != "" && !told[key] {
			told[key] = true
			changed(key)
		}
	}
	// a packet that cannot be read is not from the kernel
	_ = rtnl.Messages(packet, func(kind, _ uint16, _ uint32, body []byte) (bool, error) {
		switch kind {
		case unix.RTM_DELLINK, unix.RTM_NEWLINK:
			if l, ok := parseLink(body); ok && (kind == unix.RTM_DELLINK || l.wentDown) {
				tell(w.keyOf(l.index))
			}
		case unix.RTM_DELADDR:
			tell(w.keyOfObject(parseAddress(body)))
		case unix.RTM_DELNEIGH:
			if p, _ := parseNeighbour(body); p.ours { // it is not permanent any more
				tell(w.keyOf(p.index))
			}
		case unix.RTM_DELROUTE:
			tell(w.keyOfObject(parseRoute(body)))
		case unix.RTM_DELRULE:
			if p, ok := parseRule(body); ok {
				tell(w.keyOfRule(p.name))
			}
		}
		return true, nil
	})
}

// keyOf returns the key of the wire whose host end has an index, "" if there is none.
func (w *Wires) keyOf(index uint32) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys[index]
}

// keyOfRule returns the key of the wire with rules for a link, "" if there is none.
func (w *Wires) keyOfRule(link string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.named[link]
}

func (w *Wires) keyOfObject(p parsed, ok bool) string {
	if !ok {
		return ""
	}
	return w.keyOf(p.index)
}
