// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// recorder adds the entries of the history to the commits that they describe. Its
// fields are guarded by Ledger.mu.
type recorder struct {
	on      bool
	entries uint64 // limit
	age     time.Duration

	first, next uint64 // the journal has the entries from first on, before next
	// doubtful is above next after a failed commit: the journal may have entries up to
	// it, of changes that were undone.
	doubtful uint64
	tooOld   uint64         // entries before this number are older than the limit
	pruned   time.Duration  // uptime of the last look for entries that are too old
	began    time.Time      // clock when the ledger was opened
	beganUp  time.Duration  // uptime then
	waiting  []waitingEntry // of changes in memory whose records are dirty
	writing  []waitingEntry // of the commit in progress
	commit   window         // of the commit in progress

	entry HistoryEntry // the entry that is encoded next
	buf   []byte
}

// window holds the limits of the history after a commit.
type window struct{ first, next uint64 }

// waitingEntry is an entry that is written with the record of key.
type waitingEntry struct {
	key   string
	entry HistoryEntry
}

// origin is the event that stages a change.
type origin struct {
	number uint64
	name   string
}

// BeginEvent notes the event that stages the changes up to the next call, for the
// history.
func (st *Stage) BeginEvent(number uint64, name string) {
	if !st.l.history.on {
		return
	}
	st.event = &origin{number, name}
}

// openHistory reads the limits of the history.
func (l *Ledger) openHistory(ctx context.Context) error {
	o, h := &l.opt.History, &l.history
	if o.Reader == nil {
		return nil
	}
	if o.Entries < 0 || o.Age < 0 {
		return fmt.Errorf("limit the history to %d entries and %s: want no negative limit", o.Entries, o.Age)
	}
	h.on, h.entries, h.age = true, uint64(o.Entries), o.Age
	h.began, h.beganUp = l.opt.Now(), l.opt.Uptime()
	if h.entries == 0 {
		h.entries = DefaultHistoryEntries
	}
	if h.age == 0 {
		h.age = DefaultHistoryAge
	}
	oldest, newest, err := o.Reader.HistoryBounds(ctx)
	if err == nil && oldest != "" {
		if h.first, err = numberOf(oldest); err == nil {
			h.next, err = numberOf(newest)
			h.next++
		}
	}
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	if oldest == "" {
		h.first, h.next = 1, 1
	}
	return nil
}

// leaseEntry returns the entry of a lease. It is valid until the next call.
func (l *Ledger) leaseEntry(a Action, x *lease, at time.Time) *HistoryEntry {
	e := &l.history.entry
	*e = HistoryEntry{
		Time: at, Action: a, Pool: x.block.pool.Name, Addr: x.addr, Block: x.block.prefix, Purpose: x.purpose,
		Key: x.key, Pod: x.pod, NetNS: x.netns, Generation: x.gen,
	}
	if a.Ends() {
		e.Since = time.Unix(0, x.since)
	}
	return e
}

// note has an entry written with the record of key, which is dirty.
func (l *Ledger) note(key string, e *HistoryEntry) {
	l.history.waiting = append(l.history.waiting, waitingEntry{key, *e})
}

// noteLease has the entry of a change in memory written with the record of x.
func (l *Ledger) noteLease(a Action, x *lease, reason string) {
	if !l.history.on {
		return
	}
	e := l.leaseEntry(a, x, l.opt.Now())
	e.Reason = reason
	l.note(leaseKey(e.Pool, x.addr), e)
}

// noteBlock has the entry of a change of b in memory written with its record.
func (l *Ledger) noteBlock(a Action, b *block) {
	if !l.history.on {
		return
	}
	l.note(blockKey(b.pool.Name, b.prefix), &HistoryEntry{
		Time: l.opt.Now(), Action: a, Pool: b.pool.Name, Block: b.prefix,
	})
}

// appendEntries appends the entries of a commit to its ops, which are sorted by key,
// and the removal of the oldest ones. Entries of changes in memory come first: a
// change that is staged now follows them.
func (l *Ledger) appendEntries(ops []kvdb.Op, stages []*Stage) []kvdb.Op {
	h := &l.history
	if !h.on {
		return ops
	}
	h.commit = window{h.first, h.next}
	records := ops
	h.waiting = slices.DeleteFunc(h.waiting, func(w waitingEntry) bool {
		_, ok := slices.BinarySearchFunc(records, w.key, compareKey)
		if ok {
			h.writing = append(h.writing, w)
		}
		return ok
	})
	for i := range h.writing {
		ops = h.append(ops, &h.writing[i].entry)
	}
	now := l.opt.Now()
	for _, st := range stages {
		for i := range st.changes {
			c := &st.changes[i]
			if e := l.entryOf(c, now); e != nil {
				if c.event != nil {
					e.Event, e.EventName = c.event.number, c.event.name
				}
				ops = h.append(ops, e)
			}
		}
	}
	for n := h.commit.next; n < h.doubtful; n++ {
		ops = append(ops, kvdb.Delete(historyKey(n)))
	}
	return h.prune(ops)
}

// append appends the op that writes e.
func (h *recorder) append(ops []kvdb.Op, e *HistoryEntry) []kvdb.Op {
	h.buf = appendHistory(h.buf[:0], e)
	ops = append(ops, kvdb.Put(historyKey(h.commit.next), slices.Clone(h.buf)))
	h.commit.next++
	return ops
}

// atOnce is the number of entries that one commit removes at least: a page of the
// database is rewritten once for several of them.
const atOnce = 32

