// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cadastre/cadastre/kvdb"
)

// request is one request to etcd; header is nil if there was no answer.
type request func(ctx context.Context, kv pb.KVClient) (header *pb.ResponseHeader, err error)

// call sends a request and learns from the header of its answer, which must be
// linearizable. The error is the request's own, explained; reset tells that
// the answer was from a store with another past.
func (s *Store) call(ctx context.Context, op string, send request) (reset, err error) {
	known, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.work.Done()
	began := time.Now()
	reset, err = s.send(ctx, known, send)
	s.observe(op, began, err)
	return reset, err
}

func (s *Store) send(ctx context.Context, known past, send request) (reset, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(kvdb.ErrClosed) })()
	ctx, done := context.WithTimeoutCause(clientv3.WithRequireLeader(ctx), s.cfg.RequestTimeout, s.noAnswer())
	defer done()
	client, err := s.client(ctx)
	if err != nil {
		return nil, explain(ctx, err)
	}
	header, err := send(ctx, clientv3.RetryKVClient(client))
	if header != nil {
		reset = s.learn(known, header)
	}
	return reset, explain(ctx, err)
}

// noAnswer returns the error of a request that etcd does not answer.
func (s *Store) noAnswer() error {
	return fmt.Errorf("no answer within %v: %w", s.cfg.RequestTimeout, context.DeadlineExceeded)
}

// begin counts what the caller is about to do, unless there is a reason not to,
// and answers what was known before.
func (s *Store) begin(ctx context.Context) (past, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return past{}, err
	}
	s.work.Add(1)
	return s.past, nil
}

// ready tells why nothing can be done now.
func (s *Store) ready(ctx context.Context) error {
	if s.closed {
		return kvdb.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (s *Store) observe(op string, began time.Time, err error) {
	if s.cfg.Observe != nil {
		s.cfg.Observe(op, time.Since(began), err)
	}
}

// key is a key or prefix of the store as it is called in etcd.
func (s *Store) key(k string) []byte { return []byte(s.cfg.Prefix + k) }

// rangeOf is the first key of a prefix and the first one behind it.
func (s *Store) rangeOf(prefix string) (key, end []byte) {
	if prefix = s.cfg.Prefix + prefix; prefix == "" {
		return []byte{0}, []byte{0} // in etcd's protocol: all keys
	}
	return []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))
}
