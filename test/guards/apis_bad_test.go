// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// thing is a small package, thingPage the page that is true of it.
const thing = `package p
type API interface { Get(id uint32) (string, error) }
type Plugin struct { Deps; hidden int }
type Deps struct { Name string; More bool }
func (*Plugin) Get(uint32) (string, error) { return "", nil }
func (*Plugin) Set(id ID, more ...string) {}
func (*Plugin) hide() {}
type ID int
type Option func(*Plugin)
func New(opts ...Option) *Plugin { return nil }
const Limit = 3
var Default = *New()
`

const thingPage = "# The published APIs\n" + `
| Name on this page | Package |
|---|---|
| p | p |

## Substitutions

| published | here | why |
|---|---|---|
| podmodel.ID | p.ID | ours |

## Thing

| published symbol | here | signature here | note |
|---|---|---|---|
| API | p.API | type interface | |
| API.Get | p.API.Get | func(id uint32) (string, error) | |
| Plugin | p.Plugin | type struct | |
| Plugin.Deps | p.Plugin.Deps | embedded p.Deps | |
| Plugin.Set | p.Plugin.Set | func(id p.ID, more ...string) | |
| Option | p.Option | type func(*p.Plugin) | |
| New | p.New | func(opts ...p.Option) *p.Plugin | |
| Default | p.Default | var p.Plugin | |

### Ours

| symbol | signature | what it is for |
|---|---|---|
| p.Deps | type struct | |
| p.Deps.Name | field string | |
| p.Deps.More | field bool | |
| p.ID | type int | |
| p.Limit | const int | |
`

func thingPublished() publication {
	return publication{"Thing", "p", []symbol{
		{"API", "type interface"}, {"API.Get", "func(id uint32) (text string, err error)"}, {"Plugin", "type struct"},
		{"Plugin.Deps", "embedded p.Deps"}, {"Plugin.Set", "func(id podmodel.ID, more ...string)"}, {"Option", "type func(*p.Plugin)"},
		{"New", "func(opts ...p.Option) *p.Plugin"}, {"Default", "var p.Plugin"},
	}}
}

func findings(t *testing.T, code, text string, p publication) []string {
	t.Helper()
	u, a := smallUniverse(t, code), newAPIPage(text)
	var all []string
	for _, f := range append(append(a.published(u, p), a.beside(u, p)...), a.idle([]publication{p})...) {
		all = append(all, f.subject+": "+f.why)
	}
	return all
}

func TestPagesThatAreTrueHold(t *testing.T) {
	NewWithT(t).Expect(findings(t, thing, thingPage, thingPublished())).To(BeEmpty())
}

func TestPagesThatAreNotTrueAreFound(t *testing.T) {
	for _, x := range []struct {
		what, in, from, to string
		want               []string
	}{
		{"a row is missing", "page", "| New | p.New | func(opts ...p.Option) *p.Plugin | |\n", "",
			[]string{"New: it was published and has no row", "p.New: the package exports it, the page does not have it"}},
		{"a row says another type than the code and what was published", "page", "(id uint32)", "(id int32)",
			[]string{"p.API.Get: the page says", "API.Get: published as"}},
		{"code and page agree on something else than what was published", "both", "(id uint32)", "(id, more uint32)",
			[]string{"API.Get: published as", "p.Plugin.Get: the package exports it"}}, // which implements API no more
		{"the code has another result", "code", "Get(id uint32) (string, error)", "Get(id uint32) string",
			[]string{"p.API.Get: the page says", "p.Plugin.Get: the package exports it"}},
		{"the code lacks it", "code", "func (*Plugin) Set(id ID, more ...string) {}", "", []string{"p.Plugin.Set: there is no p.Plugin.Set"}},
		{"not variadic", "code", "more ...string", "more []string", []string{"p.Plugin.Set: the page says"}},
		{"a field instead of an embedded one", "code", "{ Deps; hidden", "{ Deps Deps; hidden", []string{"p.Plugin.Deps: the page says embedded p.Deps, the code field p.Deps"}},
		{"a pointer", "code", "var Default = *New()", "var Default = New()", []string{"p.Default: the page says var p.Plugin, the code var *p.Plugin"}},
		{"something else exported", "code", "const Limit", "func More() {}\nconst Limit", []string{"p.More: the package exports it"}},
		{"one more method", "code", "(string, error) }", "(string, error); More() }", []string{"p.API.More: the package exports it", "p.Plugin.Get: the package exports it"}},
		{"a row that was not published", "page", "| Default |", "| Defaults |", []string{"Defaults: it is not among what was published", "Default: it was published and has no row"}},
		{"no signature", "page", "func(*p.Plugin)", "func(*q.Plugin)", []string{`p.Option: "type func(*q.Plugin)" is not a signature`, "Option: published as"}},
		{"a substitution that is not needed", "page", "| podmodel.ID |", "| podmodel.ID | p.ID | |\n| infra.X |", []string{"infra.X: no published signature names it"}},
		{"a substitution that is missing", "page", "| podmodel.ID | p.ID | ours |\n", "", []string{"Plugin.Set: published as"}},
		{"an own symbol that is something else", "page", "const int", "const string", []string{"p.Limit: the page says const string, the code const int"}},
	} {
		code, text := thing, thingPage
		if x.in != "page" {
			code = strings.Replace(code, x.from, x.to, 1)
		}
		if x.in != "code" {
			text = strings.Replace(text, x.from, x.to, 1)
		}
		g := NewWithT(t)
		found := findings(t, code, text, thingPublished())
		g.Expect(found).To(HaveLen(len(x.want)), x.what)
		for _, want := range x.want {
			g.Expect(found).To(ContainElement(HavePrefix(want)), x.what)
		}
	}
}
