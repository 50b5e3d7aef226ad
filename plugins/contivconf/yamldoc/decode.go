// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc

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

// Options select how a file is read.
type Options struct {
	// Example is a file that would be right, for messages.
	Example string
	// Unknown returns what is wrong with a key that the section at path does not
	// have; known are those that it has.
	Unknown func(path, key string, known []string) string
	// Renamed returns the path, below the section at path, of the key that an unknown
	// key was renamed to. Nil: no key was renamed.
	Renamed func(path, key string) (target string, ok bool)
	// Exact refuses keys in another case, empty texts, numbers and truth values
	// instead of texts, and list items without a value.
	Exact bool
	// Whole reports whether a key without a value is a problem, as is a file without keys if
	// Whole is not nil. Either may come from a file that was cut off, which would be read as
	// defaults. A key of Contiv-VPP may have none, as its manifests write it.
	Whole func(path string) bool
}

// Decoder fills structs and collects all problems of a file. The YAML decoders stop
// at the first value of a wrong type and at the first unknown key, and do not say
// where that key is. This one goes on, and knows the full path.
//
// A struct field takes its key from the tag json. The tag conf is "unused" for a key
// whose value changes nothing, or "minutes" for a time.Duration that counts minutes.
type Decoder struct {
	Collector
	Given  map[string]bool // Path of each key that has a value
	Unused map[string]bool // those of them that change nothing
	// Renamed holds the path with the former name of each field that the file has by it.
	// Both are those of a Problem: nodeConfig[2].gateway.
	Renamed map[string]string

	options Options
}

// NewDecoder returns a Decoder that has read nothing.
func NewDecoder(o Options) *Decoder {
	return &Decoder{
		Given:   map[string]bool{},
		Unused:  map[string]bool{},
		Renamed: map[string]string{},
		options: o,
	}
}

// Decode fills the struct that into points to. A field whose key has no value keeps
// its own. ok is false if the file has no mapping of keys at all.
func (d *Decoder) Decode(file []byte, into any) (ok bool) {
	content, ok := d.document(file)
	if ok && content == nil && d.options.Whole != nil {
		d.Add(
			RuleDocument,
			wholeFile,
			"",
			"has no keys: it is empty, or was cut off; write what differs from the defaults, "+
				"such as %q, or {} for all defaults",
			d.options.Example,
		)
	}
	if content != nil {
		d.object(place{}, content, reflect.ValueOf(into).Elem())
	}
	d.Mute()
	return ok
}

// document returns the file's one YAML document, nil if it has none or is not a
// mapping.
func (d *Decoder) document(file []byte) (content any, ok bool) {
	content, ok, faults := read(file)
	d.Problems = append(d.Problems, faults...)
	if _, mapping := content.(map[string]any); content != nil && !mapping {
		d.Add(RuleDocument, wholeFile, "", "must be made of keys and values, such as %q", d.options.Example)
		return nil, false
	}
	return content, ok
}

// object fills the fields of the struct into.
func (d *Decoder) object(at place, value any, into reflect.Value) {
	keys, ok := value.(map[string]any)
	if !ok {
		d.wrongType(at, value, "a section with keys of its own")
		d.sections = append(d.sections, at.shown)
		return
	}
	names, all := map[string]string{}, fields(into.Type())
	keys = d.rename(at, keys, all)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		i := d.find(all, name)
		if i < 0 {
			var known []string
			for _, f := range all {
				known = append(known, f.name)
			}
			problem := d.options.Unknown(at.path, name, known)
			d.Add(RuleUnknownKey, join(at.shown, printable(name)), "", "%s", problem)
			continue
		}
		f := all[i]
		where := at.child(f)
		if first, twice := names[f.name]; twice {
			d.Add(RuleDuplicateKey, where.shown, "", "is given twice, as %q and as %q: keep one", first, name)
		}
		names[f.name] = name
		d.value(where, keys[name], into.FieldByIndex(f.index), f.minutes)
	}
}

// value fills one field. A key without a value counts as absent, or is a problem.
func (d *Decoder) value(at place, value any, into reflect.Value, minutes bool) {
	if value == nil {
		if d.options.Whole != nil && d.options.Whole(at.path) {
			d.Add(
				RuleMissing,
				at.shown,
				"",
				"has no value, or the file was cut off here: write a value, or remove the key",
			)
		}
		return
	}
	switch {
	case into.Kind() == reflect.Struct:
		d.object(at, value, into)
	case into.Kind() == reflect.Slice:
		d.list(at, value, into)
	case into.Type() == reflect.TypeFor[time.Duration]():
		d.mark(at)
		d.duration(at, value, into, minutes)
	default:
		d.mark(at)
		d.scalar(at, value, into)
	}
}

