// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// Rules are the settings of a Judge.
type Rules struct {
	Interval time.Duration // the least time between two observations that agree
	Grace    time.Duration // a lease that the Judge has known for less is not reclaimed
	Undo     time.Duration // time from the begin of a reclaim to the release
}

// jump is the largest difference that is not a jump of the wall clock. The difference is between
// the progress of the wall clock and that of the uptime, from one round to the next.
const jump = 3 * time.Second

// Observation holds what one round has found.
type Observation struct {
	Wall   time.Time
	Uptime time.Duration // never goes back, whatever happens to the wall clock
	BootID string
	World  *witness.World
	Leases []ledger.Lease          // held ones, and those whose reclaim is pending
	Busy   func(ledger.Lease) bool // reports whether a request for its key is in progress; nil: none is
	Hold   string                  // reason for which nothing may be reclaimed; "": none
}

// Action is the decision on an attachment.
type Action uint8

// Actions.
const (
	Keep    Action = iota // leave it as it is
	Begin                 // make it pending
	Undo                  // make it held again: the evidence does not stand any more
	Release               // its time to be undone is over
)

func (a Action) String() string {
	switch a {
	case Keep:
		return "keep"
	case Begin:
		return "begin"
	case Undo:
		return "undo"
	case Release:
		return "release"
	}
	return fmt.Sprintf("action %d", a)
}

// MarshalText returns the name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Assessment holds the decision on one attachment: all leases of one claim.
type Assessment struct {
	Leases  []ledger.Lease
	Verdict witness.Verdict
	Action  Action
	Reason  string // of an Action other than Keep, with the evidence
	Waits   string // Keep: what a reclaim waits for; "": the attachment is in use
}

// Judge decides which attachments are reclaimed. It is pure: it reads no clock and
// changes nothing but its own memory. Its methods must not be called concurrently.
type Judge struct {
	rules Rules
	last  *Observation // without its leases
	doubt string       // reason for which the last observation proves no absence, "" if there is none
	known map[subject]time.Duration
	gone  findings.Twice[subject]
	kept  map[subject]string // undone by hand, with the time
}

// subject identifies an attachment by the claim of its leases.
type subject struct {
	key        ledger.Key
	generation uint64
}

func subjectOf(l ledger.Lease) subject { return subject{l.Key, l.Generation} }

// NewJudge returns a Judge that has not seen anything yet.
func NewJudge(rules Rules) *Judge {
	return &Judge{
		rules: rules,
		known: map[subject]time.Duration{},
		gone:  findings.Twice[subject]{},
		kept:  map[subject]string{},
	}
}

// Clone returns a Judge with the same memory, to try an observation out.
func (j *Judge) Clone() *Judge {
	c := *j
	c.known, c.gone, c.kept = maps.Clone(j.known), maps.Clone(j.gone), maps.Clone(j.kept)
	return &c
}

// KeepUndone excludes an attachment from reclaims, because a person has undone one. It
// counts again once a witness has shown it in use.
func (j *Judge) KeepUndone(l ledger.Lease, at time.Time) {
	j.kept[subjectOf(l)] = at.UTC().Format(time.RFC3339)
	delete(j.gone, subjectOf(l))
}

// Observe takes the next observation and returns an assessment of every attachment, in
// the order of their first leases.
func (j *Judge) Observe(o Observation) []Assessment {
	j.doubt = cmp.Or(o.Hold, j.discontinuity(o))
	if j.last != nil && j.last.BootID != o.BootID {
		clear(j.known)
		clear(j.kept)
	}
	last := o
	last.Leases, last.Busy = nil, nil
	j.last = &last
	all := attachments(o.Leases)
	present := make(map[subject]bool, len(all))
	gone := map[subject]findings.Seen{}
	for i := range all {
		a := &all[i]
		s := subjectOf(a.Leases[0])
		present[s] = true
		if _, ok := j.known[s]; !ok {
			j.known[s] = o.Uptime
		}
		a.Verdict = o.World.Verdict(a.Leases...)
		if a.Verdict.Conclusion == witness.Alive {
			delete(j.kept, s)
		}
		if a.Waits = j.unproven(a, s, o); a.Waits == "" {
			gone[s] = o.seen(text(a.Verdict.Evidence))
		}
	}
	absent := func(s subject) bool { return !present[s] }
	maps.DeleteFunc(j.known, func(s subject, _ time.Duration) bool { return absent(s) })
	maps.DeleteFunc(j.kept, func(s subject, _ string) bool { return absent(s) })
	twice := j.gone.Observe(gone, j.rules.Interval)
	for i := range all {
		s := subjectOf(all[i].Leases[0])
		if now, ok := gone[s]; ok {
			j.assess(&all[i], s, now, twice)
		} else {
			keep(&all[i], o)
		}
	}
	return all
}

