// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// leaves returns the keys without keys of their own, with the types of their values.
func leaves() map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, k := range knownKeys() {
		if !k.Section {
			all[k.Path] = k.Type
		}
	}
	return all
}

// sample returns a value for a key of type t, and the result of reading it.
func sample(path string, t reflect.Type) (yaml string, want any) {
	minutes := strings.HasSuffix(path, "AgeLimit") || strings.HasSuffix(path, "InitPeriod")
	switch {
	case minutes:
		return "7", 7 * time.Minute
	case t == reflect.TypeFor[time.Duration]():
		return "7s", 7 * time.Second
	case t.Kind() == reflect.Bool:
		return "true", true
	case t.Kind() == reflect.Slice:
		return "[seven]", []string{"seven"}
	case t.Kind() == reflect.String:
		return "seven", reflect.ValueOf("seven").Convert(t).Interface()
	}
	return "7", reflect.ValueOf(7).Convert(t).Interface()
}

// document returns a file with one key.
func document(path, value string) string {
	var b strings.Builder
	indent := ""
	parts := strings.Split(path, ".")
	for i, part := range parts {
		part, isList := strings.CutSuffix(part, "[]")
		b.WriteString(indent + part + ":")
		if i == len(parts)-1 {
			b.WriteString(" " + value)
		}
		b.WriteString("\n")
		indent = strings.ReplaceAll(indent, "-", " ") + "  "
		if isList {
			indent += "- "
		}
	}
	return b.String()
}

// read returns the keys of a file, without defaults.
func read(text []byte) *reading {
	r := newReading(rawConfig{})
	r.Decode(text, &r.raw)
	return r
}

// values returns the non-zero leaves of a struct.
func values(v reflect.Value) []any {
	switch {
	case v.IsZero():
		return nil
	case v.Kind() == reflect.Struct:
		var all []any
		for i := range v.NumField() {
			all = append(all, values(v.Field(i))...)
		}
		return all
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		return values(v.Index(0))
	}
	return []any{v.Interface()}
}

// Each key fills a field of its own, in any case.
func TestEveryKeyIsRead(t *testing.T) {
	all := leaves()
	for path, typ := range all {
		g := gomega.NewWithT(t)
		yaml, want := sample(path, typ)
		for _, written := range []string{path, strings.ToUpper(path), strings.ToLower(path)} {
			r := read([]byte(document(written, yaml)))
			g.Expect(r.Problems).To(gomega.BeEmpty(), written)
			g.Expect(values(reflect.ValueOf(r.raw))).To(gomega.Equal([]any{want}), written)
			g.Expect(slices.Collect(maps.Keys(r.Given))).To(gomega.Equal([]string{path}))
		}
	}
	gomega.NewWithT(t).Expect(len(all)).To(gomega.BeNumerically(">", 100))
}