func (d *Decoder) mark(at place) {
	d.Given[at.path] = true
	if at.unused {
		d.Unused[at.path] = true
	}
}

func (d *Decoder) list(at place, value any, into reflect.Value) {
	items, ok := value.([]any)
	if !ok {
		d.wrongType(at, value, "a list")
		return
	}
	scalars := into.Type().Elem().Kind() != reflect.Struct
	if scalars {
		d.mark(at)
	}
	if len(items) == 0 && !d.options.Exact {
		into.SetZero()
		return
	}
	into.Set(reflect.MakeSlice(into.Type(), len(items), len(items)))
	for i, item := range items {
		switch {
		case scalars:
			d.scalar(at.item(i), item, into.Index(i))
		case item == nil && d.options.Exact:
			d.object(at.item(i), item, into.Index(i))
		default:
			d.value(at.item(i), item, into.Index(i), false)
		}
	}
}

func (d *Decoder) scalar(at place, value any, into reflect.Value) {
	number, isNumber := value.(json.Number)
	switch into.Kind() {
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.scalar(at, value, into.Elem())
	case reflect.Bool:
		b, ok := value.(bool)
		if !ok {
			d.wrongType(at, value, "true or false")
		}
		into.SetBool(b)
	case reflect.Int:
		n, err := strconv.ParseInt(number.String(), 10, 32)
		if err != nil || !isNumber {
			d.wrongType(at, value, "a whole number")
		}
		into.SetInt(n)
	case reflect.Float64:
		x, err := number.Float64()
		if err != nil || !isNumber {
			d.wrongType(at, value, "a number")
		}
		into.SetFloat(x)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		bits := into.Type().Bits()
		n, err := strconv.ParseUint(number.String(), 10, bits)
		if err != nil || !isNumber {
			d.wrongType(at, value, fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<bits-1))
		}
		into.SetUint(n)
	default:
		into.SetString(d.text(at, value))
	}
}

// text returns a text, "" for a value that is not one.
func (d *Decoder) text(at place, value any) string {
	s, isScalar := scalarText(value)
	_, isText := value.(string)
	switch {
	case !isScalar:
		d.wrongType(at, value, "a text")
	case !d.options.Exact:
		return s
	case !isText:
		d.wrongType(at, value, "a text: write it in quotes")
	case strings.TrimSpace(s) == "":
		d.Add(RuleMissing, at.shown, "", "is empty: write a text, or remove the key")
	default:
		return strings.TrimSpace(s)
	}
	return ""
}

// duration reads "5s". A bare number counts nanoseconds, as Contiv writes them, or
// minutes if the key is in minutes.
func (d *Decoder) duration(at place, value any, into reflect.Value, minutes bool) {
	number, isNumber := value.(json.Number)
	n, err := number.Int64()
	whole := isNumber && err == nil
	if minutes {
		if limit := int64(1<<63-1) / int64(time.Minute); !whole || n > limit || n < -limit {
			d.wrongType(at, value, "a whole number of minutes")
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
	parsed, err := time.ParseDuration(s)
	if err != nil {
		shown, _ := scalarText(value)
		d.Add(RuleDuration, at.shown, shown,
			"is not a duration: write a number with its unit, such as \"5s\" or \"1m30s\"")
		return
	}
	into.SetInt(int64(parsed))
}

func (d *Decoder) wrongType(at place, value any, right string) {
	shown, _ := scalarText(value)
	switch value.(type) {
	case string:
		right += ", not text"
	case []any:
		right += ", not a list"
	case map[string]any:
		right += ", not a section"
	}
	d.Add(RuleType, at.shown, shown, "must be %s", right)
}

// scalarText returns a scalar about as it was written.
func scalarText(value any) (s string, isScalar bool) {
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

// printable returns a key for a message, quoted if it could not be seen as one.
func printable(key string) string {
	key = shorten(key)
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` || key == "" || strings.ContainsAny(key, " .") {
		return quoted
	}
	return key
}
