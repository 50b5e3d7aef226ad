// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// Action is a change that the history records.
type Action uint8

// Actions. Cooling has none: it begins with the end of a lease and lasts for the
// cool-down of the pool.
const (
	Claimed         Action = iota + 1 // an owner got the address; After is set if the lease is pending
	Released                          // the lease ended
	Expired                           // the lease was pending and was not confirmed in time
	MadePending                       // the lease ends after After, unless it is confirmed
	Confirmed                         // the lease is not pending any more
	QuarantineBegan                   // an unknown owner uses the address
	Restored                          // an address cools that another format had recorded
	Moved                             // the lease is in Pool now; Reason names the pool before
	Excluded                          // the address is not allocated any more
	Readmitted                        // the exclusion ended
	BlockOpened
	BlockDraining
	BlockClosed
)

func (a Action) String() string {
	return name("action", a, "", "claimed", "released", "expired", "pending", "confirmed", "quarantined", "restored",
		"moved", "excluded", "readmitted", "block opened", "block draining", "block closed")
}

// MarshalText returns the name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Ends reports whether a lease ended with the action.
func (a Action) Ends() bool { return a == Released || a == Expired }

// OfBlock reports whether the action is about a block, and not about an address.
func (a Action) OfBlock() bool { return a >= BlockOpened }

// HistoryEntry is one change of a lease, an exclusion or a block.
type HistoryEntry struct {
	Number     uint64 // of the entry, ascending in the order of the commits
	Time       time.Time
	Action     Action
	Pool       string
	Addr       netip.Addr   // the zero Addr: the entry is about a block
	Block      netip.Prefix // of the address; the zero Prefix: unknown
	Purpose    Purpose
	Key        Key
	Pod        Pod
	NetNS      string
	Generation uint64
	Since      time.Time     // of an end: the begin of the state that ended; otherwise zero
	After      time.Duration // of Claimed and MadePending: the time to the expiry; 0 for a reclaim
	Event      uint64        // number of the event that staged the change; see EventName
	EventName  string        // "": no event staged the change
	Reason     string
}

// HistoryQuery selects entries. The zero value selects all of them.
type HistoryQuery struct {
	Pool        string
	Addr        netip.Addr // also the changes of a block that contains the address
	Pod         Pod        // by namespace and name
	ContainerID string     // the whole ID, or at least 12 digits of its begin
	Since       time.Time  // not before; zero: from the oldest entry on
	Until       time.Time  // not after; zero: to the newest entry
	Before      uint64     // not 0: only entries with lower numbers, for the next page
	Limit       int        // 0: no limit
}

// HistoryReader reads the entries that the Journal of the same file has got. Their keys
// begin with HistoryPrefix; the journal keeps them apart from the other records, and
// Load does not return them.
type HistoryReader interface {
	// HistoryBounds returns the keys of the oldest and of the newest entry, "" if there
	// are none.
	HistoryBounds(ctx context.Context) (oldest, newest string, err error)
	// ReadHistory returns at most n entries whose keys are lower than end, the highest
	// key first.
	ReadHistory(ctx context.Context, end string, n int) ([]kvdb.KeyValue, error)
}

// HistoryOptions limits the history. Without a Reader nothing is recorded.
type HistoryOptions struct {
	Reader  HistoryReader
	Entries int           // 0: DefaultHistoryEntries
	Age     time.Duration // 0: DefaultHistoryAge
}

// Limits of the history.
const (
	DefaultHistoryEntries = 50_000
	DefaultHistoryAge     = 30 * 24 * time.Hour
)

// ErrNoHistory is returned by a ledger that records no history.
var ErrNoHistory = errors.New("this ledger records no history")

// historyPage is the number of entries that are read in one transaction of the
// database: a commit that must enlarge the file waits for the transaction.
const historyPage = 512

// History returns the entries of a query, the newest first. It reads the journal and
// holds no lock of the ledger.
func (l *Ledger) History(ctx context.Context, q HistoryQuery) (found []HistoryEntry, err error) {
	h := l.opt.History.Reader
	if h == nil {
		return nil, ErrNoHistory
	}
	end := historyKey(^uint64(0))
	if q.Before != 0 {
		end = historyKey(q.Before)
	}
	for {
		page, err := h.ReadHistory(ctx, end, historyPage)
		if err != nil {
			return nil, fmt.Errorf("read the history: %w", err)
		}
		for _, r := range page {
			e, err := decodeHistory(r)
			if err != nil {
				return nil, fmt.Errorf("read the history: %w", err)
			}
			if !q.Since.IsZero() && e.Time.Before(q.Since.Add(-clockSlack)) {
				return found, nil
			}
			if !q.selects(&e) {
				continue
			}
			if found = append(found, e); q.Limit > 0 && len(found) == q.Limit {
				return found, nil
			}
		}
		if len(page) < historyPage {
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read the history: %w", context.Cause(ctx))
		}
		end = page[len(page)-1].Key
	}
}

// clockSlack is the time for which a query reads on behind its Since. Entries are in the
// order of the commits, and a clock that was set back by less disturbs no query.
const clockSlack = 10 * time.Minute

// shortID is the shortest begin of a container ID that a query accepts.
const shortID = 12

func (q *HistoryQuery) selects(e *HistoryEntry) bool {
	switch {
	case q.Pool != "" && q.Pool != e.Pool:
	case q.Addr.IsValid() && !e.about(q.Addr):
	case q.Pod.Name != "" && (q.Pod.Name != e.Pod.Name || q.Pod.Namespace != e.Pod.Namespace):
	case q.ContainerID != "" && !sameID(q.ContainerID, e.Key.ContainerID):
	case !q.Since.IsZero() && e.Time.Before(q.Since):
	case !q.Until.IsZero() && e.Time.After(q.Until):
	default:
		return true
	}
	return false
}

// about reports whether e is about an address or its block.
func (e *HistoryEntry) about(a netip.Addr) bool {
	if e.Action.OfBlock() {
		return e.Block.Contains(a)
	}
	return e.Addr == a
}

func sameID(want, id string) bool {
	return want == id || len(want) >= shortID && len(id) > len(want) && id[:len(want)] == want
}

// HistoryBegin returns the time of the oldest entry, the zero time if there is none.
func (l *Ledger) HistoryBegin(ctx context.Context) (time.Time, error) {
	h := l.opt.History.Reader
	if h == nil {
		return time.Time{}, ErrNoHistory
	}
	oldest, _, err := h.HistoryBounds(ctx)
	if err != nil || oldest == "" {
		return time.Time{}, err
	}
	number, err := numberOf(oldest)
	if err != nil {
		return time.Time{}, err
	}
	found, err := h.ReadHistory(ctx, historyKey(number+1), 1)
	if err != nil || len(found) == 0 {
		return time.Time{}, err
	}
	e, err := decodeHistory(found[0])
	return e.Time, err
}
