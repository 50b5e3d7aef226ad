// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"reflect"
	"strings"
	"time"
)

// place is a key of the file.
type place struct {
	shown  string // for people: nodeConfig[2].gateway
	path   string // the same for all items of a list: nodeConfig[].gateway
	unused bool
}

func (p place) child(f field) place {
	return place{join(p.shown, f.name), join(p.path, f.name), p.unused || f.unused}
}

func (p place) item(i int) place {
	return place{p.shown + "[" + decimal(i) + "]", p.path + "[]", p.unused}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// field is what the tags of one struct field say.
type field struct {
	name    string
	index   []int
	typ     reflect.Type
	unused  bool
	minutes bool // a whole number of minutes rather than a duration
}

// fields are the keys of a struct, those of embedded structs among them.
func fields(t reflect.Type) []field {
	var all []field
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue
		}
		conf := f.Tag.Get("conf")
		all = append(all, field{f.Tag.Get("json"), f.Index, f.Type, conf == "unused", conf == "minutes"})
	}
	return all
}

// known is one key that a file may have.
type known struct {
	place
	section bool // it has keys of its own
}

func knownKeys() []known { return keysBelow(place{}, reflect.TypeFor[rawConfig]()) }

func keysBelow(at place, t reflect.Type) []known {
	var all []known
	for _, f := range fields(t) {
		where, typ := at.child(f), f.typ
		inner := where
		if typ.Kind() == reflect.Slice {
			typ, inner = typ.Elem(), where.item(0)
		}
		section := typ.Kind() == reflect.Struct && typ != reflect.TypeFor[time.Duration]()
		all = append(all, known{where, section})
		if section {
			all = append(all, keysBelow(inner, typ)...)
		}
	}
	return all
}

// nearest is the known key that somebody who wrote key below parent most
// likely meant. The right key in the wrong section is nearer than any other.
func nearest(parent, key string) string {
	best, least := "", 0
	for _, k := range knownKeys() {
		above, last := "", k.path
		if i := strings.LastIndex(k.path, "."); i >= 0 {
			above, last = k.path[:i], k.path[i+1:]
		}
		cost := 2 * editDistance(strings.ToLower(key), strings.ToLower(last))
		if above != parent {
			cost++
		}
		if best == "" || cost < least {
			best, least = k.path, cost
		}
	}
	return best
}

// editDistance is the number of bytes to insert, remove or replace between a
// and b. Only the beginning of a very long key is looked at.
func editDistance(a, b string) int {
	const most = 64
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
