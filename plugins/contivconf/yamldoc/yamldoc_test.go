// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc_test

import (
	"encoding/json"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

func TestRead(t *testing.T) {
	one := map[string]any{"a": json.Number("1")}
	for name, c := range map[string]struct {
		file    string
		content any
		ok      bool
		faults  []yamldoc.Fault
	}{
		"one document":                {"a: 1\n", one, true, nil},
		"with marks around it":        {"---\na: 1\n...\n", one, true, nil},
		"nothing":                     {"", nil, true, nil},
		"a comment":                   {"# nothing\n", nil, true, nil},
		"another document":            {"a: 1\n---\nb: 2\n", one, true, []yamldoc.Fault{{Kind: yamldoc.Several}}},
		"another one behind the end":  {"a: 1\n...\nb: 2\n", one, true, []yamldoc.Fault{{Kind: yamldoc.Several}}},
		"a key behind a whole one":    {"{a: 1}\nb: 2\n", one, true, []yamldoc.Fault{{Kind: yamldoc.Syntax, Text: "line 1: did not find expected <document start>"}}},
		"a key twice":                 {"a: 0\na: 1\n", one, true, []yamldoc.Fault{{Kind: yamldoc.Twice, Key: "a", Line: 2}}},
		"a key twice, and a document": {"a: 0\na: 1\n---\n", one, true, []yamldoc.Fault{{Kind: yamldoc.Twice, Key: "a", Line: 2}, {Kind: yamldoc.Several}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			content, ok, faults := yamldoc.Read([]byte(c.file))
			if c.content == nil {
				g.Expect(content).To(BeNil())
			} else {
				g.Expect(content).To(Equal(c.content))
			}
			g.Expect(ok).To(Equal(c.ok))
			g.Expect(faults).To(Equal(c.faults))
		})
	}
}

func TestReadOfWhatIsNoYAML(t *testing.T) {
	g := NewWithT(t)
	content, ok, faults := yamldoc.Read([]byte("a: [1\n"))
	g.Expect(content).To(BeNil())
	g.Expect(ok).To(BeFalse())
	g.Expect(faults).To(HaveLen(1))
	g.Expect(faults[0].Kind).To(Equal(yamldoc.Syntax))
}

func TestASecondDocument(t *testing.T) {
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
		_, _, faults := yamldoc.Read([]byte(text))
		NewWithT(t).Expect(slices.Contains(faults, yamldoc.Fault{Kind: yamldoc.Several})).To(Equal(second), "%q", text)
	}
}
