// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import "sync"

// before excludes what is done before the first resync from that resync.
type before struct {
	mu   sync.RWMutex
	over bool // a resync has succeeded, or is under way
}

func (b *before) end(over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = over
}

// BeforeResync calls f if no resync has succeeded and none is under way, and lets none begin
// before f returns. The southbound has no values then, and what f changes is what the first
// resync reads. It reports whether it has called f, and returns the error of f. f must not
// call it; calls exclude the first resync, not each other.
func (c *Controller) BeforeResync(f func() error) (called bool, err error) {
	c.before.mu.RLock()
	defer c.before.mu.RUnlock()
	if c.before.over {
		return false, nil
	}
	return true, f()
}
