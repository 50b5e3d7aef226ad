// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cadastre/cadastre/kvdb"
)

// watchID is the ID of the one watch of each stream. A second request for the ID is
// refused at once, which serves as a sign of life.
const watchID = 1

// errLost reports that a revision cannot be trusted any more.
var errLost = errors.New("the connection to etcd was lost since the revision was read")

// Watch implements kvdb.Store. It returns when etcd has confirmed the watch.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	var invalid error
	if fromRev < 0 {
		invalid = kvdb.ErrCompacted
	}
	if err := s.check(ctx, invalid); err != nil {
		return nil, fmt.Errorf("watch %q from revision %d: %w", prefix, fromRev, err)
	}
	began := time.Now()
	w, err := s.open(ctx, prefix, fromRev)
	s.observe(OpWatch, began, err)
	if err != nil {
		return nil, fmt.Errorf("watch %q from revision %d on etcd %v: %w", prefix, fromRev, s.cfg.Endpoints, err)
	}
	return w, nil
}

func (s *Store) open(ctx context.Context, prefix string, from int64) (*watcher, error) {
	w := &watcher{
		store:  s,
		prefix: prefix,
		next:   from,
		events: make(chan []kvdb.Event),
		ended:  make(chan struct{}),
	}
	w.ctx, w.stop = context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	if err := s.enter(w); err != nil {
		w.stop(nil)
		return nil, err
	}
	if err := w.start(); err != nil {
		s.leave(w)
		return nil, err
	}
	go w.run()
	return w, nil
}

// enter makes a watcher known, so that Close and a reset end it.
func (s *Store) enter(w *watcher) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(w.ctx); err != nil {
		return err
	}
	s.work.Add(1)
	s.watches[w] = struct{}{}
	w.known = s.past
	return nil
}

func (s *Store) leave(w *watcher) {
	w.stop(nil)
	s.mu.Lock()
	delete(s.watches, w)
	s.mu.Unlock()
	s.work.Done()
}

// start opens the stream and waits until etcd has confirmed the watch.
func (w *watcher) start() error {
	limit := time.AfterFunc(w.store.cfg.RequestTimeout, func() { w.stop(ending{w.store.noAnswer()}) })
	err := w.confirm()
	if !limit.Stop() && err == nil {
		err = w.store.noAnswer() // it came too late, and the context ends
	}
	if err == nil {
		return nil
	}
	var ours ending
	switch cause := context.Cause(w.ctx); {
	case errors.As(cause, &ours) && expired(ours):
		return explain(w.ctx, err) // which adds what is wrong with the connection
	case errors.As(cause, &ours):
		return ours.error
	case cause != nil:
		return cause
	}
	return err
}

func (w *watcher) confirm() error {
	client, err := w.store.client(w.ctx)
	if err != nil {
		return explain(w.ctx, err)
	}
	if w.stream, err = pb.NewWatchClient(client.ActiveConnection()).Watch(w.ctx, options()...); err != nil {
		return explain(w.ctx, err)
	}
	// What the stream has to say of a request that it cannot send, Recv says.
	_ = w.ask()
	resp, err := w.stream.Recv()
	if err != nil {
		return explain(w.ctx, err)
	}
	if err := refusal(resp); err != nil {
		return err
	}
	return w.recognize(resp.Header)
}

// ask sends the request that makes the watch.
func (w *watcher) ask() error {
	key, end := w.store.rangeOf(w.prefix)
	return w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{
			Key:           key,
			RangeEnd:      end,
			StartRevision: w.next,
			WatchId:       watchID,
			Fragment:      true,
		},
	}})
}

// recognize finds out whether the member is one of the store that the first
// revision is of, and where to begin if it is 0.
func (w *watcher) recognize(h *pb.ResponseHeader) error {
	if err := w.store.notice(w.known, h); err != nil {
		return err
	}
	if w.next == 0 {
		// The member may lag behind the answers of other members.
		w.next = max(h.Revision, w.known.rev) + 1
		return nil
	}
	return w.store.trust(w.known, w.next-1)
}

// refusal returns the reason that a response gives for the end of a watch.
func refusal(r *pb.WatchResponse) error {
	switch {
	case !r.Canceled && r.CompactRevision == 0:
		return nil
	case r.CompactRevision != 0 || r.CancelReason == rpctypes.ErrCompacted.Error():
		return fmt.Errorf("the oldest revision kept is %d: %w", r.CompactRevision, kvdb.ErrCompacted)
	default:
		return fmt.Errorf("etcd ended the watch: %s", r.CancelReason)
	}
}
