// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
)

var _ southbound.Watcher = (*routes)(nil)

// Watch calls changed for each value whose destination loses a route, or gets another one.
// If a link of the node goes down or up, or gets or loses an address, it calls changed for
// all. The kernel may have removed the IPv4 routes through the link without an announcement,
// and gateways may be on-link again. Links of pods do not count.
func (d *routes) Watch(ctx context.Context, changed func(key string)) error {
	pods := map[int]bool{} // indexes of our links
	var links []netlink.Link
	err := d.within(func() (err error) {
		links, err = listAll(netlink.LinkList)
		return err
	})
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		pods[l.Attrs().Index] = strings.HasPrefix(l.Attrs().Name, wirePrefix)
	}
	return announcements{
		protocol: unix.NETLINK_ROUTE,
		groups: []uint{
			unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		},
		lost: func() { changed("") },
		each: func(m syscall.NetlinkMessage) {
			switch m.Header.Type {
			case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
				if place, ok := d.moved(m); ok {
					changed(place.key())
				}
			case unix.RTM_NEWLINK, unix.RTM_DELLINK:
				index, name := linkOf(m.Data)
				if pods[index] = strings.HasPrefix(name, wirePrefix); !pods[index] && turned(m) {
					changed("")
				}
				if m.Header.Type == unix.RTM_DELLINK {
					delete(pods, index)
				}
			case unix.RTM_NEWADDR, unix.RTM_DELADDR:
				if len(m.Data) >= unix.SizeofIfAddrmsg && !pods[int(nl.DeserializeIfAddrmsg(m.Data).Index)] {
					changed("")
				}
			}
		},
	}.follow(ctx, d.within)
}

// turned reports whether an announcement is about a link that went down or up. One that
// goes away goes down before.
func turned(m syscall.NetlinkMessage) bool {
	return len(m.Data) >= unix.SizeofIfInfomsg && nl.DeserializeIfInfomsg(m.Data).Change&unix.IFF_UP != 0
}

// moved returns the place of an announced route, if it is that of a value that may not be
// complete any more. Then its route is gone, or another one is there.
func (d *routes) moved(m syscall.NetlinkMessage) (p routePlace, ok bool) {
	r, ok := parseRoute(m.Data)
	if !ok {
		return p, false
	}
	p = routePlace{r.table, r.prefix}
	if p.table == unix.RT_TABLE_MAIN {
		p.table = 0
	}
	d.mu.Lock()
	way, watched := d.watched[p]
	d.mu.Unlock()
	if m.Header.Type == unix.RTM_NEWROUTE && int(r.protocol) == ownProtocol {
		same := !r.odd
		if way.transport == kv.Transport_DIRECT && !way.gateway.IsValid() {
			same = r.form == unix.RTN_UNREACHABLE
		}
		return p, watched && (!same || r.gateway != way.gateway)
	}
	return p, watched
}

// watch adds the place of a route to those of which Watch tells.
func (d *routes) watch(w routeWant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watched[w.place] = w.way
}

// unwatch removes a place from those of which Watch tells.
func (d *routes) unwatch(p routePlace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.watched, p)
}
