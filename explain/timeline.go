// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// Past holds what is recorded about a subject.
type Past struct {
	History []ledger.HistoryEntry // the newest first
	Events  []controller.Record   // of this run of the agent, the oldest first
	// Oldest is the time of the oldest entry of the whole history; zero: there is no
	// history.
	Oldest time.Time
}

// around returns the entries around a time: half of those that are shown are before it.
// The zero time is now.
func around(p *Past, at time.Time) *Past {
	if at.IsZero() {
		return p
	}
	// The newest first: later has the index of the first entry that is not after at.
	later := slices.IndexFunc(p.History, func(e ledger.HistoryEntry) bool { return !e.Time.After(at) })
	if later < 0 {
		later = len(p.History)
	}
	const half = momentsShown / 2
	return &Past{
		History: p.History[max(0, later-half):min(len(p.History), later+half)],
		Oldest:  p.Oldest,
	}
}

// moment is one line of a timeline.
type moment struct {
	at   time.Time
	text string
	last time.Time // of repetitions
	n    int       // of them, 1 for a single one
}

// momentsShown limits the lines of a timeline.
const momentsShown = 12

// timeline adds what happened to the subject, the oldest first. An event that succeeded is
// in the entries that it has staged.
func (n *Node) timeline(t *Tree, p *Past) {
	var all []moment
	for _, e := range p.History {
		all = append(all, moment{at: e.Time, text: entryText(&e), n: 1})
	}
	for i := range p.Events {
		if r := &p.Events[i]; r.Error != "" {
			all = append(all, moment{at: r.ProcessingStart, text: failureText(r), n: 1})
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(x, y moment) int { return x.at.Compare(y.at) })
	all = merge(all)
	b := t.because("what happened")
	if more := len(all) - momentsShown; more > 0 {
		b.because("%d earlier changes are in the history", more)
		all = all[more:]
	}
	for _, m := range all {
		if m.n == 1 {
			b.because("%s %s", n.clock(m.at), m.text)
			continue
		}
		b.because("%s to %s, %d times: %s", n.clock(m.at), n.clock(m.last), m.n, m.text)
	}
}

// merge joins failures that follow each other with the same text, without their numbers:
// a runtime repeats a failed request every few seconds.
func merge(all []moment) (merged []moment) {
	plain := func(text string) string {
		_, rest, _ := strings.Cut(text, " failed")
		return rest
	}
	for _, m := range all {
		if k := len(merged) - 1; k >= 0 && plain(m.text) != "" && plain(m.text) == plain(merged[k].text) {
			merged[k].n, merged[k].last = merged[k].n+1, m.at
			continue
		}
		merged = append(merged, m)
	}
	return merged
}

// entryText returns an entry of the history in plain words.
func entryText(e *ledger.HistoryEntry) string {
	text := e.Action.String()
	switch {
	case e.Action.OfBlock():
		text += fmt.Sprintf(" %s in pool %s", e.Block, e.Pool)
	case e.Action == ledger.Excluded || e.Action == ledger.Readmitted:
		text += fmt.Sprintf(" %s in pool %s", e.Addr, e.Pool)
	default:
		text += fmt.Sprintf(" %s in pool %s, %s", e.Addr, e.Pool, owner(e.Key, e.Pod, e.Purpose))
	}
	if e.After > 0 {
		text += fmt.Sprintf(", unless it is confirmed within %s", e.After)
	}
	if e.EventName != "" {
		text += fmt.Sprintf(", by event #%d %s", e.Event, e.EventName)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// failureText names an event that failed, its handler and the reason.
func failureText(r *controller.Record) string {
	for _, h := range r.Handlers {
		if h.Error != "" {
			return fmt.Sprintf("event #%d %s failed in handler %s: %s", r.SeqNum, r.Name, h.Handler, h.Error)
		}
	}
	where := ""
	switch {
	case r.CommitError != "":
		where = " in the commit"
	case r.TxnError != "":
		where = " in the southbound"
	}
	return fmt.Sprintf("event #%d %s failed%s: %s", r.SeqNum, r.Name, where, r.Error)
}
