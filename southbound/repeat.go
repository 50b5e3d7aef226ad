// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/backoff"
)

const (
	// firstWait and longestWait are between two repairs of one value: the second repair
	// comes at once, the third after firstWait, and each further wait doubles.
	firstWait   = time.Second
	longestWait = 20 * time.Second
	// quiet is the time without a repair after which the earlier repairs of a value do not
	// count any more.
	quiet = time.Minute
	// notedFrom is the number of repairs from which the operator is told of a value.
	notedFrom = 3
	// notedMost limits the values that the note names.
	notedMost = 3
)

// repairs holds by key the values that were repaired in the last minute. Without a wait
// between repairs, two programs that both insist would do nothing else.
type repairs map[string]*repeat

// repeat counts the repairs of one value.
type repeat struct {
	count int
	last  time.Time
	due   time.Time // of the next repair, if the value waits for it
}

// next counts a repair of a value, or returns how long the repair has to wait.
func (p repairs) next(key string, now time.Time) (wait time.Duration) {
	maps.DeleteFunc(p, func(_ string, r *repeat) bool { return r.isOver(now) })
	r := p[key]
	if r == nil {
		p[key] = &repeat{count: 1, last: now}
		return 0
	}
	due := r.last.Add(backoff.Policy{First: firstWait, Limit: longestWait}.After(r.count - 1))
	if due.After(now) {
		r.due = due
		return due.Sub(now)
	}
	*r = repeat{count: r.count + 1, last: now}
	return 0
}

// unwait notes that a value does not wait for a repair.
func (p repairs) unwait(key string) {
	if r := p[key]; r != nil {
		r.due = time.Time{}
	}
}

func (r *repeat) isOver(now time.Time) bool { return now.Sub(r.last) >= quiet }

// note names the values that were repaired most often, "" if there are none.
func (p repairs) note(now time.Time) string {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(p)), func(key string) bool {
		return p[key].count < notedFrom || p[key].isOver(now)
	})
	if len(keys) == 0 {
		return ""
	}
	slices.SortFunc(keys, func(x, y string) int {
		return cmp.Or(cmp.Compare(p[y].count, p[x].count), cmp.Compare(x, y))
	})
	var texts []string
	for _, key := range keys[:min(len(keys), notedMost)] {
		texts = append(texts, fmt.Sprintf("%s was repaired %d times", key, p[key].count))
	}
	if more := len(keys) - notedMost; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf(
		"another program changes values of this agent again and again: %s without a quiet minute: "+
			"find and stop that program; until then repairs of these values are up to %v apart",
		strings.Join(texts, ", "), longestWait)
}
