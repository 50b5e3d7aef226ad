// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// worldLength is the number of steps of one world.
const worldLength = 50

// TestWorlds lets pods, runtime, agent and machine fail at random, and compares the
// ledger with the world after each step: a live pod keeps its lease. Once nothing changes
// any more, both are equal: no address is held twice or leaked.
func TestWorlds(t *testing.T) {
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this machine makes no network namespaces: %v", err)
	}
	t.Parallel()
	s := effort.Seed(t)
	for i := range effort.Times(t, 4) {
		t.Run(fmt.Sprint("world ", i), func(t *testing.T) {
			tried := attack.Begin(t, attack.Evidence)
			m := newMachine(t, random(s, i), i)
			if effort.Level(t) >= effort.Nightly && i%2 == 1 {
				m.setClocks()
			}
			m.startAgent()
			for range worldLength {
				m.step()
				tried.Add(1)
			}
			m.rests()
		})
	}
}

// setClocks gives the agent a clock that can be set.
func (m *machine) setClocks() {
	x := &member{node: m.node}
	m.ahead = x.wear(m.t, buildSkewed(m.t))
}

// step takes one step, lets some rounds pass, and compares.
func (m *machine) step() {
	steps := worldSteps()
	sum := 0
	for _, s := range steps {
		sum += s.weight
	}
	n := m.random.IntN(sum)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			m.say("%s", s.name)
			s.do(m)
			break
		}
	}
	m.compare()
	if n := m.random.IntN(5); n > 1 {
		m.rounds(n - 1)
		m.compare()
	}
}

// compare expects that each live pod with a lease has it: held, or held again one round
// after the sandbox is seen.
func (m *machine) compare() {
	m.t.Helper()
	if err := m.keepsLeases(); errors.Is(err, errPending) {
		m.rounds(2)
		m.g.Expect(m.keepsLeases()).To(Succeed())
	} else {
		m.g.Expect(err).NotTo(HaveOccurred())
	}
}

var errPending = errors.New("the reclaim of a live pod is pending")

func (m *machine) keepsLeases() error {
	all := m.leases()
	for _, p := range m.find(func(p *worldPod) bool { return isPod(p) && p.leased }) {
		i := slices.IndexFunc(all, func(l localapi.Lease) bool {
			return l.ContainerID == p.key.ContainerID && l.Network == p.key.Network && l.IP == p.addr.String()
		})
		switch {
		case i < 0:
			return fmt.Errorf("%s of %s is lost:%s", p.addr, p.key, statesOf(all))
		case all[i].State == "pending":
			return fmt.Errorf("%w: %s of %s (%s)", errPending, p.addr, p.key, all[i].Reason)
		case all[i].State != "held":
			return fmt.Errorf("%s of live %s is %s:%s", p.addr, p.key, all[i].State, statesOf(all))
		}
	}
	return nil
}

// rests waits until ledger and world are equal, mends the world, and expects a clean check.
func (m *machine) rests() {
	m.say("rests")
	if m.away {
		m.runtimeStarts()
	}
	m.eventually(m.equal)
	m.compare()
	m.say("check")
	m.eventually(m.differences)
	for _, p := range m.find(func(p *worldPod) bool { return p.alive() && (p.stray || !p.sandbox || p.ns == nil || !p.leased) }) {
		m.say("  mends %s", p.key)
		if p.stray {
			m.g.Expect(m.endNamespace(p)).To(Succeed())
		} else {
			m.end(p, true)
		}
	}
	m.eventually(m.equal)
	m.eventually(func() error {
		out, err := m.cli("check")
		if err != nil {
			return fmt.Errorf("check: %w:\n%s", err, out)
		}
		return nil
	})
}

// equal compares all of the ledger with the world: nothing is leaked or lost, and each
// address without a lease is quarantined.
func (m *machine) equal() error {
	all := m.leases()
	want := map[string]string{} // state by address
	for _, p := range m.find((*worldPod).alive) {
		switch {
		case p.leased:
			want[p.addr.String()] = "held"
		case p.addr.IsValid() && p.ns != nil && want[p.addr.String()] == "":
			want[p.addr.String()] = "held or quarantined" // held: an older database had it for an earlier pod
		}
	}
	for _, l := range all {
		switch w := want[l.IP]; {
		case l.State == w, w == "held or quarantined" && (l.State == "held" || l.State == "quarantined"):
			delete(want, l.IP)
		default:
			return fmt.Errorf("%s of %s is %s, want %q:%s", l.IP, l.ContainerID, l.State, w, statesOf(all))
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("not in the ledger: %v:%s", want, statesOf(all))
	}
	return nil
}

// differences expects that check finds the differences that the world has, and no others.
func (m *machine) differences() error {
	var r localapi.CheckReport
	out, err := m.finds("check", "-o", "json", "--socket", m.socket())
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return fmt.Errorf("check: %w: %s", err, out)
	}
	want := map[string]string{}
	for _, p := range m.find((*worldPod).alive) {
		switch {
		case p.stray:
			want[p.addr.String()] = "an address by hand"
		case !p.leased:
			want[p.addr.String()] = "a pod without a lease"
		case p.sandbox && p.ns == nil:
			want[p.addr.String()] = "a pod without a namespace"
		}
	}
	for _, f := range r.Findings {
		a := f.Subject.Addr.String()
		if want[a] == "" {
			return fmt.Errorf("check finds %s %s: %s", f.Number, f.Name, f.Text)
		}
		want[a] = "found"
	}
	for a, what := range want {
		if what != "found" {
			return fmt.Errorf("check does not find %s: %s:\n%s", a, what, out)
		}
	}
	return nil
}

// finds runs cadastre, and returns its output whether or not it has findings.
func (m *machine) finds(args ...string) (string, error) {
	out, code := m.tool(args...)
	if code != 0 && code != 4 {
		return out, fmt.Errorf("cadastre %v: exit code %d: %s", args, code, out)
	}
	return out, nil
}
