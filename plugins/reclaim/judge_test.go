// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/witness"
)

// rules of the tests.
func rules() reclaim.Rules {
	return reclaim.Rules{Interval: 20 * time.Second, Grace: 5 * time.Minute, Undo: 10 * time.Minute}
}

// scene makes the observations of a node with one pod.
type scene struct {
	wall    time.Time
	uptime  time.Duration
	boot    string
	since   time.Time // of the runtime
	sandbox bool      // the runtime has it
	addr    bool      // a namespace has the address
	hidden  string
	missing map[witness.Name]bool
	hold    string
	busy    bool
	lease   ledger.Lease
	shown   netip.Addr // that the namespace has; the zero Addr: that of the lease
}

func newScene() *scene {
	began := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	return &scene{
		wall: began, uptime: time.Hour, boot: "b1", since: began.Add(-time.Hour), missing: map[witness.Name]bool{},
		lease: ledger.Lease{
			Addr: netip.MustParseAddr("10.1.5.7"), Pool: "default", Generation: 7,
			Key: ledger.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"},
		},
	}
}

func (s *scene) pass(d time.Duration) { s.wall, s.uptime = s.wall.Add(d), s.uptime+d }

func (s *scene) observation() reclaim.Observation {
	w := &witness.World{Taken: s.wall}
	for _, name := range witness.Names() {
		r := witness.Report{Name: name}
		if s.missing[name] {
			r.State, r.Reason = witness.Missing, "gone fishing"
		}
		w.Reports = append(w.Reports, r)
	}
	if !s.missing[witness.Kernel] {
		w.Kernel = &witness.KernelView{Hidden: s.hidden, Namespaces: []witness.Namespace{{Host: true}}}
		if s.addr {
			shown := s.lease.Addr
			if s.shown.IsValid() {
				shown = s.shown
			}
			link := witness.Link{Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(shown, 24)}}
			w.Kernel.Namespaces = append(w.Kernel.Namespaces, witness.Namespace{Counts: true, Paths: []string{"/run/netns/x"}, Links: []witness.Link{link}})
		}
	}
	if !s.missing[witness.Runtime] {
		w.Runtime = &witness.RuntimeView{Name: "containerd", Since: s.since}
		if s.sandbox {
			w.Runtime.Sandboxes = []witness.Sandbox{{ID: s.lease.Key.ContainerID, Namespace: "ns", Name: "web"}}
		}
	}
	return reclaim.Observation{
		Wall: s.wall, Uptime: s.uptime, BootID: s.boot, World: w, Leases: []ledger.Lease{s.lease},
		Busy: func(ledger.Lease) bool { return s.busy }, Hold: s.hold,
	}
}

// apply does to the lease what was decided, as the ledger does.
func (s *scene) apply(a reclaim.Action) {
	switch a {
	case reclaim.Begin:
		after := rules().Undo
		s.lease.State, s.lease.Expiry = ledger.Pending, ledger.Expiry{Token: ledger.ReclaimToken, After: after}
		s.lease.Expires = s.uptime + after
	case reclaim.Undo:
		s.lease.State, s.lease.Expiry, s.lease.Expires = ledger.Held, ledger.Expiry{}, 0
	}
}

// round lets a Judge observe the scene and applies its decision.
func (s *scene) round(j *reclaim.Judge) reclaim.Assessment {
	a := j.Observe(s.observation())[0]
	s.apply(a.Action)
	return a
}

// old is a Judge that knows the lease for longer than the grace period, in use.
func old(s *scene) *reclaim.Judge {
	j := reclaim.NewJudge(rules())
	s.sandbox, s.addr = true, true
	s.round(j)
	s.pass(6 * time.Minute)
	s.round(j)
	s.sandbox, s.addr = false, false
	return j
}

