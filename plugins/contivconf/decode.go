// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The YAML decoder stops at the first value of a wrong type and at the first
// unknown key, and does not say where that key is; this one goes on, knows the
// full path, and notes which keys are there.

// object fills the fields of the struct into.
func (r *reading) object(at place, value any, into reflect.Value) {
	keys, ok := value.(map[string]any)
	if !ok {
		r.wrongType(at, value, "a section with keys of its own")
		return
	}
	names, all := map[string]string{}, fields(into.Type())
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		i := slices.IndexFunc(all, func(f field) bool { return strings.EqualFold(f.name, name) })
		if i < 0 {
			r.problems.add(RuleUnknownKey, join(at.shown, printable(name)), "", "unknown key; the nearest known one is %q", nearest(at.path, name))
			continue
		}
		f := all[i]
		where := at.child(f)
		if first, twice := names[f.name]; twice {
			r.problems.add(RuleDuplicateKey, where.shown, "", "given twice, as %q and as %q: keep one", first, name)
		}
		names[f.name] = name
		r.value(where, keys[name], into.FieldByIndex(f.index), f.minutes)
	}
}

// value fills one field; a key without a value is as good as none.
func (r *reading) value(at place, value any, into reflect.Value, minutes bool) {
	if value == nil {
		return
	}
	switch {
	case into.Kind() == reflect.Struct:
		r.object(at, value, into)
	case into.Kind() == reflect.Slice:
		r.list(at, value, into)
	case into.Type() == reflect.TypeFor[time.Duration]():
		r.mark(at)
		r.duration(at, value, into, minutes)
	default:
		r.mark(at)
		r.scalar(at, value, into)
	}
}

func (r *reading) mark(at place) {
	r.given[at.path] = true
	if at.unused {
		r.unused[at.path] = true
	}
}

func (r *reading) list(at place, value any, into reflect.Value) {
	items, ok := value.([]any)
	if !ok {
		r.wrongType(at, value, "a list")
		return
	}
	scalars := into.Type().Elem().Kind() != reflect.Struct
	if scalars {
		r.mark(at)
	}
	if len(items) == 0 {
		into.SetZero()
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(items), len(items)))
	for i, item := range items {
		if scalars {
			r.scalar(at.item(i), item, into.Index(i))
		} else {
			r.value(at.item(i), item, into.Index(i), false)
		}
	}
}

func (r *reading) scalar(at place, value any, into reflect.Value) {
	number, isNumber := value.(json.Number)
	switch into.Kind() {
	case reflect.Bool:
		b, ok := value.(bool)
		if !ok {
			r.wrongType(at, value, "true or false")
		}
		into.SetBool(b)
	case reflect.Int:
		n, err := strconv.ParseInt(number.String(), 10, 32)
		if err != nil || !isNumber {
			r.wrongType(at, value, "a whole number")
		}
		into.SetInt(n)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		bits := into.Type().Bits()
		n, err := strconv.ParseUint(number.String(), 10, bits)
		if err != nil || !isNumber {
			r.wrongType(at, value, fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<bits-1))
		}
		into.SetUint(n)
	default:
		s, ok := text(value)
		if !ok {
			r.wrongType(at, value, "a text")
		}
		into.SetString(s)
	}
}

// duration reads "5s". A bare number counts nanoseconds, as Contiv writes
// them, or minutes where the key is in minutes.
func (r *reading) duration(at place, value any, into reflect.Value, minutes bool) {
	number, isNumber := value.(json.Number)
	n, err := number.Int64()
	whole := isNumber && err == nil
	if minutes {
		if most := int64(1<<63-1) / int64(time.Minute); !whole || n > most || n < -most {
			r.wrongType(at, value, "a whole number of minutes")
			return
		}
		into.SetInt(n * int64(time.Minute))
		return
	}
	if whole {
		into.SetInt(n)
		return
	}
	s, _ := value.(string)
	d, err := time.ParseDuration(s)
	if err != nil {
		shown, _ := text(value)
		r.problems.add(RuleDuration, at.shown, shown, "is not a duration: write a number with its unit, such as \"5s\" or \"1m30s\"")
		return
	}
	into.SetInt(int64(d))
}

func (r *reading) wrongType(at place, value any, right string) {
	shown, _ := text(value)
	switch value.(type) {
	case string:
		right += ", not text"
	case []any:
		right += ", not a list"
	case map[string]any:
		right += ", not a section"
	}
	r.problems.add(RuleType, at.shown, shown, "must be %s", right)
}

// text is a scalar as a person wrote it, near enough.
func text(value any) (s string, isScalar bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// printable is a key for a message: quoted where it would not be seen as one.
func printable(key string) string {
	key = shorten(key)
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` || key == "" || strings.ContainsAny(key, " .") {
		return quoted
	}
	return key
}

func decimal(n int) string { return strconv.Itoa(n) }