// seen returns what the observation shows of one thing.
func (o *Observation) seen(text string) findings.Seen {
	return findings.Seen{Uptime: o.Uptime, Wall: o.Wall, Text: text}
}

// discontinuity returns what puts the evidence before this observation in doubt, and the
// observation itself; "" if nothing does.
func (j *Judge) discontinuity(o Observation) string {
	l := j.last
	if l == nil {
		return ""
	}
	// UnixNano: a difference of two times would use Go's monotonic clock, which no jump changes.
	wall, up := time.Duration(o.Wall.UnixNano()-l.Wall.UnixNano()), o.Uptime-l.Uptime
	switch {
	case l.BootID != o.BootID:
		return "the machine was booted since the last round"
	case up < 0:
		return "the uptime went back since the last round"
	case wall-up > jump || up-wall > jump:
		return fmt.Sprintf("the clock jumped by %s since the last round", (wall - up).Round(time.Second))
	case restarted(l.World, o.World):
		return "the container runtime was restarted since the last round"
	}
	return ""
}

// restarted reports whether the runtime of two views in a row was restarted in between.
func restarted(before, now *witness.World) bool {
	return before.Runtime != nil && now.Runtime != nil && !before.Runtime.Since.Equal(now.Runtime.Since)
}

// keep decides on an attachment that this observation does not show as gone.
func keep(a *Assessment, o Observation) {
	if a.Leases[0].Reclaiming() && !o.busy(a.Leases) {
		a.Action, a.Reason = Undo, a.Waits
	} else if a.Verdict.Conclusion == witness.Alive {
		a.Waits = ""
	}
}

// assess decides on an attachment that this observation shows as gone, and earlier ones in twice.
func (j *Judge) assess(a *Assessment, s subject, now findings.Seen, twice map[subject]findings.Seen) {
	if l := a.Leases[0]; l.Reclaiming() {
		if left := l.Expires - now.Uptime; left > 0 {
			a.Waits = fmt.Sprintf("the end of the time to undo it, in %s", left.Round(time.Second))
		} else {
			a.Action, a.Reason = Release, l.Reason
		}
		return
	}
	if since := now.Uptime - j.known[s]; since < j.rules.Grace {
		a.Waits = fmt.Sprintf("the agent has known it for %s, and the grace period is %s",
			since.Round(time.Second), j.rules.Grace)
		return
	}
	first, ok := twice[s]
	if !ok {
		a.Waits = fmt.Sprintf("a second observation, at least %s after the one of %s",
			j.rules.Interval, j.gone[s].At())
		return
	}
	a.Action, a.Reason = Begin, first.And(now)
}

// unproven returns why an observation does not show that an attachment is gone, "" if it
// does.
func (j *Judge) unproven(a *Assessment, s subject, o Observation) string {
	switch {
	case a.Verdict.Conclusion == witness.Alive:
		return "it is in use: " + text(a.Verdict.Evidence)
	case j.doubt != "":
		return j.doubt
	case a.Verdict.Conclusion != witness.Gone && len(a.Verdict.Missing) > 0:
		return missing(o.World, a.Verdict.Missing)
	case a.Verdict.Conclusion != witness.Gone:
		return "no witness can judge it"
	case o.busy(a.Leases):
		return "a request for it is in progress"
	case j.kept[s] != "":
		return "a reclaim of it was undone by hand at " + j.kept[s]
	}
	return ""
}

func (o *Observation) busy(leases []ledger.Lease) bool { return o.Busy != nil && o.Busy(leases[0]) }

// attachments groups leases by their claims.
func attachments(leases []ledger.Lease) (all []Assessment) {
	at := make(map[subject]int, len(leases))
	for _, l := range leases {
		s := subjectOf(l)
		i, ok := at[s]
		if !ok {
			i = len(all)
			at[s] = i
			all = append(all, Assessment{})
		}
		all[i].Leases = append(all[i].Leases, l)
	}
	return all
}

// missing describes the missing witnesses.
func missing(w *witness.World, names []witness.Name) string {
	var parts []string
	for _, name := range names {
		switch r := w.Report(name); {
		case r.State == witness.Present && r.Limits != "":
			parts = append(parts, fmt.Sprintf("witness %s does not see everything: %s", name, r.Limits))
		case r.State == witness.Present:
			parts = append(parts, fmt.Sprintf("witness %s cannot tell", name))
		default:
			parts = append(parts, fmt.Sprintf("witness %s is %s: %s", name, r.State, r.Reason))
		}
	}
	return strings.Join(parts, "; ")
}

func text(all []witness.Evidence) string {
	var parts []string
	for _, e := range all {
		parts = append(parts, e.String())
	}
	return strings.Join(parts, "; ")
}
