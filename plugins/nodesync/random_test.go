// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// One seed drives the agents of one cluster in simulated time. They start, end, crash,
// lose and copy their disks, and their links are bad. The store is wiped and restored.
// IDs are released, rightly and wrongly, and clocks jump. Package effort chooses the
// seeds.
func TestAtRandom(t *testing.T) {
	from, n := effort.Seeds(t, 24)
	for kind := range stores() {
		t.Run(kind, func(t *testing.T) {
			tried := attack.Begin(t, attack.IDWorld)
			for seed := from; seed < from+n; seed++ {
				tried.Add(1)
				if err := live(t, seed, 120, kind == "without transactions"); err != nil {
					t.Fatalf("seed %d: %v\nreplay it: %s=%d go test ./plugins/nodesync -run TestAtRandom", seed, err, effort.SeedEnv, seed)
				}
			}
		})
	}
}

func live(t *testing.T, seed uint64, steps int, pieces bool) (err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, pieces)
		defer w.close()
		for step := 0; step < steps && err == nil; step++ {
			w.step()
			w.pause()
			err = w.check()
		}
		if err == nil {
			err = w.waitUntilEqual()
		}
		if err == nil {
			err = w.ends()
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s\n%s", err, strings.Join(w.log, "\n"), w.describe())
		}
	})
	return err
}

// pause lets some time pass: often little, at times more than a term.
func (w *world) pause() {
	longest := []time.Duration{time.Second, time.Minute, time.Minute, 10 * time.Minute, time.Hour}[w.rnd.IntN(5)]
	if w.rnd.IntN(20) == 0 {
		longest = 3 * time.Hour
	}
	time.Sleep(time.Duration(w.rnd.Int64N(int64(longest))) + time.Nanosecond)
}

// step does one thing.
func (w *world) step() {
	m := w.machines[w.rnd.IntN(len(w.machines))]
	a := m.agent
	switch x := w.rnd.IntN(100); {
	case a == nil && x < 60:
		m.pin, m.busy = uint32(max(0, w.rnd.IntN(40)-40+worldIDs)), m.busy && w.rnd.IntN(4) != 0
		how := weather(w.rnd.IntN(4))
		if w.rnd.IntN(2) == 0 {
			how = fine
		}
		w.say("start %s (%s), pinned to %d, busy %t, link %d", m.name, m.instance, m.pin, m.busy, how)
		w.start(m, how)
	case a != nil && (x < 8 || a.fatal.Load()):
		w.say("end %s (%s)", m.name, m.instance)
		w.end(a, false)
	case a != nil && x < 16:
		m.boots += w.rnd.IntN(2)
		w.say("crash of %s (%s), boot %d", m.name, m.instance, m.boots)
		w.end(a, true)
	case a != nil && x < 60:
		how := weather(w.rnd.IntN(4))
		w.say("link of %s (%s): %d", m.name, m.instance, how)
		w.mu.Lock()
		if !a.released.IsZero() && how != fine && !a.Confirmed().After(a.released) {
			a.lost = a.released
		}
		w.mu.Unlock()
		w.spoil(a, how)
	case x < 70:
		w.sweep()
	case x < 80:
		w.release(m)
	case x < 86:
		w.newMachine(m)
	case w.jumps:
		w.jump(m)
	case x < 90:
		w.say("copy of the store")
		w.copies = append(w.copies, w.store.copied())
	default:
		w.lose()
	}
}

// newMachine has one that takes part in what another one is: its name, or its disk.
func (w *world) newMachine(m *machine) {
	if len(w.machines) > 8 {
		return
	}
	n := len(w.machines)
	x := w.rnd.IntN(5)
	if !w.twins {
		x = 2 + x%2
	}
	switch x {
	case 0:
		c := w.add(m.name, m.instance, m.disk.copied())
		if c.busy = m.busy; w.rnd.IntN(3) == 0 {
			c.host, c.boots = m.host, m.boots
		}
		w.say("a copy of %s (%s) on %s, from %s", m.name, m.instance, c.host, m.host)
	case 4:
		if a := m.agent; a != nil && a.ID() != 0 && !a.fatal.Load() {
			w.say("a snapshot of %s (%s) is resumed", m.name, m.instance)
			w.resume(a)
		}
	case 1:
		w.say("a copy of %s (%s) under another name", m.name, m.instance)
		w.add(fmt.Sprint("n", n), m.instance, m.disk.copied()).busy = m.busy
	case 2:
		w.say("another machine of name %s", m.name)
		w.add(m.name, fmt.Sprint("uuid-", n), newDisk())
	case 3:
		if m.agent != nil {
			w.end(m.agent, true)
		}
		w.disks++
		w.say("%s loses its disk", m.name)
		w.mu.Lock()
		m.disk, m.instance, m.busy = newDisk(), fmt.Sprintf("%s-again-%d", m.instance, w.disks), false
		w.mu.Unlock()
	}
}

func (w *world) jump(m *machine) {
	to := time.Duration(w.rnd.Int64N(int64(2*worldJump))) - worldJump
	w.say("clock of %s (%s) jumps to %s", m.name, m.instance, to)
	if m.agent != nil {
		m.agent.jump(to - m.offset)
		w.disturb(m.agent)
	}
	m.offset = to
	w.reflect = time.Duration(w.rnd.Int64N(int64(2*worldJump))) - worldJump
}

// lose has the store come back empty, or older.
func (w *world) lose() {
	w.mu.Lock()
	w.reborn = time.Now()
	for _, m := range w.machines { // a machine that ends now does not know better later
		w.lost[m.instance] = w.reborn
	}
	w.mu.Unlock()
	if len(w.copies) == 0 || w.rnd.IntN(2) == 0 {
		w.say("the store is wiped")
		w.store.restore(nil)
		return
	}
	w.say("the store is restored")
	w.store.restore(w.copies[w.rnd.IntN(len(w.copies))])
}

// sweep releases the IDs of nodes that were not there for the term, in whatever
// order they ended: a machine that is off may come back within it.
func (w *world) sweep() {
	now := time.Now().Add(w.reflect)
	all, err := nodesync.List(context.Background(), w.store)
	if err != nil {
		w.t.Error(err)
		return
	}
	seen := map[string]time.Time{}
	for _, r := range all {
		if at := time.Unix(0, r.Beat.GetAt()); r.Released == 0 && at.After(seen[r.Name]) {
			seen[r.Name] = at
		}
	}
	for name, at := range seen {
		if now.Sub(at) >= worldExpire {
			_, err := nodesync.Release(context.Background(), w.admin, nodesync.Gone{Name: name, Fresh: worldExpire}, now)
			w.say("sweep: %s, %v", name, err)
		}
	}
}

// release releases a node as an administrator does, rightly or wrongly.
func (w *world) release(m *machine) {
	if w.jumps { // whose clock is right is not known then, and wrong releases are not excused
		return
	}
	force := w.rnd.IntN(2) == 0
	w.mu.Lock()
	for _, x := range w.machines {
		switch a := x.agent; {
		case x.name != m.name:
		case a == nil:
			w.lost[x.instance] = time.Now()
		case a.link.weather() != fine || time.Since(a.Confirmed()) > refresh:
			a.lost = time.Now()
		default:
			a.released = time.Now()
		}
	}
	w.mu.Unlock()
	id, err := nodesync.Release(context.Background(), w.admin, nodesync.Gone{Name: m.name, Force: force, Fresh: fresh}, time.Now())
	w.say("release %s, force %t: %d, %v", m.name, force, id, err)
}
