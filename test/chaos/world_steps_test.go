// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// worldStep is one kind of event in a world.
type worldStep struct {
	name   string
	weight int
	do     func(*machine)
}

// worldSteps returns the events with their frequencies.
func worldSteps() []worldStep {
	return []worldStep{
		{"a pod starts", 24, (*machine).podStarts},
		{"a pod starts slowly", 6, (*machine).podStartsSlowly},
		{"a pod ends", 6, (*machine).podEnds},
		{"a pod dies", 12, (*machine).podDies},
		{"a namespace is lost", 5, (*machine).namespaceIsLost},
		{"a sandbox is lost", 5, (*machine).sandboxIsLost},
		{"ADD is repeated", 6, (*machine).addIsRepeated},
		{"ADD is abandoned", 5, (*machine).addIsAbandoned},
		{"GC", 6, (*machine).gcRuns},
		{"an address by hand", 3, (*machine).addressByHand},
		{"a hand removes its address", 2, (*machine).handRemoves},
		{"the agent is killed", 5, (*machine).agentIsKilled},
		{"the runtime is away", 4, (*machine).runtimeIsAway},
		{"the runtime is restarted", 4, (*machine).runtimeIsRestarted},
		{"the runtime misses a sandbox once", 4, (*machine).runtimeMissesOnce},
		{"the machine is booted", 2, (*machine).machineBoots},
		{"the database is copied", 3, (*machine).databaseIsCopied},
		{"the copy is put back", 2, (*machine).copyIsPutBack},
		{"the database is lost", 2, (*machine).databaseIsLost},
		{"the clock is set", 3, (*machine).clockIsSet},
	}
}

// crowded is the number of pods and strays at which none are added.
const crowded = 12

// newPod makes a pod with a sandbox and a namespace.
func (m *machine) newPod() *worldPod {
	m.made++
	p := &worldPod{key: Key{"net", fmt.Sprint("c", m.made), "eth0"}, sandbox: true}
	m.makeNamespace(p)
	m.pods = append(m.pods, p)
	m.publish()
	return p
}

func (m *machine) podStarts() {
	if len(m.find((*worldPod).alive)) >= crowded {
		return
	}
	p := m.newPod()
	m.added(p, m.add(p, leaving{}))
}

// podStartsSlowly makes a pod that neither kernel nor runtime shows for some rounds after its
// ADD: it is younger than the grace period, so that no reclaim of it begins.
func (m *machine) podStartsSlowly() {
	if len(m.find((*worldPod).alive)) >= crowded {
		return
	}
	began := time.Now()
	p := m.newPod()
	m.hidden[p.key.ContainerID] = true
	m.publish()
	a := m.add(p, leaving{})
	if a.IsValid() {
		m.rounds(4)
		n := m.reclaims(p)
		if took := time.Since(began); took < worldGrace {
			m.g.Expect(n).To(BeZero(), "a reclaim of %s begins %s after its ADD", p.key, took)
		}
	}
	delete(m.hidden, p.key.ContainerID)
	m.added(p, a)
	if a.IsValid() {
		m.rounds(2)
	}
}

// runtimeMissesOnce makes the runtime leave the sandbox of a pod without a namespace out of
// one list. One observation begins no reclaim.
func (m *machine) runtimeMissesOnce() {
	if m.away {
		return
	}
	fits := func(p *worldPod) bool { return isPod(p) && p.leased && p.sandbox && p.ns == nil }
	if m.any(fits) == nil {
		m.namespaceIsLost()
	}
	p := m.any(fits)
	if p == nil {
		return
	}
	m.eventually(func() error { return m.covered(p, "held") })
	m.rounds(int(worldGrace/worldInterval) + 1) // the agent may have been started just now: a younger lease is not judged
	before, whole := m.reclaims(p), m.sandboxes()
	m.hidden[p.key.ContainerID] = true
	part := m.sandboxes()
	delete(m.hidden, p.key.ContainerID)
	m.say("  %s", p.key)
	var lists atomic.Int64
	m.cri.Before(func(_ context.Context, method string) error {
		if method == "ListPodSandbox" {
			if lists.Add(1) == 1 {
				m.cri.Set(part...)
			} else {
				m.cri.Set(whole...)
			}
		}
		return nil
	})
	m.rounds(4)
	m.cri.Before(nil)
	m.publish()
	m.g.Expect(lists.Load()).To(BeNumerically(">", 1))
	m.g.Expect(m.reclaims(p)).To(Equal(before), "one observation begins a reclaim of %s", p.key)
}

