// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

const (
	// restPatience bounds the wait for an agent to come to rest: a value that was repaired
	// often waits, and a slow machine takes its time.
	restPatience = 2 * time.Minute
	// restPause is the time in which a repair would follow a resync: several times the delay
	// in which the agent gathers announcements.
	restPause = 500 * time.Millisecond
	// repairMessage begins the agent's log of a repair.
	repairMessage = "made values again that another program had changed"
)

// errRestless ends the wait for rest: the condition cannot come true any more.
var errRestless = errors.New("the agent's wanted state is not that of a resync")

// AwaitRest waits until the agent, whose process is p, is at rest. At rest, no value waits
// for a repair. A resync changes nothing in the agent's network namespace, and no repair
// follows it. within calls its argument in that namespace. The error says what changed
// last. A test calls it after its last disturbance, while its pods still run.
//
// If the agent's configuration has controller.enableVerification, the error also tells of
// events that came to another state than a resync.
func (a Agent) AwaitRest(ctx context.Context, p *Process, within func(func() error) error) error {
	ctx, cancel := context.WithTimeout(ctx, restPatience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	var last error // before the time was over
	for {
		err := a.rests(ctx, within)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errRestless):
			return err
		case ctx.Err() == nil || last == nil:
			last = err
		}
		select {
		case <-p.Done():
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("agent %s does not come to rest: %w", a.Node, last)
		case <-again.C:
		}
	}
}

// rests looks once whether the agent is at rest.
func (a Agent) rests(ctx context.Context, within func(func() error) error) error {
	if err := a.waits(ctx); err != nil {
		return err
	}
	before, _, err := a.repairs()
	if err != nil {
		return err
	}
	kernel, err := openAnnouncements(within)
	if err != nil {
		return err
	}
	defer kernel.close()
	if _, err := ask(ctx, a.client(), http.MethodPost, localapi.PathResync); err != nil {
		return fmt.Errorf("resync: %w", err)
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(restPause):
	}
	changes, err := kernel.changes()
	if err != nil {
		return err
	}
	after, last, err := a.repairs()
	switch {
	case err != nil:
		return err
	case after > before:
		return fmt.Errorf("a repair followed a resync: %s", last)
	case len(changes) > 0:
		return fmt.Errorf("a resync changed objects of the kernel: %s", strings.Join(changes, ", "))
	}
	return a.waits(ctx)
}

// waits returns what the agent is still about to do.
func (a Agent) waits(ctx context.Context) error {
	text, err := a.Get(ctx, localapi.PathStatus)
	if err != nil {
		return err
	}
	var s localapi.Status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	loop := s.Loop
	switch {
	case loop.VerificationFailures > 0:
		return fmt.Errorf("%w: %d verifications failed: see the agent's log", errRestless, loop.VerificationFailures)
	case !loop.Resynced || !loop.Healthy || loop.Queued+loop.FollowUps > 0:
		return fmt.Errorf("the event loop is at work: %+v", loop)
	case s.Southbound == nil:
		return nil
	}
	for _, v := range s.Southbound.Values {
		if v.Retry != nil {
			return fmt.Errorf("%s waits for its next attempt: %s", v.Key, v.Error)
		}
	}
	return nil
}

// repairs counts the repairs in the agent's log, and returns the last one.
func (a Agent) repairs() (count int, last string, err error) {
	log, err := os.ReadFile(a.Log())
	if err != nil {
		return 0, "", fmt.Errorf("read the agent's log: %w", err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, repairMessage) {
			count, last = count+1, strings.TrimSpace(line)
		}
	}
	return count, last, nil
}

// announcements is a socket to which the kernel announces changes of a network namespace.
type announcements int

// openAnnouncements subscribes to changes of links, addresses, routes and rules.
func openAnnouncements(within func(func() error) error) (socket announcements, err error) {
	err = within(func() error {
		const flags = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
		fd, err := unix.Socket(unix.AF_NETLINK, flags, unix.NETLINK_ROUTE)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		socket = announcements(fd)
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		for _, group := range []int{
			unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
			unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		} {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
		}
		if err != nil {
			socket.close()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("watch the kernel: %w", err)
	}
	return socket, nil
}

func (s announcements) close() { _ = unix.Close(int(s)) }

// changes returns the kinds of what was announced so far.
func (s announcements) changes() (kinds []string, err error) {
	names := map[uint16]string{
		unix.RTM_NEWLINK: "a link was made or changed", unix.RTM_DELLINK: "a link was removed",
		unix.RTM_NEWADDR: "an address was made", unix.RTM_DELADDR: "an address was removed",
		unix.RTM_NEWROUTE: "a route was made", unix.RTM_DELROUTE: "a route was removed",
		unix.RTM_NEWRULE: "a rule was made", unix.RTM_DELRULE: "a rule was removed",
	}
	packet := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(int(s), packet, 0)
		if errors.Is(err, unix.EAGAIN) {
			return kinds, nil
		}
		if err != nil {
			return nil, fmt.Errorf("watch the kernel: %w", err)
		}
		if n < unix.SizeofNlMsghdr { // the kernel announces each object in a packet of its own
			continue
		}
		kind := names[binary.NativeEndian.Uint16(packet[4:])]
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
}
