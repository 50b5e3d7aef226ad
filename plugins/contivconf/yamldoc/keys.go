// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc

import (
	"reflect"
	"strconv"
	"time"
)

// Key is one key that a struct has a field for.
type Key struct {
	Path    string       // the same for all items of a list: nodeConfig[].gateway
	Type    reflect.Type // of the field
	Section bool         // it has keys of its own
	Unused  bool         // its value is accepted and changes nothing
}

// Keys returns the keys of a struct type, each section before the keys below it.
func Keys(t reflect.Type) []Key { return keysBelow(place{}, t) }

func keysBelow(at place, t reflect.Type) []Key {
	var all []Key
	for _, f := range fields(t) {
		where, typ := at.child(f), f.typ
		inner := where
		if typ.Kind() == reflect.Slice {
			typ, inner = typ.Elem(), where.item(0)
		}
		section := typ.Kind() == reflect.Struct && typ != reflect.TypeFor[time.Duration]()
		all = append(all, Key{where.path, f.typ, section, where.unused})
		if section {
			all = append(all, keysBelow(inner, typ)...)
		}
	}
	return all
}

// place is the position of one value in the file.
type place struct {
	shown  string // with the index of each list item: nodeConfig[2].gateway
	path   string // as in Key
	unused bool
}

func (p place) child(f field) place {
	return place{join(p.shown, f.name), join(p.path, f.name), p.unused || f.unused}
}

func (p place) item(i int) place {
	return place{p.shown + "[" + strconv.Itoa(i) + "]", p.path + "[]", p.unused}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// field holds the tags of one struct field.
type field struct {
	name    string
	index   []int
	typ     reflect.Type
	unused  bool
	minutes bool // a whole number of minutes rather than a duration
}

// fields returns the keys of a struct and of its embedded structs.
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
