// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
)

// Watch calls changed if the link of an uplink appears, goes away, is renamed or is set down.
// It also calls changed if a route or a rule of the uplinks is removed, and if a network on
// the node comes or goes. Settings are not announced: after each slowComparison, it calls
// changed for all.
func (u *uplinks) watch(ctx context.Context, changed func(key string)) error {
	return u.opt.monitor.follow(ctx, changed, watch{damaged: u.damaged, slowly: true})
}

func (u *uplinks) damaged(a announcement) (key string, is bool) {
	p := a.object
	switch a.kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		is = u.known.changed(a.link, a.kind == unix.RTM_DELLINK)
	case unix.RTM_NEWROUTE:
		is = p.connected()
	case unix.RTM_DELROUTE:
		is = p.connected() || p.ours && kv.IsUplinkTable(p.table) && !u.known.failed(p.table)
	case unix.RTM_DELRULE:
		is = p.ours && p.shared()
	}
	return "", is
}

// watch calls changed for each address whose rule is removed. The kernel does not announce
// the removal of a proxy neighbour: after each slowComparison, it calls changed for all.
func (u *uplinkAddresses) watch(ctx context.Context, changed func(key string)) error {
	return u.opt.monitor.follow(ctx, changed, watch{damaged: u.damaged, slowly: true})
}

func (u *uplinkAddresses) damaged(a announcement) (key string, is bool) {
	p := a.object
	is = a.kind == unix.RTM_DELRULE && p.ours && p.kind == sourceObject
	return kv.SinkSourcePrefix + p.prefix.Addr().String(), is
}
