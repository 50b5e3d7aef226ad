// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Record holds the result of one event.
type Record struct {
	SeqNum          uint64
	ProcessingStart time.Time
	ProcessingEnd   time.Time
	Waited          time.Duration // in the queue
	IsFollowUp      bool
	FollowUpTo      uint64
	Name            string
	Description     string
	Method          EventMethodType
	Handlers        []HandlerRecord
	CommitError     string `json:",omitempty"` // of what handlers had staged
	TxnError        string `json:",omitempty"` // of the sink
	Txn             []string
	Group           int      `json:",omitempty"` // number of events that shared its durable commit, if several did
	Note            string   `json:",omitempty"` // why it was not processed
	External        []string `json:",omitempty"` // values from outside that it brought, with their sources
	Refused         []string `json:",omitempty"` // values from outside that cannot be merged, with the reason
	Verification    []string `json:",omitempty"` // what a VerificationResync has found
	Error           string   `json:",omitempty"` // given to Done
	Subject         Subject  `json:",omitzero"`  // of a SubjectEvent

	CommitTook time.Duration `json:",omitempty"` // of the durable commits, a group's shared one and a revert's included
	SinkTook   time.Duration `json:",omitempty"` // of the sink's commit
}

// Subject names the attachment that an event is about.
type Subject struct {
	Pod       string   `json:",omitempty"` // namespace/name
	Container string   `json:",omitempty"`
	Pool      string   `json:",omitempty"` // that the request names
	Addresses []string `json:",omitempty"`
}

// RecordFilter selects records; the zero value selects all.
type RecordFilter struct {
	Pod       string // namespace/name
	Container string // the whole ID, or at least 12 digits of its begin
	Address   string
	Failed    bool // only events that failed
}

// shortID is the shortest begin of a container ID that a filter accepts.
const shortID = 12

// Selects reports whether the filter selects a record.
func (f RecordFilter) Selects(r *Record) bool {
	return (f.Pod == "" || f.Pod == r.Subject.Pod) &&
		(f.Container == "" || f.Container == r.Subject.Container ||
			len(f.Container) >= shortID && strings.HasPrefix(r.Subject.Container, f.Container)) &&
		(f.Address == "" || slices.Contains(r.Subject.Addresses, f.Address)) &&
		(!f.Failed || r.Error != "")
}

// HandlerRecord holds the result of one handler.
type HandlerRecord struct {
	Handler  string
	Revert   bool
	Change   string `json:",omitempty"`
	Error    string `json:",omitempty"`
	Duration time.Duration
}

// history is a ring of records. Records of the first minutes are kept for good.
type history struct {
	mu      sync.Mutex
	limit   int
	age     time.Duration
	init    time.Duration // of the period whose records are kept
	began   time.Time
	first   []*Record
	ring    []*Record
	changed chan struct{}
	watched bool // a caller has got changed
}

// keptFirst bounds the records of the initial period.
const keptFirst = 200

func newHistory(cfg Config, now time.Time) *history {
	return &history{
		limit: cfg.historySize, age: cfg.EventHistoryAgeLimit, init: cfg.PermanentlyRecordedInitPeriod, began: now,
		changed: make(chan struct{}),
	}
}

func (h *history) add(r *Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.ProcessingStart.Sub(h.began) < h.init && len(h.first) < keptFirst {
		h.first = append(h.first, r)
	} else {
		h.ring = append(h.ring, r)
	}
	cut := max(0, len(h.ring)-h.limit)
	for cut < len(h.ring) && h.age > 0 && r.ProcessingEnd.Sub(h.ring[cut].ProcessingEnd) > h.age {
		cut++
	}
	clear(h.ring[:cut])
	h.ring = h.ring[cut:]
	if h.watched {
		close(h.changed)
		h.changed, h.watched = make(chan struct{}), false
	}
}

// since are the records from seq on, and a channel that is closed when there are more.
func (h *history) since(seq uint64) ([]Record, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watched = true
	return h.filter(func(r *Record) bool { return r.SeqNum >= seq }), h.changed
}

// filter are the records that pass, in order. The caller holds the lock.
func (h *history) filter(pass func(*Record) bool) []Record {
	var rs []Record
	for _, part := range [][]*Record{h.first, h.ring} {
		for _, r := range part {
			if pass(r) {
				rs = append(rs, *r)
			}
		}
	}
	return rs
}
