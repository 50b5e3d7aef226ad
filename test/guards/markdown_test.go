// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"io"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// heading is a heading of a page.
type heading struct {
	line, level int
	text        string
}

// block is a fenced block of code.
type block struct {
	line     int
	language string
	text     string
}

// link is a link or an image of a page.
type link struct {
	line   int
	target string
}

// document is a page of Markdown as far as the guards read it.
type document struct {
	headings []heading
	blocks   []block
	links    []link
	tables   [][]row
}

// row is a row of a table, the header included.
type row struct {
	line  int
	cells []string
}

// markdown reads headings, fenced blocks, links and tables.
func markdown(p page) document {
	var doc document
	var open *block
	fence, inTable := "", false
	inline := regexp.MustCompile("`[^`]*`")
	target := regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\s*\[[^\]]+\]:\s*(\S+)`)
	number := 0
	for text := range strings.Lines(string(p.text)) {
		number++
		trimmed := strings.TrimSpace(text)
		switch {
		case open != nil && strings.HasPrefix(trimmed, fence) && strings.Trim(trimmed, fence[:1]) == "":
			doc.blocks, open = append(doc.blocks, *open), nil
			continue
		case open != nil:
			open.text += text
			continue
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			language := strings.TrimLeft(trimmed, trimmed[:1])
			fence = strings.TrimSuffix(trimmed, language)
			language, _, _ = strings.Cut(strings.TrimSpace(language), " ")
			open = &block{line: number, language: language}
			continue
		}
		if level := len(trimmed) - len(strings.TrimLeft(trimmed, "#")); level > 0 && level < 7 && strings.HasPrefix(trimmed[level:], " ") {
			doc.headings = append(doc.headings, heading{number, level, strings.TrimSpace(trimmed[level:])})
		}
		if strings.HasPrefix(trimmed, "|") {
			doc.addRow(row{number, cells(trimmed)}, !inTable)
		}
		inTable = strings.HasPrefix(trimmed, "|")
		for _, m := range target.FindAllStringSubmatch(inline.ReplaceAllString(text, "code"), -1) {
			doc.links = append(doc.links, link{number, m[1] + m[2]})
		}
	}
	return doc
}

// addRow adds a row to the last table, or begins one. The line under the
// header is left out.
func (doc *document) addRow(r row, first bool) {
	if first {
		doc.tables = append(doc.tables, nil)
	}
	if strings.Trim(strings.Join(r.cells, ""), "-: ") == "" {
		return
	}
	last := &doc.tables[len(doc.tables)-1]
	*last = append(*last, r)
}

func cells(text string) []string {
	all := strings.Split(strings.Trim(text, "|"), "|")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// anchors returns the names that a link may have behind a #, as GitHub makes them.
func (doc document) anchors() map[string]bool {
	all := map[string]bool{}
	for _, h := range doc.headings {
		text := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(h.text, "$1")
		text = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`).ReplaceAllString(strings.ToLower(text), "")
		slug := strings.ReplaceAll(text, " ", "-")
		name := slug
		for i := 1; all[name]; i++ {
			name = fmt.Sprintf("%s-%d", slug, i)
		}
		all[name] = true
	}
	return all
}

// links finds links of pages to files or headings that are not there.
func links(all []page) []finding {
	exists, docs := map[string]bool{".": true}, map[string]document{}
	for _, p := range all {
		for dir := p.path; dir != "."; dir = path.Dir(dir) {
			exists[dir] = true
		}
		if path.Ext(p.path) == ".md" {
			docs[p.path] = markdown(p)
		}
	}
	var found []finding
	for _, p := range all {
		for _, l := range docs[p.path].links {
			u, err := url.Parse(l.target)
			if err != nil || u.Scheme != "" || u.Host != "" {
				continue // not ours to look at
			}
			to := path.Join(path.Dir(p.path), u.Path)
			if u.Path == "" {
				to = p.path
			}
			doc, readable := docs[to]
			switch {
			case path.IsAbs(u.Path) || !exists[to]:
				found = append(found, finding{p.path, l.line, l.target, "there is no such file"})
			case u.Fragment != "" && readable && !doc.anchors()[u.Fragment]:
				found = append(found, finding{p.path, l.line, l.target, "there is no such heading"})
			}
		}
	}
	return found
}

