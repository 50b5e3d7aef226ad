// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/columns"
)

// format is a way to print.
type format string

const (
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatName  format = "name" // of each object, one a line

	// jsonpathPrefix begins a format that has its template in it.
	jsonpathPrefix = "jsonpath="
)

// formats returns the formats without a template.
func formats() []string {
	return []string{
		string(formatTable),
		string(formatWide),
		string(formatJSON),
		string(formatYAML),
		string(formatName),
	}
}

// formatsText lists all formats for people.
func formatsText() string { return strings.Join(formats(), ", ") + ", " + jsonpathPrefix + "TEMPLATE" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	template, has := strings.CutPrefix(s, jsonpathPrefix)
	switch {
	case has:
		if _, err := parsePathTemplate(template); err != nil {
			return err
		}
	case !slices.Contains(formats(), s):
		return fmt.Errorf("write one of %s", formatsText())
	}
	*f = format(s)
	return nil
}

// template returns the template of a format that has one.
func (f *format) template() (string, bool) { return strings.CutPrefix(string(*f), jsonpathPrefix) }

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// forPeople reports whether a table is wanted.
func (a *app) forPeople() bool { return a.output == formatTable || a.output == formatWide }

// print writes v, or for people the text that table makes of it.
func (a *app) print(v any, table func(wide bool) string) error {
	var out []byte
	var err error
	switch a.output {
	case formatTable, formatWide:
		out = []byte(a.coloured(table(a.output == formatWide)))
	case formatJSON:
		out, err = encode(v, "  ")
	case formatYAML:
		out, err = yaml.Marshal(v)
	case formatName:
		out, err = printNames(v)
	default:
		out, err = a.output.fill(v)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", a.output, err)
	}
	return a.write(out)
}

func (a *app) write(out []byte) error {
	if _, err := a.stdout.Write(out); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// fill returns what the template of the format makes of v.
func (f *format) fill(v any) ([]byte, error) {
	text, _ := f.template()
	t, err := parsePathTemplate(text)
	if err != nil {
		return nil, err
	}
	output, err := encode(v, "")
	if err != nil {
		return nil, err
	}
	filled, err := t.print(output)
	return []byte(filled), err
}

// printNames returns a line for each name.
func printNames(v any) ([]byte, error) {
	names, err := namesOf(v)
	var out []byte
	for _, name := range names {
		out = append(append(out, columns.Clean(name)...), '\n')
	}
	return out, err
}

// note prints a message for people, which is not a part of the output.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// encode returns v in JSON; json.Marshal would write < and > as \u003c and \u003e.
func encode(v any, indent string) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return buf.Bytes(), err
}

// cleanLines cleans the lines of a text.
func cleanLines(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\t", "  "), "\n")
	for i, line := range lines {
		lines[i] = columns.Clean(line)
	}
	return strings.Join(lines, "\n")
}

// age returns the time since t in kubectl's form: 45s, 12m, 3h20m, 4d.
func age(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(now.Sub(t), 0)
	hours, minutes := int(d.Hours()), int(d.Minutes())
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case minutes < 60:
		return fmt.Sprintf("%dm", minutes)
	case hours < 10:
		return fmt.Sprintf("%dh%dm", hours, minutes%60)
	case hours < 48:
		return fmt.Sprintf("%dh", hours)
	}
	return fmt.Sprintf("%dd", hours/24)
}

// plural returns "1 lease", "2 leases".
func plural[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
