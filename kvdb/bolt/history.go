// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// historyPrefix begins the keys of the ledger's history in the ops of a commit. In the
// bucket of the history they are stored without it.
const historyPrefix = "H"

// createHistory returns the table of the history, which it makes if it is missing.
func createHistory(tx *bbolt.Tx) (table, error) {
	t, err := createTable(tx, historyBucket)
	if err == nil {
		t.b.FillPercent = 1 // the keys ascend
	}
	return t, err
}

// HistoryBounds returns the keys of the oldest and of the newest entry of the ledger's
// history, "" if there are none.
func (j *Journal) HistoryBounds(context.Context) (oldest, newest string, err error) {
	err = j.f.view(func(tx *bbolt.Tx) error {
		oldest, newest = "", ""
		t := openTable(tx, historyBucket)
		if t.b == nil {
			return nil
		}
		c := t.b.Cursor()
		if k, _ := c.First(); k != nil {
			oldest = historyPrefix + string(k)
		}
		if k, _ := c.Last(); k != nil {
			newest = historyPrefix + string(k)
		}
		return nil
	})
	if err != nil {
		return "", "", fmt.Errorf("database %s: %w", j.f.path, err)
	}
	return oldest, newest, nil
}

// ReadHistory returns at most n entries whose keys are lower than end, the highest key
// first. An entry that does not fit its checksum is an error.
func (j *Journal) ReadHistory(ctx context.Context, end string, n int) (found []kvdb.KeyValue, err error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("read the history: %w", context.Cause(ctx))
	}
	limit := []byte(strings.TrimPrefix(end, historyPrefix))
	err = j.f.view(func(tx *bbolt.Tx) error {
		found = nil
		t := openTable(tx, historyBucket)
		if t.b == nil {
			return nil
		}
		c := t.b.Cursor()
		k, raw := c.Seek(limit)
		if k == nil {
			k, raw = c.Last()
		}
		for ; k != nil && len(found) < n; k, raw = c.Prev() {
			if bytes.Compare(k, limit) >= 0 {
				continue
			}
			v, err := unseal(historyBucket, k, raw)
			if err != nil {
				return err
			}
			found = append(found, kvdb.KeyValue{Key: historyPrefix + string(k), Value: bytes.Clone(v)})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", j.f.path, err)
	}
	return found, nil
}
