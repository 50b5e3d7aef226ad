// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap

import (
	"maps"
	"sync"
	"time"
)

// Cache holds the last views of a map. The zero value is empty. One view is made at a time, and
// serves for four times as long as it took to make. So the callers of a network, however many
// they are, use a fifth of one core for each view that they look at.
type Cache struct {
	mu  sync.Mutex // held while a view is made
	all map[string]view
}

type view struct {
	answer  any
	expires time.Time
}

// viewsMost limits the views that are kept. viewReuse is the time for which one serves, in
// times of the time that it took.
const (
	viewsMost = 32
	viewReuse = 4
)

// Get returns the view of a key, which make makes unless there is one. Any goroutine may
// call it.
func (c *Cache) Get(key string, now func() time.Time, make func() (any, error)) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begin := now()
	if old, ok := c.all[key]; ok && begin.Before(old.expires) {
		return old.answer, nil
	}
	maps.DeleteFunc(c.all, func(_ string, old view) bool { return !begin.Before(old.expires) })
	answer, err := make()
	if err != nil {
		return nil, err
	}
	end := now()
	if c.all == nil {
		c.all = map[string]view{}
	}
	if len(c.all) < viewsMost {
		c.all[key] = view{answer, end.Add(viewReuse * end.Sub(begin))}
	}
	return answer, nil
}
