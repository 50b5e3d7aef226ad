// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package redact removes secrets from what a person sends to another. It cleans
// contiv.conf by an allow list of fields. From every other text it removes what was
// removed from contiv.conf, and all that has the form of a credential.
//
// A Texts is filled first and used afterwards; it is not for several goroutines. Nothing
// here fails: a value that is not known to be harmless is removed.
package redact

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Removed replaces what is removed.
const Removed = "REMOVED"

// Lengths of the shortest values that Texts hides. Shorter ones occur everywhere: eth0, a
// port, a number of seconds.
const (
	shortest       = 6
	shortestNumber = 8
)

// Texts removes values from texts.
type Texts struct {
	values map[string]bool
}

// NewTexts returns a Texts that hides no value.
func NewTexts() *Texts { return &Texts{values: map[string]bool{}} }

// Hide has a value removed from all texts, also as JSON, Go and URLs write it.
func (t *Texts) Hide(value string) {
	value = strings.TrimSpace(value)
	if len(value) < shortest || slices.Contains([]string{"true", "false", "null"}, strings.ToLower(value)) {
		return
	}
	if !strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsDigit(r) }) && len(value) < shortestNumber {
		return
	}
	t.values[value] = true
	for _, once := range encoded(value) {
		t.values[once] = true
		for _, twice := range encoded(once) { // a quoted text within a log line within JSON
			t.values[twice] = true
		}
	}
}

// encoded returns a value as JSON, Go and URLs write it, without quotes around it.
func encoded(value string) []string {
	all := []string{
		url.QueryEscape(value),
		url.PathEscape(value),
		url.UserPassword("", value).String()[1:],
	}
	goQuoted := strconv.Quote(value)
	all = append(all, goQuoted[1:len(goQuoted)-1])
	for _, html := range []bool{true, false} {
		var quoted bytes.Buffer
		e := json.NewEncoder(&quoted)
		e.SetEscapeHTML(html)
		if text := &quoted; e.Encode(value) == nil {
			all = append(all, string(text.Bytes()[1:text.Len()-2])) // without the quotes and the newline
		}
	}
	return all
}

// HideContent has the content of a secret's file removed: as a whole, and each word of it
// that is long enough to be one, such as a line of PEM.
func (t *Texts) HideContent(content []byte) {
	const word = 16
	t.Hide(string(content))
	for _, w := range strings.Fields(string(content)) {
		if w = strings.Trim(w, `{}[],:"'`); len(w) >= word {
			t.Hide(w)
		}
	}
}

// Clean returns a text without the hidden values and without credentials: user info of
// URLs, PEM blocks, bearer tokens, and what follows "password" and the like.
func (t *Texts) Clean(text []byte) []byte {
	longest := slices.Collect(func(yield func(string) bool) {
		for v := range t.values {
			if !yield(v) {
				return
			}
		}
	})
	slices.SortFunc(longest, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(longest))
	for _, v := range longest {
		pairs = append(pairs, v, Removed)
	}
	clean := strings.NewReplacer(pairs...).Replace(string(text))
	for _, c := range credentials() {
		clean = c.form.ReplaceAllString(clean, c.instead)
	}
	byName := named()
	return byName.ReplaceAllFunc([]byte(clean), func(found []byte) []byte {
		return hideNamed(byName.FindSubmatch(found))
	})
}

type credential struct {
	form    *regexp.Regexp
	instead string
}

func credentials() []credential {
	return []credential{
		{regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s"'<>]*@`), "${1}" + Removed + "@"},
		{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|$)`), Removed},
		{regexp.MustCompile(`(?i)(bearer |basic )[A-Za-z0-9._~+/=-]{8,}`), "${1}" + Removed},
		{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*)?`), Removed},
	}
}

// named finds values whose name says that they are credentials. The groups are what stands
// before the value, and the value as it is quoted: within a quoted text, in double or single
// quotes, or not at all. A name that was removed itself is one, too.
func named() *regexp.Regexp {
	const (
		name = `(?:password|passwd|passphrase|pwd|secret|token|credentials?|(?:api|access|private)[_-]?key|key-data)` +
			`\\?["']?\s*[=:]\s*|REMOVED\\?["']?\s*=\s*|REMOVED\\?["']\s*:\s*`
		flag  = `--[a-z-]*(?:password|passphrase|secret|token|key) +`
		value = `\\"(?:[^"\\\n]|\\[^"\n])+\\"|"(?:[^"\\\n]|\\.)+"|'[^'\n]+'|[^\s"'\\,;&{}\[\]]{4,}`
	)
	return regexp.MustCompile(`(?i)(` + name + `|` + flag + `)(` + value + `)`)
}

// hideNamed returns a match of named without the value, but with the quotes around it.
func hideNamed(parts [][]byte) []byte {
	if slices.Contains([]string{"null", "true", "false"}, string(parts[2])) {
		return parts[0]
	}
	quote := ""
	for _, q := range []string{`\"`, `"`, `'`} {
		if bytes.HasPrefix(parts[2], []byte(q)) {
			quote = q
			break
		}
	}
	return slices.Concat(parts[1], []byte(quote+Removed+quote))
}
