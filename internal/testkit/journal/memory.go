// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package journal has two implementations of the ledger's Journal for tests: Memory
// keeps its records until the process ends, and Faulty fails planned commits of another
// journal. The durable journal is in kvdb/bolt. All pass journaltest.Run.
//
// Any goroutine may call a Memory. A commit that fails has changed nothing, unless the
// planned fault is Tear.
package journal

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// Memory is a journal in memory. Use NewMemory; any goroutine may call it.
type Memory struct {
	mu      sync.Mutex
	records map[string][]byte
	commits int
}

// NewMemory returns a empty journal.
func NewMemory() *Memory { return &Memory{records: map[string][]byte{}} }

// Load calls f for every record in the order of their keys.
func (m *Memory) Load(ctx context.Context, f func(kvdb.KeyValue) error) error {
	for _, r := range m.snapshot() {
		if strings.HasPrefix(r.Key, historyPrefix) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("load the journal: %w", context.Cause(ctx))
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// Commit applies all ops.
func (m *Memory) Commit(ctx context.Context, ops []kvdb.Op) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("commit to the journal: %w", context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commits++
	for _, op := range ops {
		if op.Delete {
			delete(m.records, op.Key)
		} else {
			m.records[op.Key] = bytes.Clone(op.Value)
		}
	}
	return nil
}

// Commits returns the number of commits that were applied.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Clone returns an independent journal with the same records, as after a crash now.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Memory{records: maps.Clone(m.records)}
}

func (m *Memory) snapshot() []kvdb.KeyValue {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []kvdb.KeyValue
	for _, k := range slices.Sorted(maps.Keys(m.records)) {
		all = append(all, kvdb.KeyValue{Key: k, Value: m.records[k]})
	}
	return all
}