// A key without a value counts as absent if it is one of Contiv-VPP's, and is a problem if it
// is ours. A value of another type is an error that names the key.
func TestEveryKeyIsTyped(t *testing.T) {
	for path, typ := range leaves() {
		g := gomega.NewWithT(t)
		r := read([]byte(document(path, "")))
		if strings.HasPrefix(path, "cadastre.") {
			g.Expect(r.Problems).To(gomega.ConsistOf(gomega.HaveField("Field", strings.ReplaceAll(path, "[]", "[0]"))))
		} else {
			g.Expect(r.Problems).To(gomega.BeEmpty(), path)
		}
		g.Expect(r.Given).To(gomega.BeEmpty(), path)

		r = read([]byte(document(path, "{a: 1}")))
		g.Expect(r.Problems).To(gomega.HaveLen(1), path)
		g.Expect(r.Problems[0].Field).To(gomega.Equal(strings.ReplaceAll(path, "[]", "[0]")))
		g.Expect(values(reflect.ValueOf(r.raw))).To(gomega.BeEmpty(), path)

		if typ.Kind() != reflect.String {
			r = read([]byte(document(path, `"text"`)))
			g.Expect(r.Problems).To(gomega.HaveLen(1), path)
			g.Expect(r.Problems[0].Value).To(gomega.Equal("text"))
		}
	}
}

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		key, written string
		want         time.Duration
		rule         Rule
	}{
		{"coolDown", "5s", 5 * time.Second, ""},
		{"coolDown", "1m30s", 90 * time.Second, ""},
		{"coolDown", "1.5h", 90 * time.Minute, ""},
		{"coolDown", "5000000000", 5 * time.Second, ""},
		{"coolDown", "5e9", 5 * time.Second, ""},
		{"coolDown", "0", 0, ""},
		{"coolDown", "-5s", -5 * time.Second, ""}, // refused by Validate
		{"coolDown", `"5"`, 0, yamldoc.RuleDuration},
		{"coolDown", "1.5", 0, yamldoc.RuleDuration},
		{"coolDown", "99999999999999999999", 0, yamldoc.RuleDuration},
		{"coolDown", "true", 0, yamldoc.RuleDuration},
		{"coolDown", "[5s]", 0, yamldoc.RuleDuration},
		{"controller.eventHistoryAgeLimit", "1440", 24 * time.Hour, ""},
		{"controller.eventHistoryAgeLimit", "-1", -time.Minute, ""},
		{"controller.eventHistoryAgeLimit", "60m", 0, yamldoc.RuleType},
		{"controller.eventHistoryAgeLimit", "1.5", 0, yamldoc.RuleType},
		{"controller.eventHistoryAgeLimit", "9223372036854775807", 0, yamldoc.RuleType},
		{"controller.eventHistoryAgeLimit", "-9223372036854775808", 0, yamldoc.RuleType},
	} {
		g := gomega.NewWithT(t)
		r := read([]byte(document("cadastre."+c.key, c.written)))
		if c.rule != "" {
			g.Expect(r.Problems).To(gomega.HaveLen(1), c.written)
			g.Expect(r.Problems[0].Rule).To(gomega.Equal(c.rule), c.written)
			continue
		}
		g.Expect(r.Problems).To(gomega.BeEmpty(), c.written)
		got := r.raw.Cadastre.CoolDown + r.raw.Cadastre.Controller.EventHistoryAgeLimit
		g.Expect(got).To(gomega.Equal(c.want), c.written)
	}
}

func TestShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{24 * time.Hour: "24h", time.Minute: "1m", 90 * time.Second: "1m30s", 60: "60ns",
		90 * time.Minute: "1h30m", 10 * time.Second: "10s", 0: "0s", -2 * time.Hour: "-2h", 20 * time.Minute: "20m"} {
		gomega.NewWithT(t).Expect(short(d)).To(gomega.Equal(want))
	}
}

// A misspelt key is an error that names a known key, however it is misspelt.
func TestDamagedKeys(t *testing.T) {
	known := map[string]bool{}
	for _, k := range knownKeys() {
		known[k.Path] = true
	}
	paths := slices.Sorted(maps.Keys(leaves()))
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom(paths).Draw(t, "path")
		parent, key := "", path
		if i := strings.LastIndex(path, "."); i >= 0 {
			parent, key = path[:i+1], path[i+1:]
		}
		at := rapid.IntRange(0, len(key)-1).Draw(t, "at")
		damaged := parent + key[:at] + rapid.SampledFrom([]string{"", "x", "zz"}).Draw(t, "for") + key[at+1:]
		r := read([]byte(document(damaged, "")))
		for _, e := range r.Problems {
			if e.Rule != yamldoc.RuleUnknownKey && e.Rule != yamldoc.RuleType && !known[damaged] {
				t.Fatalf("%s: %v", damaged, e)
			}
			var nearest string
			if _, err := fmt.Sscanf(e.Text, "unknown key; the nearest known one is %q", &nearest); err == nil && !known[nearest] {
				t.Fatalf("%s: %q is not a key", damaged, nearest)
			}
		}
		if len(r.Problems) != 1 && !known[damaged] {
			t.Fatalf("%s: %v", damaged, r.Err())
		}
	})
}
