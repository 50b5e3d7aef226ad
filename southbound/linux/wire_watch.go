// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"

	"golang.org/x/sys/unix"
)

// watch calls changed for each wire whose host end loses an object, and for all wires after
// each slowComparison. It finds changes inside of the pods' namespaces.
func (w *wires) watch(ctx context.Context, changed func(key string)) error {
	return w.opt.monitor.follow(ctx, changed, watch{damaged: w.damaged, slowly: true, late: true})
}

// damaged returns the key of the wire that an announcement is about. The removal of an object
// counts, not the making of one: this process makes them. A link counts if it is down.
func (w *wires) damaged(a announcement) (key string, is bool) {
	switch {
	case a.kind == unix.RTM_DELLINK, a.kind == unix.RTM_NEWLINK && a.link.wentDown:
		key = w.keyOf(a.link.index)
	case a.kind == unix.RTM_DELADDR && a.usual, a.kind == unix.RTM_DELROUTE,
		a.kind == unix.RTM_DELNEIGH && a.object.ours: // such a neighbour is not permanent any more
		key = w.keyOf(a.object.index)
	case a.kind == unix.RTM_DELRULE && a.object.ours:
		key = w.keyOfRule(a.object.name)
	}
	return key, key != ""
}

// keyOf returns the key of the wire whose host end has an index, "" if there is none.
func (w *wires) keyOf(index uint32) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys[index]
}

// keyOfRule returns the key of the wire with rules for a link, "" if there is none.
func (w *wires) keyOfRule(link string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.named[link]
}
