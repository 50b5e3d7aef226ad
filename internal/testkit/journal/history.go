// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/kvdb"
)

// historyPrefix begins the keys of the ledger's history, which Load leaves out.
const historyPrefix = "H"

// HistoryBounds implements ledger.HistoryReader.
func (m *Memory) HistoryBounds(context.Context) (oldest, newest string, err error) {
	for _, r := range m.snapshot() {
		if strings.HasPrefix(r.Key, historyPrefix) {
			if oldest == "" {
				oldest = r.Key
			}
			newest = r.Key
		}
	}
	return oldest, newest, nil
}

// ReadHistory implements ledger.HistoryReader.
func (m *Memory) ReadHistory(_ context.Context, end string, n int) (found []kvdb.KeyValue, err error) {
	for _, r := range slices.Backward(m.snapshot()) {
		if strings.HasPrefix(r.Key, historyPrefix) && r.Key < end && len(found) < n {
			found = append(found, r)
		}
	}
	return found, nil
}
