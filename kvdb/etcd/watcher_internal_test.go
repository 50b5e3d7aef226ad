// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	etcdtxn "go.etcd.io/etcd/server/v3/etcdserver/txn"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

// script is a stream that brings some responses and then ends.
type script struct {
	pb.Watch_WatchClient
	responses []*pb.WatchResponse
	end       error
}

func (s *script) Send(*pb.WatchRequest) error { return nil }

func (s *script) Recv() (*pb.WatchResponse, error) {
	if len(s.responses) == 0 {
		return nil, s.end
	}
	r := s.responses[0]
	s.responses = s.responses[1:]
	return r, nil
}

// response is one with events "key@revision"; a key in capitals is deleted.
func response(events ...string) *pb.WatchResponse {
	r := &pb.WatchResponse{WatchId: watchID, Header: header(1, 100)}
	for _, e := range events {
		var key byte
		var rev int64
		_, _ = fmt.Sscanf(e, "%c@%d", &key, &rev)
		event := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte{'/', key}, Value: []byte("v"), ModRevision: rev}}
		if key < 'a' {
			event.Type = mvccpb.Event_DELETE
		}
		r.Events = append(r.Events, event)
	}
	return r
}

func with(r *pb.WatchResponse, change func(*pb.WatchResponse)) *pb.WatchResponse {
	change(r)
	return r
}

func fragment(r *pb.WatchResponse) { r.Fragment = true }

// What etcd sends, in whatever portions, becomes one batch a transaction.
func TestBatches(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name      string
		from      int64
		responses []*pb.WatchResponse
		want      []string
		err       error
	}{
		{"nothing", 1, nil, nil, broken},
		{"one transaction", 1, []*pb.WatchResponse{response("a@5")}, []string{"[a]@5"}, broken},
		{"in order of keys", 1, []*pb.WatchResponse{response("c@5", "A@5", "b@5")}, []string{"[A b c]@5"}, broken},
		{"several in one response", 1, []*pb.WatchResponse{response("a@5", "b@5", "a@6", "a@9", "c@9")}, []string{"[a b]@5", "[a]@6", "[a c]@9"}, broken},
		{"several responses", 1, []*pb.WatchResponse{response("a@5"), response("a@6")}, []string{"[a]@5", "[a]@6"}, broken},
		{"a transaction in fragments", 1, []*pb.WatchResponse{
			with(response("a@5", "c@6"), fragment), with(response("b@6"), fragment), response("a@6", "a@7"),
		}, []string{"[a]@5", "[a b c]@6", "[a]@7"}, broken},
		{"an empty last fragment", 1, []*pb.WatchResponse{with(response("a@5"), fragment), response(), response("b@6")}, []string{"[a]@5", "[b]@6"}, broken},
		{"half of a transaction", 1, []*pb.WatchResponse{with(response("a@5", "b@6"), fragment)}, []string{"[a]@5"}, broken},
		{"before it was to begin", 6, []*pb.WatchResponse{response("a@4", "a@5", "b@6"), response("c@7")}, []string{"[b]@6", "[c]@7"}, broken},
		{"all before it was to begin", 6, []*pb.WatchResponse{response("a@4", "a@5"), response("c@7")}, []string{"[c]@7"}, broken},
		{"a second time", 1, []*pb.WatchResponse{response("a@5"), response("a@5", "a@6")}, []string{"[a]@5", "[a]@6"}, broken},
		{"progress", 1, []*pb.WatchResponse{response(), response("a@5")}, []string{"[a]@5"}, broken},
		{"a sign of life", 1, []*pb.WatchResponse{
			with(response(), func(r *pb.WatchResponse) {
				r.WatchId, r.Created, r.Canceled, r.CancelReason = -1, true, true, "duplicate"
			}),
			response("a@5"),
		}, []string{"[a]@5"}, broken},
		{"compacted", 1, []*pb.WatchResponse{
			response("a@5"), with(response(), func(r *pb.WatchResponse) { r.CompactRevision, r.Canceled = 9, true }),
		}, []string{"[a]@5"}, kvdb.ErrCompacted},
		{"compacted, not yet cancelled", 1, []*pb.WatchResponse{with(response(), func(r *pb.WatchResponse) { r.CompactRevision = 9 })}, nil, kvdb.ErrCompacted},
		{"cancelled", 1, []*pb.WatchResponse{
			with(response(), func(r *pb.WatchResponse) { r.Canceled, r.CancelReason = true, "for a reason" }), response("a@5"),
		}, nil, errors.New("etcd ended the watch: for a reason")},
		{"the end of the stream", 1, []*pb.WatchResponse{response("a@5")}, []string{"[a]@5"}, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			stream := &script{responses: c.responses, end: broken}
			if errors.Is(c.err, io.EOF) {
				stream.end = io.EOF
			}
			w := scripted(t, stream, c.from)
			go w.run()
			var got []string
			for batch := range w.Events() {
				var keys []string
				for _, e := range batch {
					keys = append(keys, e.Key)
					g.Expect(e.Deleted).To(Equal(e.Value == nil))
					g.Expect(e.Deleted).To(Equal(e.Key < "a"))
				}
				got = append(got, fmt.Sprintf("%v@%d", keys, batch[0].ModRevision))
			}
			g.Expect(got).To(Equal(c.want))
			g.Expect(w.Err()).To(MatchError(ContainSubstring(c.err.Error())))
			g.Expect(errors.Is(w.Err(), kvdb.ErrCompacted)).To(Equal(errors.Is(c.err, kvdb.ErrCompacted)))
		})
	}
}

