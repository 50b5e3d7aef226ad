// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// apiPage is docs/apis.md as the test reads it.
type apiPage struct {
	document
	packages map[string]string // import paths by name
	instead  map[string]string // substitutions
}

func newAPIPage(text string) apiPage {
	a := apiPage{markdown(page{"docs/apis.md", []byte(text)}), map[string]string{}, map[string]string{}}
	for _, r := range a.section("The published APIs", "Name on this page", "Package") {
		a.packages[bare(r.cells[0])] = bare(r.cells[1])
	}
	for _, r := range a.section("Substitutions", "published", "here", "why") {
		a.instead[bare(r.cells[0])] = bare(r.cells[1])
	}
	return a
}

func bare(cell string) string { return strings.Trim(cell, "`") }

// section are the rows of the tables below a heading that have these columns.
func (a apiPage) section(name string, columns ...string) []row {
	i := slices.IndexFunc(a.headings, func(h heading) bool { return h.text == name })
	if i < 0 {
		return nil
	}
	end := 1 << 30
	for _, h := range a.headings[i+1:] {
		if h.level <= a.headings[i].level {
			end = h.line
			break
		}
	}
	var rows []row
	for _, table := range a.tables {
		if at := table[0].line; at > a.headings[i].line && at < end && slices.Equal(table[0].cells, columns) {
			rows = append(rows, table[1:]...)
		}
	}
	return rows
}

// substitute puts our types for the published ones.
func (a apiPage) substitute(sig string) string {
	for _, from := range slices.Sorted(maps.Keys(a.instead)) {
		sig = regexp.MustCompile(`\b`+regexp.QuoteMeta(from)+`\b`).ReplaceAllString(sig, a.instead[from])
	}
	return sig
}

// declaration holds a signature of the page.
type declaration struct {
	kind string // func, var, const, type, field, embedded
	typ  types.Type
}

func (d declaration) String() string {
	return d.kind + " " + types.TypeString(d.typ, (*types.Package).Name)
}

func (d declaration) same(e declaration) bool {
	return d.kind == e.kind && types.Identical(d.typ, e.typ)
}

// read makes a declaration of a signature. An interface or struct without its
// members is an empty one.
func (a apiPage) read(u *universe, sig string) (declaration, error) {
	kind, text := "func", sig
	if !strings.HasPrefix(sig, "func(") {
		kind, text, _ = strings.Cut(sig, " ")
	}
	if kind == "type" && (text == "interface" || text == "struct") {
		text += "{}"
	}
	var source strings.Builder
	source.WriteString("package check\n")
	for name, path := range a.packages {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(text) {
			fmt.Fprintf(&source, "import %s %q\n", name, path)
		}
	}
	fmt.Fprintf(&source, "var x %s\n", text)
	file, err := parser.ParseFile(u.set, "signature", source.String(), parser.SkipObjectResolution)
	if err != nil {
		return declaration{}, fmt.Errorf("%q is not a signature: %w", sig, err)
	}
	c, err := u.check("check", []*ast.File{file})
	if err != nil {
		return declaration{}, fmt.Errorf("%q is not a signature: %w", sig, err)
	}
	return declaration{kind, c.types.Scope().Lookup("x").Type()}, nil
}