// add sends an ADD and returns the address of the answer.
func (m *machine) add(p *worldPod, leave leaving) netip.Addr {
	r, f := m.request(p, Add, leave)
	if f != Answered {
		m.say("  %s: ADD is %s: %v", p.key, f, r.Error)
		return netip.Addr{}
	}
	as, err := addresses(r.IPs)
	m.g.Expect(err).NotTo(HaveOccurred())
	m.g.Expect(as).To(HaveLen(1))
	return as[0]
}

// added takes the answer to an ADD. Without an address the runtime ends the pod.
func (m *machine) added(p *worldPod, a netip.Addr) {
	if !a.IsValid() {
		m.end(p, true)
		return
	}
	for _, x := range m.pods {
		m.g.Expect(x != p && x.alive() && x.addr == a).To(BeFalse(), "held twice: %s of %s goes to %s", a, x.key, p.key)
	}
	m.say("  %s has %s", p.key, a)
	p.addr, p.leased = a, true
	m.keepResult(p)
	m.connect(p)
	m.publish()
}

// end ends a pod: with a DEL, or without.
func (m *machine) end(p *worldPod, del bool) {
	m.g.Expect(m.endNamespace(p)).To(Succeed())
	if del {
		r, f := m.request(p, Del, leaving{})
		if f != Answered {
			m.say("  %s: DEL is %s: %v", p.key, f, r.Error)
		} else {
			_ = os.Remove(m.result(p)) // there is none if the ADD failed
		}
	}
	p.sandbox, p.leased = false, false
	m.say("  %s ended, DEL %t", p.key, del)
	m.publish()
}

func isPod(p *worldPod) bool { return !p.stray && p.alive() }

func (m *machine) podEnds() {
	if p := m.any(isPod); p != nil {
		m.end(p, true)
	}
}

func (m *machine) podDies() {
	if p := m.any(isPod); p != nil {
		m.end(p, false)
	}
}

func (m *machine) namespaceIsLost() {
	if p := m.any(func(p *worldPod) bool { return isPod(p) && p.sandbox && p.leased }); p != nil {
		m.say("  %s", p.key)
		m.g.Expect(m.endNamespace(p)).To(Succeed())
	}
}

func (m *machine) sandboxIsLost() {
	if p := m.any(func(p *worldPod) bool { return isPod(p) && p.ns != nil }); p != nil {
		m.say("  %s", p.key)
		p.sandbox = false
		m.publish()
	}
}

func (m *machine) addIsRepeated() {
	p := m.any(func(p *worldPod) bool { return isPod(p) && p.leased && p.ns != nil && p.sandbox })
	if p == nil {
		return
	}
	r, f := m.request(p, Add, leaving{})
	m.g.Expect(f).To(Equal(Answered), "%s: %v", p.key, r.Error)
	as, err := addresses(r.IPs)
	m.g.Expect(err).NotTo(HaveOccurred())
	m.g.Expect(as).To(Equal([]netip.Addr{p.addr}), "the repeated ADD of %s", p.key)
}

func (m *machine) addIsAbandoned() {
	if len(m.find((*worldPod).alive)) >= crowded {
		return
	}
	p := m.newPod()
	leave := leaving{after: time.Duration(1+m.random.IntN(8000)) * time.Microsecond, half: m.random.IntN(2) == 0}
	if a := m.add(p, leave); a.IsValid() {
		m.added(p, a)
		return
	}
	m.end(p, m.random.IntN(2) == 0)
}

// gcRuns sends a GC, often beside a pod that it does not list and that lives.
func (m *machine) gcRuns() {
	if m.random.IntN(4) > 0 {
		m.sandboxIsLost()
	}
	m.g.Expect(m.gc()).To(Equal(Answered))
}