func TestTwoObservationsBegin(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := old(s)
	s.pass(20 * time.Second)
	first := s.round(j)
	g.Expect(first.Action).To(Equal(reclaim.Keep))
	g.Expect(first.Waits).To(ContainSubstring("a second observation, at least 20s after the one of 2026-03-04T12:06:20Z"))
	s.pass(19 * time.Second)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Keep), "too soon")
	s.pass(time.Second)
	begin := s.round(j)
	g.Expect(begin.Action).To(Equal(reclaim.Begin))
	g.Expect(begin.Reason).To(Equal("2026-03-04T12:06:20Z and 2026-03-04T12:06:40Z: " +
		"kernel: none of 1 network namespaces has 10.1.5.7; runtime: containerd has no sandbox c1"))

	s.pass(9 * time.Minute)
	wait := s.round(j)
	g.Expect(wait.Action).To(Equal(reclaim.Keep))
	g.Expect(wait.Waits).To(ContainSubstring("the end of the time to undo it, in 1m0s"))
	s.pass(time.Minute)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Release))
}

// Each break comes between two observations that agree, and then ends. It must cost two
// more observations, and undo what is pending.
func TestBreaksOfTheEvidence(t *testing.T) {
	for name, c := range map[string]struct {
		begin, end func(s *scene)
		waits      string
		lasting    bool // the observation after the break still has it
	}{
		"the kernel is missing":    {func(s *scene) { s.missing[witness.Kernel] = true }, func(s *scene) { s.missing[witness.Kernel] = false }, "witness kernel is missing: gone fishing", true},
		"the runtime is missing":   {func(s *scene) { s.missing[witness.Runtime] = true }, func(s *scene) { s.missing[witness.Runtime] = false }, "witness runtime is missing: gone fishing", true},
		"a namespace is hidden":    {func(s *scene) { s.hidden = "x" }, func(s *scene) { s.hidden = "" }, "witness kernel", true},
		"the database is in doubt": {func(s *scene) { s.hold = "in doubt" }, func(s *scene) { s.hold = "" }, "in doubt", true},
		"the clock jumps forth":    {func(s *scene) { s.wall = s.wall.Add(5 * time.Second) }, func(*scene) {}, "the clock jumped by 5s", false},
		"the clock jumps back":     {func(s *scene) { s.wall = s.wall.Add(-time.Hour) }, func(*scene) {}, "the clock jumped by -1h0m0s", false},
		"the uptime goes back":     {func(s *scene) { s.uptime -= time.Minute }, func(*scene) {}, "the uptime went back", false},
		"the runtime restarts":     {func(s *scene) { s.since = s.wall }, func(*scene) {}, "the container runtime was restarted", false},
		"it is in use":             {func(s *scene) { s.sandbox = true }, func(s *scene) { s.sandbox = false }, "", true},
		"its address is in use":    {func(s *scene) { s.addr = true }, func(s *scene) { s.addr = false }, "", true},
	} {
		t.Run("before the second observation: "+name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene()
			j := old(s)
			s.pass(20 * time.Second)
			s.round(j)
			s.pass(20 * time.Second)
			c.begin(s)
			broken := s.round(j)
			g.Expect(broken.Action).To(Equal(reclaim.Keep))
			g.Expect(broken.Waits).To(ContainSubstring(c.waits))
			c.end(s)
			s.pass(20 * time.Second)
			g.Expect(s.round(j).Action).To(Equal(reclaim.Keep), "the first observation after the break")
			s.pass(20 * time.Second)
			g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
		})
		t.Run("while it is pending: "+name, func(t *testing.T) {
			g := NewWithT(t)
			s := newScene()
			j := old(s)
			s.pass(20 * time.Second)
			s.round(j)
			s.pass(20 * time.Second)
			g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
			s.pass(11 * time.Minute)
			c.begin(s)
			undo := s.round(j)
			g.Expect(undo.Action).To(Equal(reclaim.Undo), "its time is over, but this observation does not agree")
			g.Expect(undo.Reason).NotTo(BeEmpty())
			c.end(s)
			s.pass(20 * time.Second)
			g.Expect(s.round(j).Action).To(Equal(reclaim.Keep))
			s.pass(20 * time.Second)
			g.Expect(s.round(j).Action).To(Equal(reclaim.Begin), "it begins anew")
		})
	}
}

// After another boot the lease counts as new.
func TestAnotherBootEndsTheGracePeriodToo(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := old(s)
	s.pass(20 * time.Second)
	s.round(j)
	s.boot, s.uptime = "b2", time.Minute
	s.wall = s.wall.Add(20 * time.Second)
	g.Expect(s.round(j).Waits).To(ContainSubstring("booted"))
	for range 14 {
		s.pass(20 * time.Second)
		g.Expect(s.round(j).Action).To(Equal(reclaim.Keep))
	}
	s.pass(20 * time.Second)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
}