// find is the declaration of package.Symbol or package.Type.Member.
func (a apiPage) find(u *universe, name string) (declaration, error) {
	parts := strings.Split(name, ".")
	p, err := u.Import(a.packages[parts[0]])
	if err != nil {
		return declaration{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(parts) < 2 {
		return declaration{}, fmt.Errorf("%s is not package.Symbol", name)
	}
	obj := p.Scope().Lookup(parts[1])
	if obj != nil && len(parts) == 3 {
		var index []int
		obj, index, _ = types.LookupFieldOrMethod(obj.Type(), true, p, parts[2])
		if len(index) != 1 {
			obj = nil // of something that is embedded
		}
	}
	if obj == nil || !obj.Exported() {
		return declaration{}, fmt.Errorf("there is no %s", name)
	}
	return declare(obj), nil
}

func declare(obj types.Object) declaration {
	switch obj := obj.(type) {
	case *types.Func:
		sig := obj.Signature() // without its receiver
		return declaration{"func", types.NewSignatureType(nil, nil, nil, sig.Params(), sig.Results(), sig.Variadic())}
	case *types.Const:
		return declaration{"const", types.Default(obj.Type())}
	case *types.TypeName:
		switch typ := obj.Type().Underlying().(type) {
		case *types.Interface:
			return declaration{"type", types.NewInterfaceType(nil, nil).Complete()}
		case *types.Struct:
			return declaration{"type", types.NewStruct(nil, nil)}
		default:
			return declaration{"type", typ}
		}
	case *types.Var:
		switch {
		case obj.Embedded():
			return declaration{"embedded", obj.Type()}
		case obj.IsField():
			return declaration{"field", obj.Type()}
		}
		return declaration{"var", obj.Type()}
	}
	return declaration{"", obj.Type()}
}

// compare finds rows that the code does not bear out.
func (a apiPage) compare(u *universe, r row, name, sig string) []finding {
	want, err := a.read(u, sig)
	if err != nil {
		return []finding{{"docs/apis.md", r.line, name, err.Error()}}
	}
	have, err := a.find(u, name)
	if err != nil {
		return []finding{{"docs/apis.md", r.line, name, err.Error()}}
	}
	if !have.same(want) {
		return []finding{{"docs/apis.md", r.line, name, fmt.Sprintf("the page says %s, the code %s", want, have)}}
	}
	return nil
}

// published compares the page with a publication, and both with the code.
func (a apiPage) published(u *universe, p publication) []finding {
	var found []finding
	listed := map[string]string{}
	for _, s := range p.symbols {
		listed[s.name] = s.sig
	}
	rows := map[string]bool{}
	for _, r := range a.section(p.heading, "published symbol", "here", "signature here", "note") {
		name, here, sig := bare(r.cells[0]), bare(r.cells[1]), bare(r.cells[2])
		rows[name] = true
		found = append(found, a.compare(u, r, here, sig)...)
		if listed[name] == "" {
			found = append(found, finding{"docs/apis.md", r.line, name, "it is not among what was published"})
			continue
		}
		was, err := a.read(u, a.substitute(listed[name]))
		is, err2 := a.read(u, sig)
		if err != nil || err2 != nil || !was.same(is) {
			found = append(found, finding{"docs/apis.md", r.line, name, fmt.Sprintf("published as %q, which does not become %q", listed[name], sig)})
		}
	}
	for _, s := range p.symbols {
		if !rows[s.name] {
			found = append(found, finding{"docs/apis.md", 0, s.name, "it was published and has no row"})
		}
	}
	return found
}

// beside compares what the page says of our own symbols with the code, and
// finds what the package exports and the page does not have.
func (a apiPage) beside(u *universe, p publication) []finding {
	var found []finding
	rows := map[string]bool{}
	for _, r := range a.section(p.heading, "symbol", "signature", "what it is for") {
		rows[bare(r.cells[0])] = true
		found = append(found, a.compare(u, r, bare(r.cells[0]), bare(r.cells[1]))...)
	}
	for _, r := range a.section(p.heading, "published symbol", "here", "signature here", "note") {
		rows[bare(r.cells[1])] = true
	}
	here, err := u.Import(p.path)
	if err != nil {
		return append(found, finding{p.path, 0, "", err.Error()})
	}
	for _, name := range exported(here) {
		name = a.pageName(p.path, here.Name()) + strings.TrimPrefix(name, here.Name())
		if !rows[name] && !rows[a.byInterface(u, name, rows)] {
			found = append(found, finding{"docs/apis.md", 0, name, "the package exports it, the page does not have it"})
		}
	}
	return found
}

// pageName returns the page's name of a package: two may have the same name.
func (a apiPage) pageName(path, name string) string {
	for on, of := range a.packages {
		if of == path {
			return on
		}
	}
	return name
}

// byInterface is the row of an interface of the package that has the method
// name and that its type implements: ipam.IPAM.X is told of by ipam.FamilyAPI.X.
func (a apiPage) byInterface(u *universe, name string, rows map[string]bool) string {
	parts := strings.Split(name, ".")
	if len(parts) != 3 {
		return ""
	}
	p, err := u.Import(a.packages[parts[0]])
	if err != nil {
		return ""
	}
	for _, other := range p.Scope().Names() {
		face, ok := p.Scope().Lookup(other).Type().Underlying().(*types.Interface)
		row := parts[0] + "." + other + "." + parts[2]
		if ok && rows[row] && types.Implements(types.NewPointer(p.Scope().Lookup(parts[1]).Type()), face) {
			return row
		}
	}
	return ""
}

// exported are the symbols of a package, with the members of its types.
func exported(p *types.Package) []string {
	var all []string
	add := func(obj types.Object, path string) {
		if obj.Exported() {
			all = append(all, path+"."+obj.Name())
		}
	}
	for _, name := range p.Scope().Names() {
		obj := p.Scope().Lookup(name)
		add(obj, p.Name())
		typ, ok := obj.(*types.TypeName)
		if !ok || !obj.Exported() {
			continue
		}
		path := p.Name() + "." + name
		if named, ok := typ.Type().(*types.Named); ok {
			for m := range named.Methods() {
				add(m, path)
			}
		}
		switch t := typ.Type().Underlying().(type) {
		case *types.Interface:
			for m := range t.Methods() {
				add(m, path)
			}
		case *types.Struct:
			for f := range t.Fields() {
				add(f, path)
			}
		}
	}
	return all
}

// idle finds substitutions that no published signature needs.
func (a apiPage) idle(all []publication) []finding {
	var found []finding
	for from := range a.instead {
		needed := slices.ContainsFunc(all, func(p publication) bool {
			return slices.ContainsFunc(p.symbols, func(s symbol) bool { return strings.Contains(s.sig, from) })
		})
		if !needed {
			found = append(found, finding{"docs/apis.md", 0, from, "no published signature names it"})
		}
	}
	return found
}

func TestPublishedAPIs(t *testing.T) {
	u := newUniverse(t)
	all := pages(t)
	i := slices.IndexFunc(all, func(p page) bool { return p.path == "docs/apis.md" })
	NewWithT(t).Expect(i).To(BeNumerically(">=", 0), "docs/apis.md is missing")
	a := newAPIPage(string(all[i].text))
	found := a.idle(publications())
	for _, p := range publications() {
		found = append(append(found, a.published(u, p)...), a.beside(u, p)...)
	}
	expectClean(t, found, nil)
}
