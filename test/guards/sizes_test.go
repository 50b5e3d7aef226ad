// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"bytes"
	"fmt"
	"go/ast"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Limits of a function and a file. Statements and nesting are limited, not
// lines or parameters: those limits are met by packing lines and by structs
// that exist for one call.
const (
	maxStatements = 60
	maxNesting    = 4
	maxFileLines  = 1000
)

// large lists the functions and files that exceed a limit.
func large() exceptions {
	const combinations = "one loop for each input: all combinations are tested"
	return exceptions{
		"api/watermark/watermark_test.go: TestAWSHasTheSameFormula":                   combinations,
		"api/watermark/watermark_test.go: states":                                     combinations,
		"plugins/ipam/poolplan/world_test.go: check":                                  combinations,
		"plugins/nodesync/claim_faults_test.go: faultAtEachStep":                      combinations,
		"plugins/nodesync/claim_test.go: TestTheOrderOfIDsAtRandom":                   combinations,
		"plugins/nodesync/claims/model_test.go: check":                                combinations,
		"plugins/nodesync/session_test.go: TestACrashAtAnyMomentIsFollowedByARestart": combinations,
	}
}

// sizes finds functions and files that exceed a limit.
func sizes(s source) []finding {
	if s.generated() {
		return nil
	}
	var found []finding
	if n := bytes.Count(s.text, []byte("\n")); n > maxFileLines {
		found = append(found, finding{s.path, 0, "file", fmt.Sprintf("%d lines, more than %d", n, maxFileLines)})
	}
	check := func(name string, body *ast.BlockStmt) {
		if n := statements(body); n > maxStatements {
			found = append(found, finding{s.path, s.line(body), name, fmt.Sprintf("%d statements, more than %d", n, maxStatements)})
		}
		if n := nesting(body); n > maxNesting {
			found = append(found, finding{s.path, s.line(body), name, fmt.Sprintf("%d levels of nesting, more than %d", n, maxNesting)})
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch f := n.(type) {
		case *ast.FuncDecl:
			if f.Body != nil {
				check(f.Name.Name, f.Body)
			}
		case *ast.FuncLit:
			check("function literal", f.Body)
		}
		return true
	})
	return found
}

// statements counts the statements of a function without those of the function
// literals in it. A block is counted by what is in it.
func statements(body *ast.BlockStmt) (count int) {
	ast.Inspect(body, func(x ast.Node) bool {
		switch x.(type) {
		case *ast.FuncLit:
			return false
		case *ast.BlockStmt, *ast.LabeledStmt, *ast.CaseClause, *ast.CommClause:
		case ast.Stmt:
			count++
		}
		return true
	})
	return count
}

// nesting counts how many control statements of a function contain each other,
// without those of the function literals in it. An else-if continues its chain
// on the same level.
func nesting(body *ast.BlockStmt) int {
	deepest := 0
	var visit func(n ast.Node, level int)
	visit = func(n ast.Node, level int) {
		deepest = max(deepest, level)
		ast.Inspect(n, func(x ast.Node) bool {
			if x == n {
				return true
			}
			switch x := x.(type) {
			case *ast.FuncLit:
				return false
			case *ast.IfStmt:
				visitIf(x, level+1, visit)
				return false
			case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
				visit(x, level+1)
				return false
			}
			return true
		})
	}
	visit(body, 0)
	return deepest
}

// visitIf visits the branches of a chain of else-ifs on one level.
func visitIf(x *ast.IfStmt, level int, visit func(ast.Node, int)) {
	if x.Init != nil {
		visit(x.Init, level)
	}
	visit(x.Cond, level)
	visit(x.Body, level)
	switch next := x.Else.(type) {
	case *ast.IfStmt:
		visitIf(next, level, visit)
	case *ast.BlockStmt:
		visit(next, level)
	}
}

func TestSizesFindsLargeFunctions(t *testing.T) {
	g := NewWithT(t)
	function := func(body string) string { return "package p\nfunc f() {\n" + body + "}" }
	nest := func(open string, levels int) string {
		return strings.Repeat(open+" {\n", levels) + strings.Repeat("}\n", levels)
	}
	g.Expect(subjects(t, sizes, "p/p.go", "package p"+strings.Repeat("\n", maxFileLines+1))).To(Equal([]string{"file"}))
	g.Expect(subjects(t, sizes, "p/p.go", "package p"+strings.Repeat("\n", maxFileLines))).To(BeEmpty())
	g.Expect(subjects(t, sizes, "p/p.go", function(strings.Repeat("g()\n", maxStatements+1)))).To(Equal([]string{"f"}))
	g.Expect(subjects(t, sizes, "p/p.go", function(strings.Repeat("g()\n", maxStatements)))).To(BeEmpty())
	g.Expect(subjects(t, sizes, "p/p.go", function(nest("for", maxNesting+1)))).To(Equal([]string{"f"}))
	g.Expect(subjects(t, sizes, "p/p.go", function(nest("for", maxNesting)))).To(BeEmpty())
	g.Expect(subjects(t, sizes, "p/p.go", function("g(func() {\n"+nest("for", maxNesting+1)+"})\n"))).To(Equal([]string{"function literal"}))
	g.Expect(subjects(t, sizes, "p/p.go", function(nest("for", maxNesting-1)+"g(func() {\n"+nest("for", maxNesting)+"})\n"))).To(BeEmpty())
	g.Expect(subjects(t, sizes, "p/p.go", function(strings.Repeat("if a {\n} else ", maxNesting+2)+"{ b() }\n"))).To(BeEmpty())
}
