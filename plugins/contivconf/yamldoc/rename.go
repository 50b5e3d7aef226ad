// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc

import (
	"maps"
	"slices"
	"strings"
)

// find returns the index of the field for a key, -1 if there is none.
func (d *Decoder) find(all []field, name string) int {
	return slices.IndexFunc(all, func(f field) bool { return d.same(f.name, name) })
}

func (d *Decoder) same(a, b string) bool {
	return a == b || !d.options.Exact && strings.EqualFold(a, b)
}

// rename returns keys with the keys that have a new name moved to it. A key that the
// file has by both names is a problem.
func (d *Decoder) rename(at place, keys map[string]any, all []field) map[string]any {
	if d.options.Renamed == nil {
		return keys
	}
	moved := maps.Clone(keys)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if d.find(all, name) >= 0 {
			continue
		}
		target, ok := d.options.Renamed(at.path, name)
		if !ok {
			continue
		}
		delete(moved, name)
		if keys[name] != nil {
			d.move(at, moved, join(at.shown, name), target, keys[name])
		}
	}
	return moved
}

// move puts value, which the file has at the path former, at the path target below keys.
func (d *Decoder) move(at place, keys map[string]any, former, target string, value any) {
	section, rest, nested := strings.Cut(target, ".")
	written, present := d.written(keys, section)
	if nested {
		below, ok := keys[written].(map[string]any)
		switch {
		case present && keys[written] != nil && !ok:
			return // object reports that this is not a section
		case !present || below == nil:
			below = map[string]any{}
		default:
			below = maps.Clone(below)
		}
		keys[written] = below
		d.move(place{join(at.shown, section), join(at.path, section), at.unused}, below, former, rest, value)
		return
	}
	field := join(at.shown, section)
	if present {
		first := join(at.shown, written)
		if other := d.Renamed[field]; other != "" {
			first = other
		}
		d.Add(RuleDuplicateKey, field, "", "is given twice, as %q and as %q: keep one", first, former)
		return
	}
	keys[section] = value
	d.Renamed[field] = former
}

// written returns the key of the file that stands for the field name.
func (d *Decoder) written(keys map[string]any, name string) (key string, present bool) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if d.same(name, key) {
			return key, true
		}
	}
	return name, false
}
