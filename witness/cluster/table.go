// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

// table represents an immutable map. with returns a changed one without copying it. It
// links changes before the base, and merges them into a new base when there are as many
// of them as the base has entries.
type table[V any] struct {
	base    map[string]V
	newest  *change[V]
	changes int
}

// change holds the new value of one key.
type change[V any] struct {
	key    string
	value  V
	gone   bool
	before *change[V]
}

// minChanges is the least number of changes that are merged.
const minChanges = 16

// with returns the table with a value, or without one if gone is set.
func (t table[V]) with(key string, value V, gone bool) table[V] {
	t.newest = &change[V]{key: key, value: value, gone: gone, before: t.newest}
	if t.changes++; t.changes > max(len(t.base), minChanges) {
		return table[V]{base: t.all()}
	}
	return t
}

// all returns a copy of the entries.
func (t table[V]) all() map[string]V {
	all, seen := make(map[string]V, len(t.base)+t.changes), make(map[string]bool, t.changes)
	for c := t.newest; c != nil; c = c.before {
		if !seen[c.key] && !c.gone {
			all[c.key] = c.value
		}
		seen[c.key] = true
	}
	for key, value := range t.base {
		if !seen[key] {
			all[key] = value
		}
	}
	return all
}
