// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/kvdb"
)

// Mirror holds this node's copy of what it has read of the store. Only the Source
// writes it.
type Mirror interface {
	// Load returns the copy and its revision; revision 0: there is none.
	Load(ctx context.Context) (kvs []kvdb.KeyValue, revision int64, err error)
	// Replace stores kvs as the copy.
	Replace(ctx context.Context, kvs []kvdb.KeyValue, revision int64) error
	// Apply applies events to the copy.
	Apply(ctx context.Context, events []kvdb.Event, revision int64) error
}

// saveEvery is the longest time that a change waits to be mirrored. A pool is mirrored
// before the loop receives it: a node that starts without the store must not know
// less of pools than it has published.
const saveEvery = time.Second

// StartLocal waits for Timing.DelayLocal and pushes the mirror if the store has
// not answered by then. It returns when ctx ends.
func (s *Source) StartLocal(ctx context.Context) error {
	if s.deps.Mirror != nil {
		select {
		case <-time.After(s.deps.Timing.DelayLocal):
			s.pushLocal(ctx)
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	return nil
}

// pushLocal pushes the mirror. If the store answers at the same time, the loop refuses
// the local state after the remote one.
func (s *Source) pushLocal(ctx context.Context) {
	if s.Status().From != "" {
		return
	}
	if s.deps.Ready != nil && !s.deps.Ready() {
		s.deps.Log.Warn("this node has no ID yet, so it has no state to start from",
			"waited", s.deps.Timing.DelayLocal)
		return
	}
	kvs, rev, err := s.deps.Mirror.Load(ctx)
	if err != nil || rev == 0 {
		s.deps.Log.Error("the cluster store does not answer, and there is no mirror of it to start from",
			"waited", s.deps.Timing.DelayLocal, "error", err)
		return
	}
	ev := resyncOf(s.entries(kvs), rev)
	ev.Local = true
	s.deps.Log.Warn("the cluster store does not answer: starting from the mirror of it",
		"waited", s.deps.Timing.DelayLocal, "revision", rev)
	if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		s.deps.Log.Error("the mirror cannot be used", "error", err)
		return
	}
	s.setStatus(func(st *Status) {
		if st.From == "" {
			st.From, st.Revision = FromMirror, rev
		}
	})
}

// reload takes the mirror as the known state, so that Repair notices what the store
// has lost.
func (s *Source) reload(ctx context.Context) {
	if s.deps.Mirror == nil {
		return
	}
	kvs, _, err := s.deps.Mirror.Load(ctx)
	if err != nil {
		s.deps.Log.Error("the mirror of the cluster store cannot be read; it is written again", "error", err)
		return
	}
	s.known = s.entries(kvs)
}

func (s *Source) replaceMirror(ctx context.Context, kvs []kvdb.KeyValue, rev int64) {
	if s.deps.Mirror == nil {
		return
	}
	s.unsaved = nil
	s.mirrored(s.deps.Mirror.Replace(ctx, kvs, rev))
}

// note mirrors a batch, at once if it changes pools, otherwise with the next save.
func (s *Source) note(ctx context.Context, batch []kvdb.Event) {
	if s.deps.Mirror == nil {
		return
	}
	s.unsaved = append(s.unsaved, batch...)
	if slices.ContainsFunc(batch, needsRepair) {
		s.save(ctx)
	}
}

func (s *Source) save(ctx context.Context) {
	if s.stale {
		s.saveAll(ctx)
		return
	}
	if len(s.unsaved) == 0 {
		return
	}
	events := s.unsaved
	s.unsaved = nil
	for len(events) > 0 && !s.stale {
		n := wholeTransactions(events, saveAtOnce)
		s.mirrored(s.deps.Mirror.Apply(ctx, events[:n], events[n-1].ModRevision))
		events = events[n:]
	}
}

// saveAtOnce is about the number of changes that are written at once. Leases are written to
// the same file, so an ADD may wait for as long as such a write takes.
const saveAtOnce = 256

// wholeTransactions returns the length of the shortest beginning of events that has at least
// atLeast of them and ends with a transaction of the store. It returns the length of all of
// them if they are fewer.
func wholeTransactions(events []kvdb.Event, atLeast int) int {
	n := min(atLeast, len(events))
	for n < len(events) && events[n].ModRevision == events[n-1].ModRevision {
		n++
	}
	return n
}

// saveAll replaces the mirror after a write of it failed.
func (s *Source) saveAll(ctx context.Context) {
	var kvs []kvdb.KeyValue
	for key, e := range s.known {
		if e.message == nil {
			continue
		}
		value, err := proto.Marshal(e.message)
		if err != nil {
			s.mirrored(err)
			return
		}
		kvs = append(kvs, kvdb.KeyValue{Key: key, Value: value})
	}
	s.replaceMirror(ctx, kvs, s.Status().Revision)
}

func (s *Source) mirrored(err error) {
	if err != nil {
		err = fmt.Errorf("mirror the cluster store: %w", err)
		s.deps.Log.Error("a start without the cluster store would begin with an older state", "error", err)
	}
	s.stale = err != nil
}
