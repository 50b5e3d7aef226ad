// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

type item struct {
	A *int   `json:"a"`
	B string `json:"b"`
}

type file struct {
	A     int    `json:"a"`
	Items []item `json:"items"`
}

func decode(text string, exact bool) (f file, d *yamldoc.Decoder, ok bool) {
	d = yamldoc.NewDecoder(yamldoc.Options{
		Example: "a: 1",
		Exact:   exact,
		Unknown: func(path, key string, known []string) string { return "is unknown at " + path },
	})
	ok = d.Decode([]byte(text), &f)
	return f, d, ok
}

func TestDecodeReadsOneDocument(t *testing.T) {
	second := "(file): has more than one YAML document: remove the \"---\" between them, or all but one"
	for name, c := range map[string]struct {
		file string
		a    int
		ok   bool
		want []string
	}{
		"one document":               {"a: 1\n", 1, true, nil},
		"with marks around it":       {"---\na: 1\n...\n", 1, true, nil},
		"empty":                      {"", 0, true, nil},
		"a comment":                  {"# nothing\n", 0, true, nil},
		"a second document":          {"a: 1\n---\nb: 2\n", 1, true, []string{second}},
		"a second one after the end": {"a: 1\n...\nb: 2\n", 1, true, []string{second}},
		"a key behind a mapping": {"{a: 1}\nb: 2\n", 1, true, []string{
			"(file): is not valid YAML: line 1: did not find expected <document start>"}},
		"a key twice": {"a: 0\na: 1\n", 1, true, []string{
			"a: is given twice, the second time in line 2: keep one"}},
		"a key twice, and a document": {"a: 0\na: 1\n---\n", 1, true, []string{
			"a: is given twice, the second time in line 2: keep one", second}},
		"not YAML": {"a: [1\n", 0, false, []string{
			"(file): is not valid YAML: line 1: did not find expected ',' or ']'"}},
		"a list": {"- a\n", 0, false, []string{
			`(file): must be made of keys and values, such as "a: 1"`}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f, d, ok := decode(c.file, false)
			g.Expect(f.A).To(Equal(c.a))
			g.Expect(ok).To(Equal(c.ok))
			var texts []string
			for _, p := range d.Problems {
				texts = append(texts, p.Error())
			}
			g.Expect(texts).To(Equal(c.want))
		})
	}
}

func TestDecodeFindsASecondDocument(t *testing.T) {
	for text, second := range map[string]bool{
		"":                           false,
		"a: 1\n":                     false,
		"---\na: 1\n":                false,
		"# c\n---\na: 1\n...\n":      false,
		"a: |\n  ---\n  ...\nb: 1\n": false,
		"a: 1\n---":                  true,
		"--- # c\na: 1\n--- \nb: 1":  true,
		"--- {a: 1}\n---\n":          true,
		"a: 1\n...\nb: 2\n":          true,
		"a: 1\n...\n# c\n":           false,
		"a: 1\n...\n---\n":           true,
		"\ufeff---\r\na: 1\r\n":      false,
		"a: 1\r\n---\r\nb: 1\r\n":    true,
		"----: 1\n---x: 1\n":         false,
	} {
		_, d, _ := decode(text, false)
		found := false
		for _, p := range d.Problems {
			found = found || p.Rule == yamldoc.RuleDocument
		}
		NewWithT(t).Expect(found).To(Equal(second), "%q", text)
	}
}

func TestExactRefusesWhatOthersAccept(t *testing.T) {
	for text, want := range map[string]string{
		"A: 1":                 "A: is unknown at ",
		"items: [null]":        "items[0]: must be a section with keys of its own",
		"items: [{b: 7}]":      `items[0].b: "7" must be a text: write it in quotes`,
		"items: [{b: true}]":   `items[0].b: "true" must be a text: write it in quotes`,
		"items: [{b: \"  \"}]": "items[0].b: is empty: write a text, or remove the key",
	} {
		g := NewWithT(t)
		_, d, _ := decode(text, true)
		g.Expect(d.Err()).To(MatchError(want), text)
		_, d, _ = decode(text, false)
		g.Expect(d.Err()).NotTo(HaveOccurred(), text)
	}
}