// addressByHand puts a free address of the block into a namespace, and waits until it is
// quarantined, before which a pod may get it.
func (m *machine) addressByHand() {
	if len(m.find((*worldPod).alive)) >= crowded {
		return
	}
	taken := map[string]bool{}
	for _, l := range m.leases() {
		taken[l.IP] = true
	}
	for _, p := range m.find((*worldPod).alive) {
		taken[p.addr.String()] = true
	}
	a := m.block.Addr()
	for range 28 { // the node itself has the first one and the last one
		a = a.Next()
	}
	for taken[a.String()] {
		a = a.Prev()
	}
	m.made++
	p := &worldPod{key: Key{"hand", fmt.Sprint("s", m.made), "eth0"}, stray: true, addr: a}
	m.say("  %s", a)
	m.makeNamespace(p)
	m.connect(p)
	m.pods = append(m.pods, p)
	m.eventually(func() error { return m.covered(p, "quarantined") })
}

// covered reports whether the ledger has an entry for the address of a pod in one of the
// states, so that no ADD gets it.
func (m *machine) covered(p *worldPod, states ...string) error {
	for _, l := range m.leases() {
		for _, s := range states {
			if l.IP == p.addr.String() && l.State == s {
				return nil
			}
		}
	}
	return fmt.Errorf("%s of %s is not %s", p.addr, p.key, strings.Join(states, " or "))
}

func (m *machine) handRemoves() {
	if p := m.any(func(p *worldPod) bool { return p.stray && p.ns != nil }); p != nil {
		m.say("  %s", p.addr)
		m.g.Expect(m.endNamespace(p)).To(Succeed())
	}
}

// agentIsKilled kills the agent. Pods may end before the next one.
func (m *machine) agentIsKilled() {
	m.killAgent()
	for range m.random.IntN(3) {
		if m.random.IntN(2) == 0 {
			m.podEnds()
		} else {
			m.podDies()
		}
	}
	m.startAgent()
}

// runtimeIsAway stops the runtime, or starts it.
func (m *machine) runtimeIsAway() {
	m.say("  away: %t", !m.away)
	if m.away {
		m.runtimeStarts()
		return
	}
	m.cri.Stop()
	m.away = true
}

func (m *machine) runtimeStarts() {
	m.g.Expect(m.cri.Start()).To(Succeed())
	m.away = false
}

// runtimeIsRestarted restarts the runtime, which is not ready at first, or lists a part of
// its sandboxes. If it lists the part for as long as the time to undo a reclaim, the pods
// end of which the kernel does not show the address.
func (m *machine) runtimeIsRestarted() {
	if !m.away {
		m.cri.Stop()
	}
	began := time.Now()
	if starting := m.random.IntN(2) == 0; starting {
		m.cri.SetNotReady("starting")
		m.cri.Set()
		m.runtimeStarts()
		m.rounds(1 + m.random.IntN(5))
		m.publish()
		m.cri.SetNotReady("")
		return
	}
	for _, p := range m.find(isPod) {
		m.hidden[p.key.ContainerID] = m.random.IntN(2) == 0
	}
	m.publish()
	m.runtimeStarts()
	m.rounds(1 + m.random.IntN(6))
	clear(m.hidden)
	m.publish()
	m.rounds(2) // one of them began after the list was whole
	if took := time.Since(began); took >= worldUndo {
		m.say("  the part was listed for %s", took)
		for _, p := range m.find(func(p *worldPod) bool { return isPod(p) && p.ns == nil }) {
			m.end(p, true) // its lease may have been released
		}
	}
}

// machineBoots ends all namespaces and sandboxes; the agent starts with another boot ID.
func (m *machine) machineBoots() {
	m.killAgent()
	m.boot++
	for _, p := range m.pods {
		m.g.Expect(m.endNamespace(p)).To(Succeed())
		p.sandbox, p.leased = false, false
	}
	m.publish()
	m.g.Expect(os.RemoveAll(m.runDir)).To(Succeed())
	m.hardware(m.t, 1, fmt.Sprint("boot-", m.boot))
	m.startAgent()
	for _, l := range m.leases() {
		m.g.Expect(l.State).NotTo(Equal("held"), "%s of %s outlives the reboot", l.IP, l.ContainerID)
	}
}

// databaseIsCopied copies the database while the agent is away.
func (m *machine) databaseIsCopied() {
	m.killAgent()
	data, err := os.ReadFile(m.db())
	m.g.Expect(err).NotTo(HaveOccurred())
	m.copied = &copiedDB{data: data, boot: m.boot, has: map[Key]netip.Addr{}}
	for _, p := range m.find(func(p *worldPod) bool { return p.leased }) {
		m.copied.has[p.key] = p.addr
	}
	m.startAgent()
}

