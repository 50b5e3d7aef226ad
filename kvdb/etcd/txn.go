// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

// Txn implements kvdb.Store. It is sent once, whatever becomes of it.
func (s *Store) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (rev int64, err error) {
	t, err := txn.New(conds, ops)
	if err := s.check(ctx, err); err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	req := s.request(t)
	_, err = s.call(ctx, OpTxn, func(ctx context.Context, etcd pb.KVClient) (*pb.ResponseHeader, error) {
		resp, err := etcd.Txn(ctx, req, options()...)
		if err != nil {
			return nil, err
		}
		if rev = resp.Header.Revision; !resp.Succeeded {
			return resp.Header, kvdb.ErrConditions
		}
		return resp.Header, nil
	})
	if err != nil {
		return 0, fmt.Errorf("apply transaction to etcd %v: %w", s.cfg.Endpoints, err)
	}
	return rev, nil
}

// request is a transaction as etcd takes it.
func (s *Store) request(t *txn.Txn) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for _, c := range t.Conds() {
		// A key that is not stored has revision 0, for etcd as for us.
		req.Compare = append(req.Compare, &pb.Compare{
			Key:         s.key(c.Key),
			Target:      pb.Compare_MOD,
			Result:      pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: c.ModRevision},
		})
	}
	for _, op := range t.Ops() {
		req.Success = append(req.Success, s.write(op))
	}
	if len(t.Ops()) == 0 {
		req.Success = append(req.Success, s.readsNothing())
	}
	return req
}

func (s *Store) write(op kvdb.Op) *pb.RequestOp {
	if op.Delete {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
			RequestDeleteRange: &pb.DeleteRangeRequest{Key: s.key(op.Key)},
		}}
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: s.key(op.Key), Value: op.Value},
	}}
}
