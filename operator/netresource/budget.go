// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cadastre/cadastre/operator/runner"
)

// budget is the token bucket of all calls to the provider.
type budget struct {
	now   func() time.Time
	every time.Duration // between two tokens; 0: no limit
	burst int

	mu   sync.Mutex
	next time.Time // when the bucket would be full again, less burst tokens: the time of the next token
}

func newBudget(qps float64, burst int, now func() time.Time) *budget {
	b := &budget{now: now, burst: max(burst, 1)}
	if qps > 0 {
		b.every = time.Duration(float64(time.Second) / qps)
	}
	return b
}

// take waits for a token.
func (b *budget) take(ctx context.Context) error {
	if b.every == 0 {
		return ctx.Err()
	}
	b.mu.Lock()
	now := b.now()
	if full := now.Add(-time.Duration(b.burst-1) * b.every); b.next.Before(full) {
		b.next = full
	}
	wait := b.next.Sub(now)
	b.next = b.next.Add(b.every)
	b.mu.Unlock()
	if err := runner.Wait(ctx, wait); err != nil {
		b.mu.Lock()
		b.next = b.next.Add(-b.every)
		b.mu.Unlock()
		return fmt.Errorf("wait for a turn to call the provider: %w", err)
	}
	return nil
}
