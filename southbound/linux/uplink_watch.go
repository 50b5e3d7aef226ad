// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
)

// uplinkAnnouncements are those of the links, routes and rules of uplinks.
func uplinkAnnouncements(groups []uint, changed func(string), each func(syscall.NetlinkMessage)) announcements {
	return announcements{
		protocol: unix.NETLINK_ROUTE,
		groups:   groups,
		lost:     func() { changed("") },
		each:     each,
	}
}

// Watch calls changed if the link of an uplink appears, goes away, is renamed or is set down.
// It also calls changed if a route or a rule of the uplinks is removed, and if a network on
// the node comes or goes. Settings are not announced: after each slowComparison, it calls
// changed for all.
func (u *uplinks) Watch(ctx context.Context, changed func(key string)) error {
	groups := []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	}
	return u.opt.compareSlowly(ctx, changed, uplinkAnnouncements(groups, changed, func(m syscall.NetlinkMessage) {
		if u.concerns(m) {
			changed("")
		}
	}), u.ns.Do)
}

// concerns reports whether an announcement is about an uplink that may not be complete.
func (u *uplinks) concerns(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, ok := parseLink(m.Data)
		return ok && u.known.changed(l, m.Header.Type == unix.RTM_DELLINK)
	case unix.RTM_DELROUTE:
		p, ok := parseRoute(m.Data)
		if ok && p.connected() {
			return true
		}
		return ok && p.ours && kv.IsUplinkTable(p.table) && !u.known.failed(p.table)
	case unix.RTM_NEWROUTE:
		p, ok := parseRoute(m.Data)
		return ok && p.connected()
	case unix.RTM_DELRULE:
		p, ok := parseRule(m.Data)
		return ok && p.shared()
	}
	return false
}

// Watch calls changed for each address whose rule is removed. The kernel does not announce
// the removal of a proxy neighbour: after each slowComparison, it calls changed for all.
func (u *uplinkAddresses) Watch(ctx context.Context, changed func(key string)) error {
	groups := []uint{unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE}
	return u.opt.compareSlowly(ctx, changed, uplinkAnnouncements(groups, changed, func(m syscall.NetlinkMessage) {
		if m.Header.Type != unix.RTM_DELRULE {
			return
		}
		if p, ok := parseRule(m.Data); ok && p.kind == sourceObject {
			changed(kv.SinkSourcePrefix + p.prefix.Addr().String())
		}
	}), u.ns.Do)
}

// compareSlowly follows announcements, and calls changed for all values after each
// slowComparison, until ctx ends.
func (opt Options) compareSlowly(
	ctx context.Context,
	changed func(key string),
	news announcements,
	within func(func() error) error,
) error {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-opt.After(slowComparison):
				changed("")
			}
		}
	}()
	err := news.follow(ctx, within)
	stop()
	<-ended
	return err
}
