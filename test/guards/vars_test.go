// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// variables are the package variables that are there on purpose.
func variables() exceptions {
	return exceptions{
		"plugins/ipam/ipam.go: DefaultPlugin":            "published under this name as a variable",
		"internal/version/version.go: release":           "the linker writes package variables only",
		"internal/version/version.go: commit":            "the linker writes package variables only",
		"web/web.go: dist":                               "go:embed fills a package variable only",
		"operator/nodeipam/fence.go: ErrDeposed":         "the runner's error, under the name that docs/apis.md lists",
		"ipam/ipamapi/errors.go: ErrInvalidAddressSpace": "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrInvalidPool":         "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrInvalidSubPool":      "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrNoAvailableIPs":      "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrNoIPReturned":        "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrIPAlreadyAllocated":  "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrIPOutOfRange":        "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrPoolOverlap":         "published under this name, with a class",
		"ipam/ipamapi/errors.go: ErrBadPool":             "published under this name, with a class",
		"ipam/ipamapi/end.go: ErrPoolInUse":              "an error to compare with, that has a class",
		"ipam/ipamapi/errors.go: ErrNoMoreSubnets":       "an error to compare with, that has a class",
		"ipam/ipamapi/errors.go: ErrPoolNotFound":        "an error to compare with, that has a class",
		"ipam/ipamapi/errors.go: ErrInvalidAddress":      "an error to compare with, that has a class",
		"ipam/ipamapi/errors.go: ErrNotNow":              "an error to compare with, that has a class",
	}
}

// tables are package variables that are written like constants, which Go does
// not have for arrays: they are not assigned to, and their values are literals.
func tables() exceptions {
	return exceptions{
		"ledger/addrspace/word.go: aligned": "masks, indexed in the innermost loop of the free-space index",
		"ledger/addrspace/word.go: span":    "masks, indexed in the innermost loop of the free-space index",
	}
}

// globals finds what runs or lives before main: init functions and package
// variables. Free are assertions that a type implements an interface, and
// errors to compare with.
func globals(s source) []finding {
	if s.generated() {
		return nil
	}
	var found []finding
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name == "init" {
				found = append(found, finding{s.path, s.line(d), "init", "nothing happens before main: call it from where it is needed"})
			}
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				found = append(found, globalsOf(s, d)...)
			}
		}
	}
	return found
}

func globalsOf(s source, d *ast.GenDecl) []finding {
	var found []finding
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for i, name := range v.Names {
			var value ast.Expr
			if i < len(v.Values) {
				value = v.Values[i]
			}
			switch {
			case name.Name == "_" && v.Type != nil:
			case isSentinel(name.Name, value):
			case isTable(value) && tables()[s.path+": "+name.Name] != "":
			default:
				found = append(found, finding{s.path, s.line(name), name.Name, "no package variables: give it to the functions that need it"})
			}
		}
	}
	return found
}

// isSentinel is true for ErrX = errors.New(...) or fmt.Errorf(...).
func isSentinel(name string, value ast.Expr) bool {
	if ok, _ := regexp.MatchString(`^(Err|err)[A-Z]`, name); !ok {
		return false
	}
	call, ok := value.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && slices.Contains([]string{"errors.New", "fmt.Errorf"}, x.Name+"."+sel.Sel.Name)
}

// isTable is true for an array (not a slice, not a map) of numbers, strings or booleans.
func isTable(value ast.Expr) bool {
	lit, ok := value.(*ast.CompositeLit)
	if !ok {
		return false
	}
	array, ok := lit.Type.(*ast.ArrayType)
	if !ok || array.Len == nil {
		return false
	}
	elem, ok := array.Elt.(*ast.Ident)
	basic, _ := regexp.MatchString(`^(u?int(8|16|32|64)?|byte|rune|string|bool|float(32|64))$`, identName(elem))
	return ok && basic
}

func identName(id *ast.Ident) string {
	if id == nil {
		return ""
	}
	return id.Name
}

// idleTables finds tables that are not declared any more.
func idleTables(all []source) []finding {
	var used, found []finding
	for _, s := range all {
		for _, d := range s.file.Decls {
			for _, name := range declared(d) {
				used = append(used, finding{path: s.path, subject: name})
			}
		}
	}
	_, idle := tables().split(used)
	for _, key := range idle {
		found = append(found, finding{key, 0, "table", "it is not declared any more, or has no reason: take it out of tables"})
	}
	return found
}

// declared are the names of a var declaration.
func declared(d ast.Decl) (names []string) {
	if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
		for _, spec := range g.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				for _, n := range v.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

func TestGlobalsAreFound(t *testing.T) {
	g := NewWithT(t)
	const bad = `package p
import ("errors"; "fmt")
var _ fmt.Stringer = T{}
var ErrGood, errGood = errors.New("x"), fmt.Errorf("x")
var count int
var (
	errors1 = errors.New("not named like one")
	ErrLater error
	_ = register()
)
var cache = map[string]int{}
var aligned = [2]uint64{1, 2}
func init() {}
type T struct{}
func (T) init() {}
func f() { var local int; _ = local }
`
	g.Expect(subjects(t, globals, "p/p.go", bad)).To(Equal([]string{"count", "errors1", "ErrLater", "_", "cache", "aligned", "init"}))
	g.Expect(subjects(t, globals, "ledger/addrspace/word.go", bad)).To(Equal([]string{"count", "errors1", "ErrLater", "_", "cache", "init"}))
	g.Expect(subjects(t, globals, "ledger/addrspace/word.go", "package p\nvar aligned = []uint64{1}\nvar span = [1]*int{nil}")).
		To(Equal([]string{"aligned", "span"}), "these are not tables")
	g.Expect(idleTables([]source{parse(t, "ledger/addrspace/word.go", bad)})).To(HaveLen(1))
	g.Expect(subjects(t, globals, "p/p.pb.go", "// Code generated by protoc. DO NOT EDIT.\npackage p\nvar x int")).To(BeEmpty())
}