// scripted is a watcher of a store that is nowhere.
func scripted(t *testing.T, stream pb.Watch_WatchClient, from int64) *watcher {
	t.Helper()
	g := NewWithT(t)
	s, err := Open(Config{Endpoints: []string{"127.0.0.1:1"}, Prefix: "/", KeepAlive: time.Minute})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.Close() })
	w := &watcher{store: s, next: from, stream: stream, events: make(chan []kvdb.Event), ended: make(chan struct{})}
	w.ctx, w.stop = context.WithCancelCause(t.Context())
	g.Expect(s.enter(w)).To(Succeed())
	return w
}

// A watch goes on where what is known of the store ends, not the member.
func TestFirstRevision(t *testing.T) {
	for name, c := range map[string]struct {
		from   int64
		known  past
		header *pb.ResponseHeader
		want   int64
		err    error
	}{
		"from now on":                      {0, past{}, header(1, 8), 9, nil},
		"from now on, the member is ahead": {0, past{cluster: 1, rev: 5}, header(1, 8), 9, nil},
		"from now on, it is behind":        {0, past{cluster: 1, rev: 10}, header(1, 8), 11, nil},
		"told":                             {6, past{cluster: 1, rev: 5}, header(1, 8), 6, nil},
		"told, before anything was read":   {6, past{lines: 1}, header(1, 8), 6, nil},
		"told, of the last connection":     {6, past{cluster: 1, rev: 9, since: 5}, header(1, 8), 6, nil},
		"told, of one before the last":     {6, past{cluster: 1, rev: 9, since: 6}, header(1, 8), 6, errLost},
		"told, the connection is new":      {6, past{cluster: 1, rev: 5, lines: -1}, header(1, 8), 6, errLost},
		"told, still to come":              {16, past{cluster: 1, rev: 8}, header(1, 8), 16, nil},
		"told, to come after a reset":      {16, past{cluster: 1, rev: 8, old: 12}, header(1, 8), 16, nil},
		"told, of before a reset":          {10, past{cluster: 1, rev: 8, old: 12}, header(1, 8), 10, ErrReset},
		"another cluster":                  {6, past{cluster: 1, rev: 5}, header(2, 8), 6, ErrReset},
		"from now on, another cluster":     {0, past{cluster: 1, rev: 5}, header(2, 8), 0, ErrReset},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := scripted(t, nil, c.from)
			defer w.store.leave(w)
			w.known, w.store.past = c.known, c.known
			err := w.recognize(c.header)
			if c.err == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(c.err))
			}
			g.Expect(w.next).To(Equal(c.want))
		})
	}
}

// etcd answers a transaction that neither reads nor writes from any member.
func TestTransactionsAreLinearizable(t *testing.T) {
	g := NewWithT(t)
	s, err := Open(Config{Endpoints: []string{"127.0.0.1:1"}})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = s.Close() }()
	for _, ops := range [][]kvdb.Op{nil, {kvdb.Put("a", nil)}, {kvdb.Delete("a")}} {
		checked, err := txn.New([]kvdb.Cond{kvdb.Absent("a")}, ops)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(etcdtxn.IsTxnSerializable(s.request(checked))).To(BeFalse())
	}
}

// A batch without a reader does not outlive the watch.
func TestCloseLeavesNothingBehind(t *testing.T) {
	g := NewWithT(t)
	w := scripted(t, &script{responses: []*pb.WatchResponse{response("a@5"), response("a@6")}, end: io.EOF}, 1)
	go w.run()
	g.Eventually(func() int64 { w.store.mu.Lock(); defer w.store.mu.Unlock(); return w.store.past.rev }).Should(Equal(int64(5)))
	w.Close()
	w.Close()
	g.Expect(w.Events()).To(BeClosed())
	g.Expect(w.Err()).NotTo(HaveOccurred())
	g.Expect(w.store.watches).To(BeEmpty())
}