func TestAnAbsentPointerStaysNil(t *testing.T) {
	g := NewWithT(t)
	f, d, _ := decode("items: [{b: x}, {a: 0}, {a: }]", true)
	g.Expect(d.Err()).NotTo(HaveOccurred())
	g.Expect(f.Items[0].A).To(BeNil())
	g.Expect(f.Items[1].A).To(HaveValue(Equal(0)))
	g.Expect(f.Items[2].A).To(BeNil())
}

func TestAMutedFieldTakesNoFurtherProblem(t *testing.T) {
	g := NewWithT(t)
	_, d, _ := decode("a: x\nitems: [x]\n", false)
	g.Expect(d.Problems).To(HaveLen(2))
	d.Add(yamldoc.RuleMissing, "a", "", "is missing")
	d.Add(yamldoc.RuleMissing, "items[0].b", "", "is missing")
	g.Expect(d.Problems).To(HaveLen(2))
	d.Add(yamldoc.RuleMissing, "items[1].b", "", "is missing")
	d.Add(yamldoc.RuleMissing, "ab", "", "is missing")
	g.Expect(d.Problems).To(HaveLen(4))
}

type renamedFile struct {
	A     int `json:"a"`
	Inner struct {
		B int    `json:"b"`
		C string `json:"c"`
	} `json:"inner"`
	Items []struct {
		B int `json:"b"`
	} `json:"items"`
}

// A key with a former name fills the field of its name now, also in a section below. The
// file cannot have both, and what cannot be read is reported at the new name.
func TestRenamedKeys(t *testing.T) {
	former := map[string]string{"/old": "a", "/oldB": "inner.b", "/oldC": "inner.c", "items[]/was": "b"}
	for text, c := range map[string]struct {
		want    string
		renamed map[string]string
		problem string
	}{
		"old: 1":                    {"{1 {0 } []}", map[string]string{"a": "old"}, ""},
		"oldB: 2\noldC: x":          {"{0 {2 x} []}", map[string]string{"inner.b": "oldB", "inner.c": "oldC"}, ""},
		"oldB: 2\ninner: {c: z}":    {"{0 {2 z} []}", map[string]string{"inner.b": "oldB"}, ""},
		"oldB: 2\nINNER: ":          {"{0 {2 } []}", map[string]string{"inner.b": "oldB"}, ""},
		"items: [{b: 1}, {was: 2}]": {"{0 {0 } [{1} {2}]}", map[string]string{"items[1].b": "items[1].was"}, ""},
		"old: ":                     {"{0 {0 } []}", map[string]string{}, ""},
		"old: 1\nA: 2":              {"{2 {0 } []}", map[string]string{}, `a: is given twice, as "A" and as "old": keep one`},
		"oldB: 1\ninner: {B: 2}":    {"{0 {2 } []}", map[string]string{}, `inner.b: is given twice, as "inner.B" and as "oldB": keep one`},
		"oldB: 1\ninner: 2":         {"{0 {0 } []}", map[string]string{}, `inner: "2" must be a section with keys of its own`},
		"old: x":                    {"{0 {0 } []}", map[string]string{"a": "old"}, `a: "x" must be a whole number, not text`},
		"items: [{was: 1, b: 2}]":   {"{0 {0 } [{2}]}", map[string]string{}, `items[0].b: is given twice, as "items[0].b" and as "items[0].was": keep one`},
		"inner: {old: 1}":           {"{0 {0 } []}", map[string]string{}, "inner.old: is unknown"},
	} {
		t.Run(text, func(t *testing.T) {
			g := NewWithT(t)
			var f renamedFile
			d := yamldoc.NewDecoder(yamldoc.Options{
				Unknown: func(string, string, []string) string { return "is unknown" },
				Renamed: func(path, key string) (string, bool) {
					now, ok := former[path+"/"+key]
					return now, ok
				},
			})
			d.Decode([]byte(text), &f)
			g.Expect(fmt.Sprint(f)).To(Equal(c.want))
			g.Expect(d.Renamed).To(Equal(c.renamed))
			if c.problem == "" {
				g.Expect(d.Problems).To(BeEmpty())
			} else {
				g.Expect(d.Problems).To(HaveLen(1))
				g.Expect(d.Problems[0].Error()).To(Equal(c.problem))
			}
		})
	}
}
