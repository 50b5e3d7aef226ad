// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package watchlog keeps the events of a store's last transactions and lets
// any number of watches read them, each at its own pace.
//
// The Log belongs to one store, which alone appends, in order of revisions. A
// watcher belongs to who opened it. Every method may be called from any
// goroutine, and none of them waits for a reader. A watcher is no more than a revision
// that it reads next, plus the one batch that its reader has not taken yet. If the log
// has meanwhile forgotten what it would read next it ends with kvdb.ErrCompacted, so a
// slow reader does not hold up another.
//
// Events are shared by the log and all watchers and must not be modified; the
// slice of a batch is the receiver's own.
package watchlog

import (
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// Log is the recent history of a store.
type Log struct {
	limit    int64
	watchers sync.WaitGroup
	done     chan struct{} // closed by Close

	mu     sync.Mutex
	closed bool
	kept   map[int64][]kvdb.Event // by revision, oldest to last
	oldest int64                  // last+1 while nothing is kept
	last   int64
	grown  chan struct{} // closed by the next change; nil while no watch waits
}

// New returns a log of up to limit transactions (at least one) for a store
// that is at revision rev. What led there is not known to it.
func New(limit int, rev int64) *Log {
	return &Log{
		limit:  int64(max(limit, 1)),
		done:   make(chan struct{}),
		kept:   map[int64][]kvdb.Event{},
		oldest: rev + 1,
		last:   rev,
	}
}

// Append adds the events of the transaction that made rev, in order of keys.
// Where rev does not follow the last revision, history before it is forgotten.
func (l *Log) Append(rev int64, events []kvdb.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rev != l.last+1 {
		l.forget(rev)
	}
	l.kept[rev] = events
	l.last = rev
	if l.last-l.oldest >= l.limit {
		delete(l.kept, l.oldest)
		l.oldest++
	}
	l.wake()
}

// Skip tells that the store is at rev for reasons that are not known, so that
// watches which would have had to see them end with kvdb.ErrCompacted. It
// does nothing if the log is already there.
func (l *Log) Skip(rev int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rev <= l.last {
		return
	}
	l.forget(rev + 1)
	l.last = rev
	l.wake()
}

// Close ends all watches with kvdb.ErrClosed and waits for them.
func (l *Log) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.done)
	}
	l.mu.Unlock()
	l.watchers.Wait()
}

// forget drops everything before rev.
func (l *Log) forget(rev int64) {
	clear(l.kept)
	l.oldest = rev
}

func (l *Log) wake() {
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
}

// read answers the events of rev, or a channel that is closed when there may
// be some.
func (l *Log) read(rev int64) ([]kvdb.Event, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, nil, kvdb.ErrClosed
	case rev < l.oldest:
		return nil, nil, kvdb.ErrCompacted
	case rev <= l.last:
		return l.kept[rev], nil, nil
	}
	if l.grown == nil {
		l.grown = make(chan struct{})
	}
	return nil, l.grown, nil
}