func TestAYoungLeaseWaits(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := reclaim.NewJudge(rules())
	s.wall = s.wall.Add(1000 * time.Hour) // a jump before the first observation makes nothing older
	for s.uptime < time.Hour+rules().Grace {
		a := s.round(j)
		g.Expect(a.Action).To(Equal(reclaim.Keep))
		g.Expect(a.Waits).To(ContainSubstring("the grace period is 5m0s"))
		s.pass(20 * time.Second)
	}
	g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
}

// Another claim of the same key is another lease.
func TestAnotherGenerationIsAnotherLease(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := old(s)
	s.pass(20 * time.Second)
	s.round(j)
	s.lease.Generation = 8
	s.pass(20 * time.Second)
	g.Expect(s.round(j).Waits).To(ContainSubstring("grace period"))
}

// A request in progress ends the evidence, and undoes nothing: its own end decides.
func TestARequestInProgress(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := old(s)
	s.pass(20 * time.Second)
	s.round(j)
	s.pass(20 * time.Second)
	s.busy = true
	a := s.round(j)
	g.Expect(a.Action).To(Equal(reclaim.Keep))
	g.Expect(a.Waits).To(ContainSubstring("a request for it is in progress"))
	s.busy = false
	s.pass(20 * time.Second)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Keep))
	s.pass(20 * time.Second)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
	s.pass(11 * time.Minute)
	s.busy = true
	g.Expect(s.round(j).Action).To(Equal(reclaim.Keep))
}

// A lease whose reclaim a person has undone is judged again only after it was in use.
func TestUndoneByHand(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := old(s)
	s.pass(20 * time.Second)
	s.round(j)
	s.pass(20 * time.Second)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
	s.apply(reclaim.Undo)
	j.KeepUndone(s.lease, s.wall)
	for range 10 {
		s.pass(time.Minute)
		a := s.round(j)
		g.Expect(a.Action).To(Equal(reclaim.Keep))
		g.Expect(a.Waits).To(ContainSubstring("undone by hand at 2026-03-04T12:06:40Z"))
	}
	s.sandbox = true
	s.pass(time.Minute)
	s.round(j)
	s.sandbox = false
	s.pass(time.Minute)
	s.round(j)
	s.pass(time.Minute)
	g.Expect(s.round(j).Action).To(Equal(reclaim.Begin))
}

// The addresses of one claim go together: one in use keeps both.
func TestTwoAddressesOfOneClaim(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	six := s.lease
	six.Addr = netip.MustParseAddr("fd00:1::7")
	j := reclaim.NewJudge(rules())
	observe := func() reclaim.Assessment {
		o := s.observation()
		o.Leases = append(o.Leases, six)
		all := j.Observe(o)
		g.Expect(all).To(HaveLen(1))
		g.Expect(all[0].Leases).To(HaveLen(2))
		return all[0]
	}
	observe()
	s.pass(6 * time.Minute)
	for _, used := range []netip.Addr{s.lease.Addr, six.Addr} {
		s.addr, s.shown = true, used
		g.Expect(observe().Verdict.Conclusion).To(Equal(witness.Alive), used.String())
		s.pass(20 * time.Second)
	}
	s.addr = false
	s.pass(20 * time.Second)
	observe()
	s.pass(20 * time.Second)
	a := observe()
	g.Expect(a.Action).To(Equal(reclaim.Begin))
	g.Expect(a.Reason).To(And(ContainSubstring("10.1.5.7"), ContainSubstring("fd00:1::7")))
}

// Trying an observation out changes nothing.
func TestACloneHasItsOwnMemory(t *testing.T) {
	g := NewWithT(t)
	s := newScene()
	j := old(s)
	s.pass(20 * time.Second)
	for range 3 {
		g.Expect(j.Clone().Observe(s.observation())[0].Waits).To(ContainSubstring("second observation"))
		s.pass(20 * time.Second)
	}
	g.Expect(s.round(j).Action).To(Equal(reclaim.Keep), "the clones' observations do not count")
}
