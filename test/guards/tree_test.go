// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// module is the path of the main module.
const module = "github.com/cadastre/cadastre"

// root is the path of the repository, seen from this folder.
const root = "../.."

// page is a file of the repository; path is from its root, with slashes.
type page struct {
	path string
	text []byte
}

// source is a page of Go.
type source struct {
	page
	set  *token.FileSet
	file *ast.File
}

func (s source) dir() string         { return path.Dir(s.path) }
func (s source) test() bool          { return strings.HasSuffix(s.path, "_test.go") }
func (s source) generated() bool     { return ast.IsGenerated(s.file) }
func (s source) line(n ast.Node) int { return s.set.Position(n.Pos()).Line }

// in tells whether the file is in one of the folders or below.
func (s source) in(folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(s.path, f+"/") })
}

// imported is the name by which the file calls an imported package, "" if it
// does not import it.
func (s source) imported(pkg string) string {
	for _, spec := range s.file.Imports {
		if strings.Trim(spec.Path.Value, `"`) != pkg {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(pkg)
	}
	return ""
}

// pages reads the files of the repository: those that git knows or would be
// asked to, and all where there is no git.
func pages(t testing.TB) []page {
	t.Helper()
	known := tracked()
	var all []page
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains([]string{".git", ".run", ".cache", "bin"}, rel) || strings.HasSuffix(rel, "testdata/rapid") {
				return filepath.SkipDir
			}
			return nil
		}
		if known != nil && !known[rel] || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(p)
		all = append(all, page{rel, text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// tracked returns the files that git does not ignore, nil without git.
func tracked() map[string]bool {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	known := map[string]bool{}
	for name := range bytes.SplitSeq(out, []byte{0}) {
		known[string(name)] = true
	}
	return known
}

// sources parses the Go files of the main module.
func sources(t testing.TB) []source {
	t.Helper()
	all := pages(t)
	var nested []string // modules of their own
	for _, p := range all {
		if path.Base(p.path) == "go.mod" && p.path != "go.mod" {
			nested = append(nested, path.Dir(p.path))
		}
	}
	var parsed []source
	for _, p := range all {
		if path.Ext(p.path) != ".go" || strings.Contains("/"+p.path, "/testdata/") {
			continue
		}
		if s := parse(t, p.path, string(p.text)); !s.in(nested...) {
			parsed = append(parsed, s)
		}
	}
	if len(parsed) == 0 {
		t.Fatal("no Go files: the guards look into the wrong place")
	}
	return parsed
}

// parse makes a source of a text.
func parse(t testing.TB, name, text string) source {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return source{page{name, []byte(text)}, set, file}
}

// finding is one violation of a rule. An exception is made by path and subject,
// never by line.
type finding struct {
	path    string
	line    int // 0: the whole file
	subject string
	why     string
}

func (f finding) String() string {
	if f.line == 0 {
		return fmt.Sprintf("%s: %s: %s", f.path, f.subject, f.why)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.path, f.line, f.subject, f.why)
}

// exceptions are reasons by "path: subject".
type exceptions map[string]string

// split takes the exceptions out of what was found, and tells which of them
// were not needed.
func (e exceptions) split(found []finding) (left, idle []string) {
	unused := maps.Clone(e)
	for _, f := range found {
		key := f.path + ": " + f.subject
		if reason, ok := e[key]; ok && reason != "" {
			delete(unused, key)
			continue
		}
		left = append(left, f.String())
	}
	return left, slices.Sorted(maps.Keys(unused))
}

// expectClean fails with every finding that is not an exception.
func expectClean(t *testing.T, found []finding, except exceptions) {
	t.Helper()
	left, idle := except.split(found)
	for _, f := range left {
		t.Error(f)
	}
	for _, key := range idle {
		t.Errorf("exception %q is not needed any more, or has no reason: remove it", key)
	}
}

// each applies a rule to every source.
func each(all []source, rule func(source) []finding) []finding {
	var found []finding
	for _, s := range all {
		found = append(found, rule(s)...)
	}
	return found
}

// subjects returns the subjects of a rule's findings in a text, for bad cases.
func subjects(t *testing.T, rule func(source) []finding, name, text string) []string {
	t.Helper()
	var all []string
	for _, f := range rule(parse(t, name, text)) {
		all = append(all, f.subject)
	}
	return all
}

func TestExceptionsMustBeNeededAndExplained(t *testing.T) {
	g := NewWithT(t)
	found := []finding{{"a.go", 3, "x", "no"}, {"b.go", 0, "y", "no"}, {"c.go", 1, "z", "no"}}
	left, idle := exceptions{"a.go: x": "because", "c.go: z": "", "d.go: x": "because"}.split(found)
	g.Expect(left).To(Equal([]string{"b.go: y: no", "c.go:1: z: no"}))
	g.Expect(idle).To(Equal([]string{"c.go: z", "d.go: x"}))
}
