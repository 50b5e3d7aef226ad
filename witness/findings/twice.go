// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Twice remembers what observations in a row have shown. A change in progress, such as the
// ADD of a pod, shows in one of them only. So nothing is reported, reclaimed or quarantined
// before a second observation shows it too.
type Twice[K comparable] map[K]Seen

// Seen is an observation of one thing.
type Seen struct {
	Uptime time.Duration // of a clock that does not jump
	Wall   time.Time
	Text   string // what shows it
}

// Observe takes all that an observation shows, and forgets everything else. It returns the
// first observation of each thing that was seen at least apart before, and in all
// observations since then.
func (t Twice[K]) Observe(shown map[K]Seen, apart time.Duration) (agreed map[K]Seen) {
	maps.DeleteFunc(t, func(k K, _ Seen) bool { _, again := shown[k]; return !again })
	agreed = map[K]Seen{}
	for k, now := range shown {
		first, again := t[k]
		switch {
		case !again:
			t[k] = now
		case now.Uptime-first.Uptime >= apart:
			agreed[k] = first
		}
	}
	return agreed
}

// And describes two observations that agree.
func (s Seen) And(second Seen) string {
	if second.Text != s.Text {
		return fmt.Sprintf("%s: %s; %s: %s", s.At(), s.Text, second.At(), second.Text)
	}
	return fmt.Sprintf("%s and %s: %s", s.At(), second.At(), s.Text)
}

// At returns the time for people.
func (s Seen) At() string { return s.Wall.UTC().Format(time.RFC3339) }

// Confirm returns the findings of the second of two rounds that the first one has too.
func Confirm(first, second []Finding) []Finding {
	rounds := Twice[About]{}
	rounds.Observe(Seens(first, Seen{}), 0)
	both := rounds.Observe(Seens(second, Seen{}), 0)
	return slices.DeleteFunc(slices.Clone(second), func(f Finding) bool { _, ok := both[f.About()]; return !ok })
}

// Seens returns an observation of all that findings are about.
func Seens(found []Finding, at Seen) map[About]Seen {
	all := make(map[About]Seen, len(found))
	for i := range found {
		all[found[i].About()] = at
	}
	return all
}
