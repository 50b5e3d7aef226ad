// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

// maxStarts limits the restarts of a List.
const maxStarts = 5

// errTorn makes a List begin anew: its pages may be of different histories.
var errTorn = errors.New("the connection to etcd was lost meanwhile")

// Get implements kvdb.Store.
func (s *Store) Get(ctx context.Context, key string) (kv kvdb.KeyValue, found bool, err error) {
	if err := s.check(ctx, txn.CheckKey(key)); err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, err)
	}
	_, err = s.call(ctx, OpGet, func(ctx context.Context, etcd pb.KVClient) (*pb.ResponseHeader, error) {
		resp, err := etcd.Range(ctx, &pb.RangeRequest{Key: s.key(key)}, options()...)
		if found = err == nil && len(resp.Kvs) == 1; found {
			kv = s.keyValue(resp.Kvs[0])
		}
		return resp.GetHeader(), err
	})
	if err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q from etcd %v: %w", key, s.cfg.Endpoints, err)
	}
	return kv, found, nil
}

// Probe reads something small. It tells whether the store answers, and fails
// with ErrReset, once, if it finds that its past is not the one that was known.
func (s *Store) Probe(ctx context.Context) error {
	key, _ := s.rangeOf("")
	reset, err := s.call(ctx, OpProbe, func(ctx context.Context, etcd pb.KVClient) (*pb.ResponseHeader, error) {
		resp, err := etcd.Range(ctx, &pb.RangeRequest{Key: key, KeysOnly: true}, options()...)
		return resp.GetHeader(), err
	})
	if err := errors.Join(reset, err); err != nil {
		return fmt.Errorf("probe etcd %v: %w", s.cfg.Endpoints, err)
	}
	return nil
}

// List implements kvdb.Store. It begins anew, some times, if etcd compacts the
// revision that it reads.
func (s *Store) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	given := prefixes
	prefixes, err := txn.Prefixes(prefixes)
	if err := s.check(ctx, err); err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", given, err)
	}
	for range maxStarts {
		l := &listing{store: s, prefixes: prefixes}
		if err = l.read(ctx); err == nil {
			return slices.Concat(l.found...), l.rev, nil
		}
		if !errors.Is(err, kvdb.ErrCompacted) && !errors.Is(err, rpctypes.ErrFutureRev) && !errors.Is(err, errTorn) {
			break
		}
	}
	return nil, 0, fmt.Errorf("list %q from etcd %v: %w", given, s.cfg.Endpoints, err)
}

// check answers invalid, unless there is a reason to do nothing at all.
func (s *Store) check(ctx context.Context, invalid error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return err
	}
	return invalid
}

func (s *Store) keyValue(kv *mvccpb.KeyValue) kvdb.KeyValue {
	return kvdb.KeyValue{Key: string(kv.Key[len(s.cfg.Prefix):]), Value: kv.Value, ModRevision: kv.ModRevision}
}

// listing is a List under way.
type listing struct {
	store    *Store
	prefixes []string
	found    [][]kvdb.KeyValue // by prefix
	rev      int64
	lines    int // how often connections had been replaced then
}

// read asks for the first page of each prefix at once, which sets the
// revision, and for all others, prefix by prefix, at that revision.
func (l *listing) read(ctx context.Context) error {
	more, err := l.first(ctx)
	for i := 0; i < len(more) && err == nil; i++ {
		for more[i] && err == nil {
			more[i], err = l.next(ctx, i)
		}
	}
	return err
}

func (l *listing) first(ctx context.Context) (more []bool, err error) {
	req := &pb.TxnRequest{}
	limit := int64(max(1, l.store.cfg.PageSize/max(1, len(l.prefixes))))
	for _, prefix := range l.prefixes {
		key, end := l.store.rangeOf(prefix)
		req.Success = append(req.Success, reads(&pb.RangeRequest{Key: key, RangeEnd: end, Limit: limit}))
	}
	if len(l.prefixes) == 0 {
		req.Success = append(req.Success, l.store.readsNothing())
	}
	_, err = l.store.call(ctx, OpList, func(ctx context.Context, etcd pb.KVClient) (*pb.ResponseHeader, error) {
		resp, err := etcd.Txn(ctx, req, options()...)
		if err != nil {
			return nil, err
		}
		l.rev, l.lines = resp.Header.Revision, l.store.lines.replaced()
		for _, page := range resp.Responses[:len(l.prefixes)] {
			l.found = append(l.found, l.store.keyValues(page.GetResponseRange()))
			more = append(more, page.GetResponseRange().More)
		}
		return resp.Header, nil
	})
	return more, err
}

func (l *listing) next(ctx context.Context, i int) (more bool, err error) {
	_, end := l.store.rangeOf(l.prefixes[i])
	last := l.found[i][len(l.found[i])-1].Key
	req := &pb.RangeRequest{
		Key:      l.store.key(last + "\x00"),
		RangeEnd: end,
		Revision: l.rev,
		Limit:    int64(l.store.cfg.PageSize),
	}
	_, err = l.store.call(ctx, OpList, func(ctx context.Context, etcd pb.KVClient) (*pb.ResponseHeader, error) {
		resp, err := etcd.Range(ctx, req, options()...)
		if err != nil {
			return nil, err
		}
		if l.store.lines.replaced() != l.lines {
			return resp.Header, errTorn
		}
		l.found[i] = append(l.found[i], l.store.keyValues(resp)...)
		more = resp.More
		return resp.Header, nil
	})
	return more, err
}

func (s *Store) keyValues(page *pb.RangeResponse) []kvdb.KeyValue {
	kvs := make([]kvdb.KeyValue, 0, len(page.Kvs))
	for _, kv := range page.Kvs {
		kvs = append(kvs, s.keyValue(kv))
	}
	return kvs
}

// reads is a read of a transaction.
func reads(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// readsNothing is the cheapest read. Without any read or write a transaction
// would be answered by whatever member it reaches, linearizable or not.
func (s *Store) readsNothing() *pb.RequestOp {
	key, _ := s.rangeOf("")
	return reads(&pb.RangeRequest{Key: key, KeysOnly: true})
}
