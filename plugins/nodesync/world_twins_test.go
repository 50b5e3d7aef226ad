// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// noticed limits the time until one of two processes with one identity
// has noticed the other, if nothing disturbs them.
const noticed = 2*refresh + time.Minute

// spoil changes the link of an agent.
func (w *world) spoil(a *agent, how weather) {
	a.link.set(how)
	w.disturb(a)
}

// disturb notes that something has happened to an agent.
func (w *world) disturb(a *agent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.calm = time.Now()
}

// resume has a second process with the memory of a, on a copy of its machine.
func (w *world) resume(a *agent) {
	from := a.of
	m := w.add(from.name, from.instance, nil)
	m.runs, m.boots, m.offset, m.pin, m.mirror = from.runs, from.boots, from.offset, from.pin, from.mirror
	m.busy = from.busy || a.used.Load() != 0
	if w.rnd.IntN(2) == 0 {
		m.host = from.host
	}
	b := &agent{of: m, link: newLink(w.store, w.rnd.Uint64(), &w.late), calm: time.Now(), resumed: true}
	b.store = w.through(b.link)
	seed := rand.New(rand.NewPCG(w.rnd.Uint64(), 9))
	b.node = a.resume(w.t, b.store, func(d *nodesync.IDClaimerDeps) {
		m.disk = b.nodeDisk(d)
		inWorld(d, b, seed)
	})
	b.jump(-b.offset) // it is in that of the machine
	b.used.Store(a.used.Load())
	b.released, b.lost = a.released, a.lost
	w.launch(b)
}

// nodeDisk is the disk that a resumed node was given.
func (a *agent) nodeDisk(d *nodesync.IDClaimerDeps) *disk {
	copied, _ := d.Disk.(*disk)
	return copied
}

// twice finds a twin of a that may allocate under the same ID where one of both has had
// to notice the other. It has had to because nothing disturbs them, or because one has
// started on another machine while the other was confirmed.
func (w *world) twice(a *agent) {
	now := time.Now()
	calm := func(a *agent) bool {
		return a.link.weather() == fine && now.Sub(a.calm) > noticed && now.Sub(w.reborn) > noticed
	}
	confirmed := func(a *agent) bool {
		at := a.Confirmed().Add(-a.of.offset)
		return now.Sub(at) < fresh-refresh && at.Sub(w.reborn) > fresh
	}
	for _, m := range w.machines {
		b := m.agent
		if b == nil || b == a || m.instance != a.of.instance || !b.allocates() || a.ID() != b.ID() {
			continue
		}
		switch {
		case calm(a) && calm(b):
			w.fault("%s (%s) on %s and on %s have both allocated for %s", a.of.name, m.instance, a.of.host, m.host, noticed)
		case !w.jumps && a.of.host != m.host && !a.resumed && !b.resumed && confirmed(a) && confirmed(b):
			w.fault(
				"%s (%s) on %s and on %s are both confirmed, at %s and %s",
				a.of.name,
				m.instance,
				a.of.host,
				m.host,
				a.Confirmed(),
				b.Confirmed(),
			)
		}
	}
}

// suspects finds an agent that takes an earlier run of its own for a twin.
func (w *world) suspects(a *agent) {
	if !w.jumps || w.twins { // the store may have lost its past, or there is a twin
		return
	}
	if why := a.Problem(); strings.Contains(why, "this node's identity") {
		w.fault("%s (%s) suspects a twin: %s", a.of.name, a.of.instance, why)
	}
}