// copyIsPutBack puts the copy in the place of the database. The agent serves its leases
// and allocates nothing; then a person accepts it, or rebuilds the database.
func (m *machine) copyIsPutBack() {
	if m.copied == nil {
		return
	}
	m.killAgent()
	now, err := os.ReadFile(m.db())
	m.g.Expect(err).NotTo(HaveOccurred())
	if bytes.Equal(now, m.copied.data) {
		m.startAgent()
		return
	}
	m.g.Expect(os.WriteFile(m.db(), m.copied.data, 0o600)).To(Succeed())
	for _, p := range m.pods {
		p.leased = p.leased && m.copied.boot == m.boot && m.copied.has[p.key] == p.addr
	}
	m.startAgent()
	s, err := m.status()
	m.g.Expect(err).NotTo(HaveOccurred())
	if s.Suspended == "" { // nothing was granted since the copy
		m.say("  the agent is content")
		return
	}
	m.refusesNew()
	if m.random.IntN(2) == 0 {
		m.killAgent()
		m.rebuild()
		m.startAgent()
		m.accept()
		return
	}
	// Only the runtime may know the address of a pod without a namespace: a person drains it.
	for _, p := range m.find(func(p *worldPod) bool { return isPod(p) && p.ns == nil && !p.leased }) {
		m.end(p, true)
	}
	for _, p := range m.find((*worldPod).alive) {
		if p.addr.IsValid() {
			m.eventually(func() error { return m.covered(p, "held", "quarantined") })
		}
	}
	m.accept()
}

// refusesNew expects that a new pod gets no address, and that others keep theirs.
func (m *machine) refusesNew() {
	p := m.newPod()
	a := m.add(p, leaving{})
	m.g.Expect(a.IsValid()).To(BeFalse(), "%s gets %s while the database is not the newest", p.key, a)
	m.end(p, true)
	m.addIsRepeated()
}

// databaseIsLost removes the database. It is rebuilt from the witnesses, before or after
// an agent has started without it.
func (m *machine) databaseIsLost() {
	m.killAgent()
	m.g.Expect(os.Remove(m.db())).To(Succeed())
	if m.random.IntN(2) == 0 {
		for _, p := range m.pods {
			p.leased = false
		}
		m.startAgent()
		m.refusesNew()
		m.killAgent()
	}
	m.rebuild()
	m.startAgent()
	m.accept()
}

// rebuild makes a database from the witnesses. The agent does not run.
func (m *machine) rebuild() {
	if m.away {
		m.runtimeStarts()
	}
	if err := os.Remove(m.db()); err != nil {
		m.g.Expect(err).To(MatchError(os.ErrNotExist))
	}
	out, code := m.tool("rebuild", "--write", "--node-id", "1", "--state-dir", m.stateDir, "--run-dir", m.runDir,
		"--boot-id", filepath.Join(m.dir, "boot_id"), "--config", m.conf, "--cni-results", m.results(), "--network", "net")
	m.say("  %s", strings.ReplaceAll(out, "\n", "\n    "))
	m.g.Expect(code).To(BeZero(), out)
	for _, p := range m.find(isPod) {
		p.leased = true // the result of its ADD was kept
	}
}

// accept accepts the database if the agent asks for that.
func (m *machine) accept() {
	s, err := m.status()
	m.g.Expect(err).NotTo(HaveOccurred())
	if s.Suspended == "" {
		return
	}
	m.say("  suspended: %s", s.Suspended)
	out, err := m.cli("accept", "--yes", "--force")
	m.g.Expect(err).NotTo(HaveOccurred(), out)
}

func (m *machine) clockIsSet() {
	if m.ahead != nil {
		by := time.Duration(m.random.IntN(8*3600)-4*3600) * time.Second
		m.say("  by %s", by)
		m.ahead(by)
	}
}

// statesOf returns the states of leases for messages.
func statesOf(all []localapi.Lease) string {
	var b strings.Builder
	for _, l := range all {
		fmt.Fprintf(&b, "\n%s %s %s/%s %s", l.IP, l.State, l.Network, l.ContainerID, l.Reason)
	}
	return b.String()
}
