// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// universe is packages with their types: plugins from their sources, all
// others from what the compiler has exported.
type universe struct {
	set     *token.FileSet
	listed  map[string]pkg
	checked map[string]*checked
	others  types.Importer
}

// checked is a package that was read from its sources.
type checked struct {
	types *types.Package
	info  *types.Info
	files []*ast.File
}

// newUniverse has all plugins, and what they are made of.
func newUniverse(t testing.TB) *universe {
	t.Helper()
	u := &universe{
		set: token.NewFileSet(), checked: map[string]*checked{},
		listed: goList(t, "-export", "-json=ImportPath,Standard,Export,Dir,GoFiles", "./plugins/...", "./ipam/...", "./operator/..."),
	}
	u.others = importer.ForCompiler(u.set, "gc", func(path string) (io.ReadCloser, error) {
		if u.listed[path].Export == "" {
			return nil, fmt.Errorf("package %s is not among what the plugins import", path)
		}
		return os.Open(u.listed[path].Export)
	})
	for path := range u.listed {
		if strings.HasPrefix(path, module+"/plugins/") {
			if _, err := u.Import(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	return u
}

// Import makes the universe an importer.
func (u *universe) Import(path string) (*types.Package, error) {
	if c, ok := u.checked[path]; ok {
		return c.types, nil
	}
	if !strings.HasPrefix(path, module+"/plugins/") {
		return u.others.Import(path)
	}
	var files []*ast.File
	for _, name := range u.listed[path].GoFiles {
		file, err := parser.ParseFile(u.set, filepath.Join(u.listed[path].Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	c, err := u.check(path, files)
	if err != nil {
		return nil, err
	}
	u.checked[path] = c
	return c.types, nil
}

func (u *universe) check(path string, files []*ast.File) (*checked, error) {
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: u}
	p, err := conf.Check(path, u.set, files, info)
	return &checked{p, info, files}, err
}

// smallUniverse has one package, made of texts without imports.
func smallUniverse(t testing.TB, texts ...string) *universe {
	t.Helper()
	u := &universe{set: token.NewFileSet(), checked: map[string]*checked{}}
	var files []*ast.File
	for _, text := range texts {
		file, err := parser.ParseFile(u.set, "p.go", text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	c, err := u.check("p", files)
	if err != nil {
		t.Fatal(err)
	}
	u.checked["p"] = c
	return u
}

// named are the types that the packages declare, and pointers to them.
func (u *universe) named() []types.Type {
	var all []types.Type
	for _, c := range u.checked {
		for _, name := range c.types.Scope().Names() {
			obj, ok := c.types.Scope().Lookup(name).(*types.TypeName)
			if !ok || obj.IsAlias() || types.IsInterface(obj.Type()) {
				continue
			}
			if n, ok := obj.Type().(*types.Named); ok && n.TypeParams().Len() == 0 {
				all = append(all, types.NewPointer(n))
			}
		}
	}
	slices.SortFunc(all, func(x, y types.Type) int { return strings.Compare(x.String(), y.String()) })
	return all
}

// method is the method of that name, nil if t has none.
func method(t types.Type, name string) *types.Func {
	set := types.NewMethodSet(t)
	for i := range set.Len() {
		if f, ok := set.At(i).Obj().(*types.Func); ok && f.Name() == name {
			return f
		}
	}
	return nil
}