// blocks finds blocks of YAML and JSON that do not parse.
func blocks(all []page) []finding {
	var found []finding
	for _, p := range all {
		if path.Ext(p.path) != ".md" {
			continue
		}
		for _, b := range markdown(p).blocks {
			var err error
			switch strings.ToLower(b.language) {
			case "json":
				err = parseJSON(b.text)
			case "yaml", "yml":
				err = parseYAML(b.text)
			}
			if err != nil {
				found = append(found, finding{p.path, b.line, b.language, err.Error()})
			}
		}
	}
	return found
}

// parseJSON reads a text of one or more values.
func parseJSON(text string) error {
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// parseYAML reads a text of one or more documents, without a key twice.
func parseYAML(text string) error {
	for part := range bytes.SplitSeq([]byte(text), []byte("\n---\n")) {
		var v any
		if err := yaml.UnmarshalStrict(part, &v); err != nil {
			return err
		}
	}
	return nil
}

func TestBadLinksAreFound(t *testing.T) {
	g := NewWithT(t)
	all := []page{
		{"README.md", []byte("# Top\n[a](docs/a.md) [b](docs/a.md#the-end--of-it) [c](https://example.org/x) [d](docs) [e](#top) `[f](no.md)`\n```\n[g](no.md)\n```\n")},
		{"docs/a.md", []byte("# A\n\n## The `end` -of it\n[up](../README.md#tops) [gone](b.md)\n![picture](../docs/p.png \"title\") [abs](/README.md) [twice](#a) [twice](#a-1)\n\n[ref]: gone.md\n")},
	}
	var got []string
	for _, f := range links(all) {
		got = append(got, f.String())
	}
	g.Expect(got).To(Equal([]string{
		"docs/a.md:4: ../README.md#tops: there is no such heading",
		"docs/a.md:4: b.md: there is no such file",
		"docs/a.md:5: ../docs/p.png: there is no such file",
		"docs/a.md:5: /README.md: there is no such file",
		"docs/a.md:5: #a-1: there is no such heading",
		"docs/a.md:7: gone.md: there is no such file",
	}))
}

func TestBadBlocksAreFound(t *testing.T) {
	g := NewWithT(t)
	for text, bad := range map[string]bool{
		"```yaml\na: 1\n---\nb: [2]\n```\n": false,
		"```yaml\na: [1\n```\n":             true,
		"```yaml\na: 1\na: 2\n```\n":        true,
		"```json\n{\"a\": 1}\n{}\n```\n":    false,
		"```json\n{\"a\": 1,}\n```\n":       true,
		"~~~~json title\n{\n~~~~\n":         true,
		"```text\n{\n```\n":                 false,
	} {
		g.Expect(len(blocks([]page{{"docs/a.md", []byte(text)}})) > 0).To(Equal(bad), text)
	}
}

// namedTests finds the tests that a page names and that do not exist.
func namedTests(p page, functions map[string]bool) []finding {
	var found []finding
	for _, m := range regexp.MustCompile("`[^`\n]*\\b(Test[A-Z]\\w+)`").FindAllSubmatchIndex(p.text, -1) {
		name := string(p.text[m[2]:m[3]])
		if !functions[name] {
			line := bytes.Count(p.text[:m[2]], []byte("\n")) + 1
			found = append(found, finding{p.path, line, name, "there is no test of this name"})
		}
	}
	return found
}

// functions returns the names of all functions.
func functions(all []source) map[string]bool {
	names := map[string]bool{}
	for _, s := range all {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

func TestPagesNameTestsThatExist(t *testing.T) {
	known := functions(sources(t))
	var found []finding
	for _, p := range pages(t) {
		if strings.HasSuffix(p.path, ".md") && p.path != "CHANGELOG.md" && !strings.HasPrefix(p.path, "docs/reference/") {
			found = append(found, namedTests(p, known)...)
		}
	}
	expectClean(t, found, nil)
}

func TestNamesOfMissingTestsAreFound(t *testing.T) {
	g := NewWithT(t)
	p := page{"a.md", []byte("see `ledger.TestOne` and\n`TestTwo`, not TestThree")}
	g.Expect(namedTests(p, map[string]bool{"TestOne": true})).To(Equal([]finding{{"a.md", 2, "TestTwo", "there is no test of this name"}}))
}
