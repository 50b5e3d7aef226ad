// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// announcementBuffer is the size of the queue of announcements, large enough for those of
// a resync.
const announcementBuffer = 4 << 20

// announcements holds a subscription to changes of the kernel.
type announcements struct {
	protocol int // of netlink
	groups   []uint
	each     func(m syscall.NetlinkMessage)
	lost     func() // some announcements were lost, or came before the subscription
}

// follow calls lost once it is subscribed, and each for all announcements until ctx ends.
func (a announcements) follow(ctx context.Context, within func(func() error) error) error {
	var socket *nl.NetlinkSocket
	err := within(func() (err error) {
		socket, err = nl.Subscribe(a.protocol, a.groups...)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	if socket.SetReceiveBufferSize(announcementBuffer, true) != nil {
		_ = socket.SetReceiveBufferSize(announcementBuffer, false) // as much as the system allows
	}
	stop := context.AfterFunc(ctx, socket.Close)
	defer func() {
		if stop() {
			socket.Close()
		}
	}()
	a.lost()
	for {
		messages, from, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			a.lost()
		case err != nil:
			return fmt.Errorf("watch the kernel: %w", err)
		case from.Pid != nl.PidKernel:
		default:
			for _, m := range messages {
				a.each(m)
			}
		}
	}
}
