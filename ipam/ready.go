// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"math"

	"github.com/cadastre/cadastre/ledger"
)

// Ready waits until an address of each family is free; of single addresses, as many
// as the NetResourceSet requires at the start. If ctx ends before, the error says
// what is missing.
func (m *IPAM) Ready(ctx context.Context) error {
	if m.broken != nil {
		return m.broken
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for the IPAM: %w", context.Cause(ctx))
	}
	for {
		m.change.Lock()
		missing, later := m.missing(), m.updated
		m.change.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("IPAM is not ready: %s: %w", missing, context.Cause(ctx))
		case <-later:
		}
	}
}

// missing returns what Ready waits for; "": nothing.
func (m *IPAM) missing() string {
	if !m.followsSets() {
		return ""
	}
	set := m.resources.set
	if set == nil && (m.mode == ClusterPool || len(m.stats()) == 0) {
		return fmt.Sprintf("NetResourceSet %q was not received yet", m.deps.Name)
	}
	if m.mode == Given {
		want := 1
		if set != nil && set.MinAllocate > 0 {
			want = set.MinAllocate
		} else if set != nil && set.PreAllocate > 0 {
			want = set.PreAllocate
		}
		if have := m.resources.ips.size(); set != nil && have < uint64(want) {
			return fmt.Sprintf("%d addresses are allocatable, want %d at the start", have, want)
		}
		return ""
	}
	for _, f := range m.families.both {
		if _, replaced := m.replaced(f); !replaced && m.allocatorOf(f) != nil && m.free(f) == 0 {
			return fmt.Sprintf("no pod CIDR has a free %s address", f)
		}
	}
	return ""
}

// add returns a + b, or the largest number.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// free returns the number of free addresses of a family.
func (m *IPAM) free(f ledger.Family) (n uint64) {
	for _, s := range m.stats() {
		if s.Family == f {
			n = add(n, s.Free)
		}
	}
	return n
}
