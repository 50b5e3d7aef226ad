// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cadastre/cadastre/kvdb"
)

// ending is the cause of a watch's end that its reader is told; any other end
// of its context is that of the reader's own.
type ending struct{ error }

func (e ending) Unwrap() error { return e.error }

// errSilent ends a watch whose member gives no sign of life.
var errSilent = errors.New("etcd gives no sign of life")

// watcher is one watch, with a stream of its own.
type watcher struct {
	store  *Store
	known  past // when it was opened
	prefix string
	events chan []kvdb.Event
	ctx    context.Context // that of the stream
	stop   context.CancelCauseFunc
	stream pb.Watch_WatchClient
	ended  chan struct{}

	next    int64        // nothing before this revision is delivered
	pending []kvdb.Event // of one transaction, not yet complete

	mu  sync.Mutex
	err error
}

// Events implements kvdb.Watcher.
func (w *watcher) Events() <-chan []kvdb.Event { return w.events }

// Err implements kvdb.Watcher.
func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close implements kvdb.Watcher.
func (w *watcher) Close() {
	w.stop(nil)
	<-w.ended
}

// run delivers until the watch ends. Err must be set before the channel is
// closed, for a reader asks for it then.
func (w *watcher) run() {
	defer close(w.ended)
	defer w.store.leave(w)
	err := w.follow()
	if err != nil {
		err = fmt.Errorf("watch %q at revision %d on etcd %v: %w", w.prefix, w.next, w.store.cfg.Endpoints, err)
	}
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	close(w.events)
}

// follow answers why the watch ended; nil if its reader ended it.
func (w *watcher) follow() error {
	responses := make(chan received)
	var receiver sync.WaitGroup
	receiver.Go(func() { w.receive(responses) })
	defer receiver.Wait()
	defer w.stop(nil)
	timer := time.NewTimer(w.store.cfg.KeepAlive)
	defer timer.Stop()
	asked := false
	for {
		select {
		case r := <-responses:
			if err := w.take(r); err != nil {
				return w.why(err)
			}
			asked = false
			timer.Reset(w.store.cfg.KeepAlive)
		case <-timer.C:
			if asked {
				return fmt.Errorf("%w within %v", errSilent, w.store.cfg.KeepAliveTimeout)
			}
			asked = true
			_ = w.ask() // a stream that is broken says so to receive
			timer.Reset(w.store.cfg.KeepAliveTimeout)
		case <-w.ctx.Done():
			return w.why(nil)
		}
	}
}

// received holds one answer of the stream.
type received struct {
	response *pb.WatchResponse
	err      error
}

// receive reads from the stream, no more than is taken: what a slow reader has
// not taken yet waits in the connection, and then in etcd.
func (w *watcher) receive(to chan<- received) {
	for {
		var r received
		r.response, r.err = w.stream.Recv()
		select {
		case to <- r:
		case <-w.ctx.Done():
			return
		}
		if r.err != nil {
			return
		}
	}
}

// take delivers the transactions of a response that are complete with it. Of a
// transaction that comes in fragments it keeps the first ones.
func (w *watcher) take(r received) error {
	if r.err != nil {
		return explain(w.ctx, r.err)
	}
	if r.response.WatchId != watchID {
		return nil // the answer to a second request: a sign of life
	}
	if err := refusal(r.response); err != nil {
		return err
	}
	for _, e := range r.response.Events {
		if len(w.pending) > 0 && w.pending[0].ModRevision != e.Kv.ModRevision {
			if err := w.deliver(); err != nil {
				return err
			}
		}
		if e.Kv.ModRevision >= w.next {
			w.pending = append(w.pending, w.event(e))
		}
	}
	if r.response.Fragment || len(w.pending) == 0 {
		return nil
	}
	return w.deliver()
}

func (w *watcher) event(e *mvccpb.Event) kvdb.Event {
	kv := w.store.keyValue(e.Kv)
	if e.Type == mvccpb.Event_DELETE {
		kv.Value = nil
		return kvdb.Event{KeyValue: kv, Deleted: true}
	}
	return kvdb.Event{KeyValue: kv}
}

// deliver waits for the reader to take what is one transaction.
func (w *watcher) deliver() error {
	batch := w.pending
	w.pending = nil
	slices.SortStableFunc(batch, func(a, b kvdb.Event) int { return strings.Compare(a.Key, b.Key) })
	w.next = batch[0].ModRevision + 1
	w.store.saw(w.known, batch[0].ModRevision)
	select {
	case w.events <- batch:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// why tells why the watch ended, with err or with its context; nil if its
// reader has ended it.
func (w *watcher) why(err error) error {
	var ours ending
	switch cause := context.Cause(w.ctx); {
	case cause == nil:
		return plainly(rpctypes.Error(err))
	case errors.As(cause, &ours):
		return ours.error
	default:
		return nil
	}
}
