// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

// docIndex returns the doc comments of packages of the main module. It reads a package
// when it is first asked for one of its symbols.
type docIndex struct {
	listed map[string]pkg
	set    *token.FileSet
	texts  map[string]map[token.Position]string // by package: the comment of the name at a position, columns apart
}

func newDocIndex(u *universe) *docIndex {
	return &docIndex{listed: u.listed, set: u.set, texts: map[string]map[token.Position]string{}}
}

// text returns the first paragraph of the comment of a symbol, in one line.
func (d *docIndex) text(obj types.Object) string {
	if obj.Pkg() == nil {
		return ""
	}
	path := obj.Pkg().Path()
	if d.texts[path] == nil {
		d.texts[path] = d.read(path)
	}
	text := d.texts[path][place(d.set, obj.Pos(), obj.Name())]
	text, _, _ = strings.Cut(text, "\n\n")
	return strings.Join(strings.Fields(text), " ")
}

// place returns the file and line of a position, with a name in place of the column,
// which export data does not have.
func place(set *token.FileSet, pos token.Pos, name string) token.Position {
	p := set.Position(pos)
	return token.Position{Filename: filepath.Base(p.Filename) + " " + name, Line: p.Line}
}

func (d *docIndex) read(path string) map[token.Position]string {
	texts, set := map[token.Position]string{}, token.NewFileSet()
	for _, name := range d.listed[path].GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(d.listed[path].Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil {
			comments(set, file, texts)
		}
	}
	return texts
}

// comments adds the comments of all names that a file declares.
func comments(set *token.FileSet, file *ast.File, texts map[token.Position]string) {
	add := func(id *ast.Ident, groups ...*ast.CommentGroup) {
		for _, c := range groups {
			if text := c.Text(); text != "" {
				texts[place(set, id.Pos(), id.Name)] = text
				return
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name, n.Doc)
		case *ast.GenDecl:
			for _, spec := range n.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name, spec.Doc, spec.Comment, n.Doc)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						add(id, spec.Doc, spec.Comment, n.Doc)
					}
				}
			}
		case *ast.Field:
			for _, id := range n.Names {
				add(id, n.Doc, n.Comment)
			}
		}
		return true
	})
}

// reference returns the generated page of a publication.
func (a apis) reference(u *universe, docs *docIndex, p publication) string {
	var text strings.Builder
	dir := strings.TrimPrefix(p.path, module+"/")
	fmt.Fprintf(&text, "# %s\n\n", p.heading)
	fmt.Fprintf(&text, "Published as %s; here in [%s](../../%s). [The published APIs](../apis.md) says how to read a signature.\n", p.source, dir, dir)
	text.WriteString("Generated from the code: `make generate` writes this page.\n\n")
	text.WriteString("## Published symbols\n\n| symbol | signature here | differences and details |\n|---|---|---|\n")
	on := a.pageName(p.path, "")
	for _, s := range p.symbols {
		note := p.differs[s.name]
		if obj, err := u.Import(p.path); err == nil && note == "" {
			if found := lookup(obj, strings.Split(s.name, ".")); found != nil {
				note = cell(new(doc.Package).Synopsis(docs.text(found)))
			}
		}
		fmt.Fprintf(&text, "| `%s.%s` | `%s` | %s |\n", on, s.name, a.substitute(s.sig), note)
	}
	text.WriteString("\n## Further symbols\n\n| symbol | signature | what it does or holds |\n|---|---|---|\n")
	qualify := func(p *types.Package) string { return a.pageName(p.Path(), p.Name()) }
	for _, s := range a.beside(u, p) {
		fmt.Fprintf(&text, "| `%s` | `%s` | %s |\n", s.name, signature(s.obj, qualify), cell(docs.text(s.obj)))
	}
	return text.String()
}

// cell makes a doc comment one cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "[", `\[`, "*", `\*`).Replace(text)
}

// signature returns the declaration of a symbol as the lists of published symbols have it.
func signature(obj types.Object, qualify types.Qualifier) string {
	d := declare(obj)
	if t, ok := obj.(*types.TypeName); ok {
		switch t.Type().Underlying().(type) {
		case *types.Interface:
			return "type interface"
		case *types.Struct:
			return "type struct"
		}
	}
	text := strings.ReplaceAll(types.TypeString(d.typ, qualify), "|", " or ")
	if d.kind == "func" {
		return text
	}
	return d.kind + " " + text
}

func TestReference(t *testing.T) {
	g := NewWithT(t)
	u, a := newUniverse(t), publishedNames()
	docs := newDocIndex(u)
	known := []string{}
	for _, p := range publications() {
		known = append(known, filepath.Base(p.page()))
		generated.File(t, filepath.Join(root, filepath.FromSlash(p.page())), a.reference(u, docs, p))
	}
	overview, err := os.ReadFile(filepath.Join(root, "docs", "apis.md"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range known {
		g.Expect(string(overview)).To(ContainSubstring("](reference/" + name + ")"))
	}
	for _, s := range a.instead {
		g.Expect(string(overview)).To(ContainSubstring(fmt.Sprintf("| `%s` | `%s` | %s", s.published, s.here, s.why)))
	}
	files, err := os.ReadDir(filepath.Join(root, "docs", "reference"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, f := range files {
		g.Expect(slices.Contains(known, f.Name())).To(BeTrue(), "docs/reference/%s is of no publication: remove it", f.Name())
	}
}
