// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"time"
)

// Record is what became of one event.
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
	Error           string `json:",omitempty"` // given to Done
}

// HandlerRecord is what one handler did with it.
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
}

// keptFirst bounds the records of the initial period.
const keptFirst = 200

func newHistory(cfg Config, now time.Time) *history {
	return &history{
		limit: cfg.HistorySize, age: cfg.EventHistoryAgeLimit, init: cfg.PermanentlyRecordedInitPeriod, began: now,
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
	close(h.changed)
	h.changed = make(chan struct{})
}

// since are the records from seq on, and a channel that is closed when there are more.
func (h *history) since(seq uint64) ([]Record, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var rs []Record
	for _, part := range [][]*Record{h.first, h.ring} {
		for _, r := range part {
			if r.SeqNum >= seq {
				rs = append(rs, *r)
			}
		}
	}
	return rs, h.changed
}
