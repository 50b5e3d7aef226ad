// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// apis holds the names that published signatures are written with.
type apis struct {
	packages map[string]string // import paths by the name in signatures
	instead  []substitution
}

// substitution is a type that stands in for a published one, and the reason.
type substitution struct{ published, here, why string }

// substitute puts our types for the published ones.
func (a apis) substitute(sig string) string {
	for _, s := range a.instead {
		sig = regexp.MustCompile(`\b`+regexp.QuoteMeta(s.published)+`\b`).ReplaceAllString(sig, s.here)
	}
	return sig
}

// declaration holds the kind and the type of a symbol.
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
func (a apis) read(u *universe, sig string) (declaration, error) {
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
func (a apis) find(u *universe, name string) (declaration, error) {
	parts := strings.Split(name, ".")
	p, err := u.Import(a.packages[parts[0]])
	if err != nil {
		return declaration{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(parts) < 2 {
		return declaration{}, fmt.Errorf("%s is not package.Symbol", name)
	}
	obj := lookup(p, parts[1:])
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

// published compares what a publication lists with the code.
func (a apis) published(u *universe, p publication) []finding {
	var found []finding
	report := func(name, format string, args ...any) {
		found = append(found, finding{p.page(), 0, name, fmt.Sprintf(format, args...)})
	}
	listed := map[string]bool{}
	for _, s := range p.symbols {
		listed[s.name] = true
		want, err := a.read(u, a.substitute(s.sig))
		if err != nil {
			report(s.name, "%s", err)
			continue
		}
		have, err := a.find(u, a.pageName(p.path, "")+"."+s.name)
		if err != nil {
			report(s.name, "%s", err)
			continue
		}
		if !have.same(want) {
			report(s.name, "published as %s, the code has %s", want, have)
		}
	}
	for name := range p.differs {
		if !listed[name] {
			report(name, "a difference is noted, and it was not published")
		}
	}
	return found
}

// undocumented finds symbols that the package exports beside the published ones without
// a doc comment. Members of a type may do without: their names and types say it.
func (a apis) undocumented(u *universe, docs *docIndex, p publication) []finding {
	var found []finding
	for _, s := range a.beside(u, p) {
		if docs.text(s.obj) == "" && !s.member {
			found = append(found, finding{p.page(), 0, s.name, "the package exports it without a doc comment"})
		}
	}
	return found
}

// ownSymbol is a symbol that a package has beside the published ones.
type ownSymbol struct {
	name   string // package.Symbol or package.Type.Member
	member bool
	obj    types.Object
}

// beside returns the symbols that the package of a publication exports and that were not
// published. Methods that only implement an interface of the package are left out: the
// members of the interface are there.
func (a apis) beside(u *universe, p publication) []ownSymbol {
	listed := map[string]bool{}
	for _, s := range p.symbols {
		listed[s.name] = true
	}
	here, err := u.Import(p.path)
	if err != nil {
		return nil
	}
	on := a.pageName(p.path, here.Name())
	var all []ownSymbol
	for _, name := range exported(here) {
		name = strings.TrimPrefix(name, here.Name()+".")
		if listed[name] || a.byInterface(here, name) {
			continue
		}
		if obj := lookup(here, strings.Split(name, ".")); obj != nil {
			all = append(all, ownSymbol{on + "." + name, strings.Contains(name, "."), obj})
		}
	}
	return all
}

// pageName returns the name of a package in signatures: two may have the same name.
func (a apis) pageName(path, name string) string {
	for on, of := range a.packages {
		if of == path {
			return on
		}
	}
	return name
}

// byInterface reports whether an interface of the package has the method Type.Method and
// Type implements it: ipam.FamilyAPI.X also documents ipam.IPAM.X.
func (a apis) byInterface(p *types.Package, name string) bool {
	typ, member, ok := strings.Cut(name, ".")
	if !ok || types.IsInterface(p.Scope().Lookup(typ).Type()) {
		return false
	}
	for _, other := range p.Scope().Names() {
		obj, ok := p.Scope().Lookup(other).(*types.TypeName)
		if !ok || !obj.Exported() {
			continue
		}
		face, ok := obj.Type().Underlying().(*types.Interface)
		if ok && method(obj.Type(), member) != nil && types.Implements(types.NewPointer(p.Scope().Lookup(typ).Type()), face) {
			return true
		}
	}
	return false
}

// lookup returns Symbol or Type.Member of a package, nil if there is none.
func lookup(p *types.Package, parts []string) types.Object {
	obj := p.Scope().Lookup(parts[0])
	if obj != nil && len(parts) == 2 {
		var index []int
		obj, index, _ = types.LookupFieldOrMethod(obj.Type(), true, p, parts[1])
		if len(index) != 1 {
			return nil // of something that is embedded
		}
	}
	return obj
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
func (a apis) idle(all []publication) []finding {
	var found []finding
	for _, sub := range a.instead {
		needed := slices.ContainsFunc(all, func(p publication) bool {
			return slices.ContainsFunc(p.symbols, func(s symbol) bool { return strings.Contains(s.sig, sub.published) })
		})
		if !needed {
			found = append(found, finding{"docs/apis.md", 0, sub.published, "no published signature names it"})
		}
	}
	return found
}

func TestPublishedAPIs(t *testing.T) {
	u, a := newUniverse(t), publishedNames()
	docs := newDocIndex(u)
	found := a.idle(publications())
	for _, p := range publications() {
		found = append(append(found, a.published(u, p)...), a.undocumented(u, docs, p)...)
	}
	expectClean(t, found, nil)
}
