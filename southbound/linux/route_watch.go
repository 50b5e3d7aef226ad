// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
)

// follow calls changed for each value whose destination loses a route, or gets another one.
// If a link of the node goes down or up, or gets or loses an address, it calls changed for
// all. The kernel may have removed the IPv4 routes through the link without an announcement,
// and gateways may be on-link again. Links of pods do not count.
func (d *routes) follow(ctx context.Context, changed func(key string)) error {
	return d.monitor.follow(ctx, changed, watch{damaged: d.damaged})
}

func (d *routes) damaged(a announcement) (key string, is bool) {
	pods := strings.HasPrefix(a.link.name, wirePrefix)
	switch a.kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return d.moved(a)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK: // one that goes away goes down before
		return "", !pods && a.link.turned
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return "", !pods
	}
	return "", false
}

// moved returns the key of an announced route, if it is that of a value that may not be
// complete any more. Then its route is gone, or another one is there.
func (d *routes) moved(a announcement) (key string, is bool) {
	r := a.object
	p := routePlace{r.table, r.prefix}
	if p.table == unix.RT_TABLE_MAIN {
		p.table = 0
	}
	d.mu.Lock()
	way, watched := d.watched[p]
	d.mu.Unlock()
	if !watched {
		return "", false
	}
	if a.kind == unix.RTM_NEWROUTE && r.ours {
		same := !r.odd
		if way.transport == kv.Transport_DIRECT && !way.gateway.IsValid() {
			same = r.form == unix.RTN_UNREACHABLE
		}
		return p.key(), !same || r.gateway != way.gateway
	}
	return p.key(), true
}

// watch adds the place of a route to those of which Watch tells.
func (d *routes) watch(w routeWant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watched[w.place] = w.way
}

// unwatch removes a place from those of which Watch tells, and returns its way.
func (d *routes) unwatch(p routePlace) (way routeWay, watched bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	way, watched = d.watched[p]
	delete(d.watched, p)
	return way, watched
}

// places returns the places of which Watch tells.
func (d *routes) places() map[routePlace]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[routePlace]bool, len(d.watched))
	for p := range d.watched {
		all[p] = true
	}
	return all
}

// throughLinks returns the links that routes may lead through: the node's own ones, and those of
// networks.
func (d *routes) throughLinks() map[routeLink]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	links := map[routeLink]bool{{transport: kv.Transport_VXLAN}: true, {transport: kv.Transport_WIREGUARD}: true}
	for _, w := range d.watched {
		if w.vni != 0 {
			links[w.routeLink] = true
		}
	}
	return links
}
