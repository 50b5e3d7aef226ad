// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/witness"
)

// seen holds the facts of an observation, as the test knows them without the Judge.
type seen struct {
	uptime time.Duration
	clean  bool // it shows the owner gone, and nothing puts that in doubt
}

// A random sequence of observations. The Judge begins a reclaim exactly if an unbroken run of
// observations shows the owner gone, and it has known the lease for the grace period. The run
// goes from one observation to the last, and these two are at least an interval apart. The
// Judge releases exactly if the run goes on until the end of the time to undo the reclaim.
func TestJudgeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScene()
		j := reclaim.NewJudge(rules())
		var log []seen
		known, pending := s.uptime, time.Duration(0)
		before := *s
		for i := range rapid.IntRange(1, 120).Draw(t, "observations") {
			broken := step(t, s)
			switch {
			case i == 0:
				broken, known = false, s.uptime
			case s.boot != before.boot:
				known = s.uptime
			}
			if !s.missing[witness.Runtime] && !before.missing[witness.Runtime] && i > 0 && !s.since.Equal(before.since) {
				broken = true
			}
			before = *s
			before.missing = map[witness.Name]bool{witness.Runtime: s.missing[witness.Runtime]}
			clean := !broken && !s.sandbox && !s.addr && s.hidden == "" && !s.busy && s.hold == "" &&
				!s.missing[witness.Kernel] && !s.missing[witness.Runtime]
			log = append(log, seen{s.uptime, clean})
			wasPending := s.lease.State == ledger.Pending
			got := s.round(j).Action
			switch want := expected(log, known, pending, wasPending, s); {
			case got != want:
				t.Fatalf("observation %d: %s, want %s\n%+v\n%+v", i, got, want, log, s)
			case got == reclaim.Begin:
				pending = s.uptime
			case got == reclaim.Release: // the next claim of the same key
				s.lease.State, s.lease.Expiry = ledger.Held, ledger.Expiry{}
				s.lease.Generation++
				known = -1
			}
			if known < 0 {
				known = s.uptime
				log = nil
				j.Observe(s.observation())
				log = append(log, seen{s.uptime, clean})
			}
		}
	})
}

// expected decides from the log alone.
func expected(log []seen, known, pending time.Duration, wasPending bool, s *scene) reclaim.Action {
	now := log[len(log)-1]
	switch {
	case wasPending && !now.clean:
		return undoUnlessBusy(s)
	case wasPending && now.uptime-pending >= rules().Undo:
		return reclaim.Release
	case wasPending || !now.clean:
		return reclaim.Keep
	}
	first := len(log) - 1
	for first > 0 && log[first-1].clean {
		first--
	}
	if first < len(log)-1 && now.uptime-log[first].uptime >= rules().Interval && now.uptime-known >= rules().Grace {
		return reclaim.Begin
	}
	return reclaim.Keep
}

// undoUnlessBusy returns the decision on a pending lease that an observation does not
// confirm: a request in progress decides itself.
func undoUnlessBusy(s *scene) reclaim.Action {
	if s.busy {
		return reclaim.Keep
	}
	return reclaim.Undo
}

// step changes the scene at random, and reports whether time was broken.
func step(t *rapid.T, s *scene) (broken bool) {
	s.pass(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
	flag := func(name string, rare int) bool { return rapid.IntRange(0, rare).Draw(t, name) == 0 }
	switch rapid.IntRange(0, 40).Draw(t, "event") {
	case 0:
		s.sandbox = !s.sandbox
	case 1:
		s.addr = !s.addr
	case 2:
		s.missing[witness.Kernel] = flag("kernel", 1)
	case 3:
		s.missing[witness.Runtime] = flag("runtime", 1)
	case 4:
		s.busy = !s.busy
	case 5:
		s.hold = ""
		if flag("hold", 1) {
			s.hold = "the database is in doubt"
		}
	case 6:
		s.since = s.wall
	case 7:
		s.wall = s.wall.Add(time.Duration(rapid.IntRange(4, 9000).Draw(t, "jump")) * time.Second)
		return true
	case 8:
		s.wall = s.wall.Add(-time.Duration(rapid.IntRange(4, 9000).Draw(t, "jump")) * time.Second)
		return true
	case 9:
		s.boot += "x"
		return true
	case 10:
		s.hidden = ""
		if flag("hidden", 1) {
			s.hidden = "a namespace"
		}
	default: // calm
		s.sandbox, s.addr, s.busy, s.hold, s.hidden = false, false, false, "", ""
		clear(s.missing)
	}
	return false
}
