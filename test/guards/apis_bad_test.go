// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// thing is a small package that keeps what thingPublished lists.
const thing = `package p
// API gets.
type API interface { Get(id uint32) (string, error) }
type Plugin struct { Deps; hidden int }
// Deps holds a name.
type Deps struct {
	Name string // of a | b
	More bool
}
func (*Plugin) Get(uint32) (string, error) { return "", nil }
func (*Plugin) Set(id ID, more ...string) {}
func (*Plugin) hide() {}
// ID counts.
type ID int
type Option func(*Plugin)
func New(opts ...Option) *Plugin { return nil }
// Limit bounds IDs.
const Limit = 3
var Default = *New()
`

func thingPublished() publication {
	return publication{"thing", "Thing", "package p", "p", []symbol{
		{"API", "type interface"}, {"API.Get", "func(id uint32) (text string, err error)"}, {"Plugin", "type struct"},
		{"Plugin.Deps", "embedded p.Deps"}, {"Plugin.Set", "func(id podmodel.ID, more ...string)"}, {"Option", "type func(*p.Plugin)"},
		{"New", "func(opts ...p.Option) *p.Plugin"}, {"Default", "var p.Plugin"},
	}, map[string]string{"New": "has options"}}
}

func thingNames() apis {
	return apis{map[string]string{"p": "p"}, []substitution{{"podmodel.ID", "p.ID", "ours"}}}
}

// thingDocs returns the comments of a text that smallUniverse has read.
func thingDocs(u *universe, code string) *docIndex {
	d := &docIndex{set: u.set, texts: map[string]map[token.Position]string{"p": {}}}
	set := token.NewFileSet()
	if file, err := parser.ParseFile(set, "p.go", code, parser.ParseComments); err == nil {
		comments(set, file, d.texts["p"])
	}
	return d
}

func findings(t *testing.T, code string, a apis, p publication) []string {
	t.Helper()
	u := smallUniverse(t, code)
	var all []string
	for _, f := range append(append(a.published(u, p), a.undocumented(u, thingDocs(u, code), p)...), a.idle([]publication{p})...) {
		all = append(all, f.subject+": "+f.why)
	}
	return all
}

func TestCodeThatKeepsAPublicationHolds(t *testing.T) {
	g := NewWithT(t)
	g.Expect(findings(t, thing, thingNames(), thingPublished())).To(BeEmpty())
	u := smallUniverse(t, thing)
	a := thingNames()
	g.Expect(a.reference(u, thingDocs(u, thing), thingPublished())).To(HaveSuffix("Generated from the code: " +
		"`make generate` writes this page.\n" + `
## Published symbols

| symbol | signature here | differences and details |
|---|---|---|
| ` + "`p.API` | `type interface`" + ` | API gets. |
| ` + "`p.API.Get` | `func(id uint32) (text string, err error)`" + ` |  |
| ` + "`p.Plugin` | `type struct`" + ` |  |
| ` + "`p.Plugin.Deps` | `embedded p.Deps`" + ` |  |
| ` + "`p.Plugin.Set` | `func(id p.ID, more ...string)`" + ` |  |
| ` + "`p.Option` | `type func(*p.Plugin)`" + ` |  |
| ` + "`p.New` | `func(opts ...p.Option) *p.Plugin`" + ` | has options |
| ` + "`p.Default` | `var p.Plugin`" + ` |  |

## Further symbols

| symbol | signature | what it does or holds |
|---|---|---|
| ` + "`p.Deps` | `type struct`" + ` | Deps holds a name. |
| ` + "`p.Deps.Name` | `field string`" + ` | of a \| b |
| ` + "`p.Deps.More` | `field bool`" + ` |  |
| ` + "`p.ID` | `type int`" + ` | ID counts. |
| ` + "`p.Limit` | `const int`" + ` | Limit bounds IDs. |
`))
}

func TestCodeThatBreaksAPublicationIsFound(t *testing.T) {
	for _, x := range []struct {
		what, from, to string
		want           []string
	}{
		{"another type of a parameter", "(id uint32)", "(id int32)", []string{"API.Get: published as"}},
		{"one more parameter", "(id uint32)", "(id, more uint32)", []string{"API.Get: published as"}},
		{"another result", "Get(id uint32) (string, error)", "Get(id uint32) string", []string{"API.Get: published as"}},
		{"a method is missing", "func (*Plugin) Set(id ID, more ...string) {}", "", []string{"Plugin.Set: there is no p.Plugin.Set"}},
		{"not variadic", "more ...string", "more []string", []string{"Plugin.Set: published as"}},
		{"a field instead of an embedded one", "{ Deps; hidden", "{ Deps Deps; hidden", []string{"Plugin.Deps: published as embedded p.Deps, the code has field p.Deps"}},
		{"a pointer", "var Default = *New()", "var Default = New()", []string{"Default: published as var p.Plugin, the code has var *p.Plugin"}},
		{"a function without a comment", "var Default", "func More() {}\nvar Default", []string{"p.More: the package exports it without a doc comment"}},
		{"a type without a comment", "// ID counts.\n", "", []string{"p.ID: the package exports it without a doc comment"}},
	} {
		g := NewWithT(t)
		found := findings(t, strings.Replace(thing, x.from, x.to, 1), thingNames(), thingPublished())
		g.Expect(found).To(HaveLen(len(x.want)), x.what)
		for _, want := range x.want {
			g.Expect(found).To(ContainElement(HavePrefix(want)), x.what)
		}
	}
}

func TestListsThatDoNotFitAreFound(t *testing.T) {
	g := NewWithT(t)
	p := thingPublished()
	p.differs["Gone"] = "is called otherwise"
	p.symbols = append(p.symbols, symbol{"Limit", "const q.Limit"})
	a := thingNames()
	a.instead = []substitution{{"infra.X", "p.ID", ""}}
	g.Expect(findings(t, thing, a, p)).To(ConsistOf(
		HavePrefix("Gone: a difference is noted"),
		HavePrefix(`Limit: "const q.Limit" is not a signature`),
		HavePrefix(`Plugin.Set: "func(id podmodel.ID, more ...string)" is not a signature`),
		HavePrefix("infra.X: no published signature names it"),
	))
}