// prune appends the removal of entries beyond the limits.
func (h *recorder) prune(ops []kvdb.Op) []kvdb.Op {
	batch := min(atOnce, max(1, h.entries/8))
	to := h.commit.first
	if h.commit.next-h.commit.first > h.entries {
		to = max(to+batch, h.commit.next-h.entries)
	}
	if h.tooOld > to {
		to = min(h.tooOld, to+batch+2*(h.commit.next-h.next))
	}
	for n := h.commit.first; n < min(to, h.next); n++ {
		ops = append(ops, kvdb.Delete(historyKey(n)))
	}
	if to > h.next { // the commit has more entries than the limit allows
		keys := map[string]bool{}
		for n := h.next; n < to; n++ {
			keys[historyKey(n)] = true
		}
		ops = slices.DeleteFunc(ops, func(op kvdb.Op) bool { return keys[op.Key] })
	}
	h.commit.first = to
	return ops
}

// ended notes the end of a commit. If it failed, its entries may be in the journal: the next commit
// replaces or removes them.
func (h *recorder) ended(err error) {
	if !h.on {
		return
	}
	if err == nil {
		h.first, h.next, h.doubtful = h.commit.first, h.commit.next, 0
	} else {
		h.doubtful = max(h.doubtful, h.commit.next)
		h.waiting = append(h.writing, h.waiting...)
		h.writing = nil
	}
	clear(h.writing)
	h.writing = h.writing[:0]
}

// entryOf returns the entry of a staged change, nil if the history records none of its
// kind. The entry is valid until the next call.
func (l *Ledger) entryOf(c *change, now time.Time) *HistoryEntry {
	x := c.lease
	switch c.kind {
	case claimed:
		if x.state == Quarantined {
			e := l.leaseEntry(QuarantineBegan, x, now)
			e.Reason = x.reason
			return e
		}
		e := l.leaseEntry(Claimed, x, now)
		if x.timer != nil {
			e.After = x.timer.After
		}
		return e
	case released:
		e := l.leaseEntry(Released, x, now)
		e.Reason = c.reason
		return e
	case extended:
		if c.timer == nil {
			e := l.leaseEntry(Confirmed, x, now)
			e.Reason = c.reason
			return e
		}
		e := l.leaseEntry(MadePending, x, now)
		e.Reason = c.reason
		if c.timer.ends() { // a reclaim ends by a caller that asks witnesses
			e.After = c.timer.After
		}
		return e
	case granted:
		return c.blockEntry(&l.history.entry, now)
	case excluded:
		return l.exclusionEntry(c.exclusion, now)
	}
	return nil
}

// blockEntry fills e in with the change of a block, nil if the block is as before.
func (c *change) blockEntry(e *HistoryEntry, now time.Time) *HistoryEntry {
	if !c.isNew && c.state == c.block.state {
		return nil
	}
	*e = HistoryEntry{Time: now, Action: BlockOpened, Pool: c.block.pool.Name, Block: c.block.prefix}
	if c.block.state == Draining {
		e.Action = BlockDraining
	}
	return e
}

func (l *Ledger) exclusionEntry(b *exclusionChange, now time.Time) *HistoryEntry {
	e := &l.history.entry
	*e = HistoryEntry{Time: now, Action: Excluded, Pool: b.pool.Name, Addr: b.addr, Reason: b.pool.by(b.addr)}
	if b.readmitted {
		e.Action = Readmitted
	}
	if x := b.pool.fam[FamilyOf(b.addr)].blockOf(b.addr); x != nil {
		e.Block = x.prefix
	}
	return e
}

// pruneEvery is the time between two looks for entries that are too old.
const pruneEvery = time.Hour

// pruneOld finds the entries that are too old, and removes some of them. It returns the
// time until the next call. The lock is free while it reads.
func (l *Ledger) pruneOld(ctx context.Context) (time.Duration, error) {
	h := &l.history
	if !h.on {
		return pruneEvery, nil
	}
	now := l.opt.Uptime()
	if h.tooOld <= h.first {
		if wait := pruneEvery - (now - h.pruned); h.pruned != 0 && wait > 0 {
			return wait, nil
		}
		first, end, limit := h.first, h.next, h.earliest(l.opt.Now(), now).Add(-h.age)
		l.mu.Unlock()
		old, err := l.firstSince(ctx, first, end, limit)
		l.mu.Lock()
		if err != nil {
			return pruneEvery, err
		}
		h.tooOld, h.pruned = old, now
		if h.tooOld <= h.first {
			return pruneEvery, nil
		}
	}
	err := l.join(&Stage{l: l})
	if h.tooOld > h.first {
		return time.Second, err
	}
	return pruneEvery, err
}

// earliest returns the present time, but no later than the clock at the start allows: a
// clock that jumps ahead makes no entry too old before the next start.
func (h *recorder) earliest(now time.Time, uptime time.Duration) time.Time {
	if t := h.began.Add(uptime - h.beganUp); t.Before(now) {
		return t
	}
	return now
}

// firstSince returns the number of the first entry from first on, before end, that is
// not older than limit. Numbers may be missing. It reads the oldest entries first: after a
// clock was set back, entries that are older by their time follow those that must stay.
func (l *Ledger) firstSince(ctx context.Context, first, end uint64, limit time.Time) (uint64, error) {
	for first < end {
		next := min(first+historyPage, end)
		page, err := l.opt.History.Reader.ReadHistory(ctx, historyKey(next), int(next-first))
		if err != nil {
			return 0, fmt.Errorf("find old entries of the history: %w", err)
		}
		for _, r := range slices.Backward(page) {
			e, err := decodeHistory(r)
			if err != nil {
				return 0, err
			}
			if e.Number >= first && !e.Time.Before(limit) {
				return e.Number, nil
			}
		}
		first = next
	}
	return first, nil
}
