// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// transacts is a store whose transactions are changed before they are applied.
func transacts(change func([]kvdb.Cond, []kvdb.Op) ([]kvdb.Cond, []kvdb.Op)) func(kvdb.Store) kvdb.Store {
	return func(s kvdb.Store) kvdb.Store {
		return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
			conds, ops = change(conds, ops)
			return s.Txn(ctx, conds, ops)
		}}
	}
}

// answers is a store that applies transactions well but answers something else.
func answers(change func(rev int64, err error) (int64, error)) func(kvdb.Store) kvdb.Store {
	return func(s kvdb.Store) kvdb.Store {
		return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
			return change(s.Txn(ctx, conds, ops))
		}}
	}
}

// wrongWrites are stores that apply something else.
func wrongWrites() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"ignores conditions": transacts(func(_ []kvdb.Cond, ops []kvdb.Op) ([]kvdb.Cond, []kvdb.Op) { return nil, ops }),
		"checks the first condition only": transacts(func(conds []kvdb.Cond, ops []kvdb.Op) ([]kvdb.Cond, []kvdb.Op) {
			return conds[:min(len(conds), 1)], ops
		}),
		"ignores deletions": transacts(func(conds []kvdb.Cond, ops []kvdb.Op) ([]kvdb.Cond, []kvdb.Op) {
			return conds, slices.DeleteFunc(slices.Clone(ops), func(op kvdb.Op) bool { return op.Delete })
		}),
		"stores no empty value": transacts(func(conds []kvdb.Cond, ops []kvdb.Op) ([]kvdb.Cond, []kvdb.Op) {
			return conds, slices.DeleteFunc(slices.Clone(ops), func(op kvdb.Op) bool { return len(op.Value) == 0 && !op.Delete })
		}),
		"forgets operations beyond its limit": transacts(func(conds []kvdb.Cond, ops []kvdb.Op) ([]kvdb.Cond, []kvdb.Op) {
			return conds, ops[:min(len(ops), kvdb.MaxOps)]
		}),
		"takes too few operations": answersIf(func(ops []kvdb.Op) bool { return len(ops) >= kvdb.MaxOps }, kvdb.ErrTooManyOps),
		"lets the last of two writes win": transacts(func(conds []kvdb.Cond, ops []kvdb.Op) ([]kvdb.Cond, []kvdb.Op) {
			return conds, slices.CompactFunc(slices.Clone(ops), func(a, b kvdb.Op) bool { return a.Key == b.Key })
		}),
	}
}

// wrongAnswers are stores whose transactions are answered wrongly, or are none.
func wrongAnswers() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"minds deleting what is not there": deleteMinder,
		"answers revision 0":               answers(func(_ int64, err error) (int64, error) { return 0, err }),
		"answers what did not hold with success": answers(func(rev int64, err error) (int64, error) {
			if errors.Is(err, kvdb.ErrConditions) {
				err = nil
			}
			return rev, err
		}),
		"takes a revision in vain": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
				_, _ = s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("~", nil)})
				_, _ = s.Txn(ctx, nil, []kvdb.Op{kvdb.Delete("~")})
				return s.Txn(ctx, conds, ops)
			}}
		},
		"applies one operation at a time": func(s kvdb.Store) kvdb.Store {
			return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (rev int64, err error) {
				rev, err = s.Txn(ctx, conds, nil)
				for i := 0; i < len(ops) && err == nil; i++ {
					rev, err = s.Txn(ctx, nil, ops[i:i+1])
				}
				return rev, err
			}}
		},
		"checks, then writes":       checksThenWrites,
		"keeps the caller's slices": aliases,
	}
}

// checksThenWrites lets two callers check before either writes.
func checksThenWrites(s kvdb.Store) kvdb.Store {
	meet := make(chan struct{})
	return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
		if rev, err := s.Txn(ctx, conds, nil); err != nil {
			return rev, err
		}
		select {
		case meet <- struct{}{}:
		case <-meet:
		case <-time.After(5 * time.Millisecond): // there may be no other
		}
		return s.Txn(ctx, nil, ops)
	}}
}

func answersIf(ill func([]kvdb.Op) bool, err error) func(kvdb.Store) kvdb.Store {
	return func(s kvdb.Store) kvdb.Store {
		return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
			if ill(ops) {
				return 0, err
			}
			return s.Txn(ctx, conds, ops)
		}}
	}
}

func deleteMinder(s kvdb.Store) kvdb.Store {
	return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
		for _, op := range ops {
			if _, found, _ := s.Get(ctx, op.Key); op.Delete && !found {
				return 0, errors.New("there is no such key")
			}
		}
		return s.Txn(ctx, conds, ops)
	}}
}

// aliases answers, as long as it is the caller's, the memory the caller passed.
func aliases(s kvdb.Store) kvdb.Store {
	var mu sync.Mutex
	passed := map[string][]byte{}
	return &broken{
		Store: s,
		txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, op := range ops {
				passed[op.Key] = op.Value
			}
			return s.Txn(ctx, conds, ops)
		},
		list: func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
			mu.Lock()
			defer mu.Unlock()
			kvs, rev, err := s.List(ctx, prefixes...)
			for i, kv := range kvs {
				kvs[i].Value = passed[kv.Key]
			}
			return kvs, rev, err
		},
	}
}
