// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Pages whose tables name the test of each row.
const (
	scenariosPage = "docs/scenarios.md"
	scriptsFolder = "test/acceptance/scenarios/testdata/"
)

// testsOf returns the names of the tests, each with its folder.
func testsOf(all []source) map[string]bool {
	names := map[string]bool{}
	for _, s := range all {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test() && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names[s.dir()+"."+f.Name.Name] = true
			}
		}
	}
	return names
}

// rowsWithoutTests finds rows of tables that have a column "tests" and name no test of a
// folder that exists, or one that does not exist.
func rowsWithoutTests(p page, tests map[string]bool) []finding {
	named := regexp.MustCompile("`([\\w/.-]+\\.Test\\w+)`")
	var found []finding
	for _, table := range markdown(p).tables {
		at := -1
		for i, cell := range table[0].cells {
			if cell == "tests" {
				at = i
			}
		}
		if at < 0 {
			continue
		}
		for _, r := range table[1:] {
			cell := r.cells[at]
			all := named.FindAllStringSubmatch(cell, -1)
			if len(all) == 0 && !strings.Contains(cell, ".txtar)") {
				found = append(found, finding{p.path, r.line, r.cells[0], "the row names no test as `folder.TestName` and links no script"})
			}
			for _, m := range all {
				if !tests[m[1]] {
					found = append(found, finding{p.path, r.line, m[1], "there is no such test in that folder"})
				}
			}
		}
	}
	return found
}

// scripts finds scripts of scenarios that the page does not link, and numbers that it lacks.
func scripts(p page, all []page) []finding {
	var found []finding
	for _, x := range all {
		if strings.HasPrefix(x.path, scriptsFolder) && !strings.Contains(string(p.text), "](../"+x.path+")") {
			found = append(found, finding{x.path, 0, path.Base(x.path), "a script has a row in " + scenariosPage})
		}
	}
	for n := 1; n <= 20; n++ {
		if !strings.Contains(string(p.text), fmt.Sprintf("\n| %d | ", n)) {
			found = append(found, finding{p.path, 0, fmt.Sprint(n), "the table has no such scenario"})
		}
	}
	return found
}

func TestScenariosAndThreatsNameTheirTests(t *testing.T) {
	tests, all := testsOf(sources(t)), pages(t)
	var found []finding
	for _, p := range all {
		switch p.path {
		case scenariosPage:
			found = append(found, rowsWithoutTests(p, tests)...)
			found = append(found, scripts(p, all)...)
		case "SECURITY.md":
			found = append(found, rowsWithoutTests(p, tests)...)
		}
	}
	expectClean(t, found, nil)
}

func TestRowsWithoutTestsAreFound(t *testing.T) {
	g := NewWithT(t)
	p := page{"docs/a.md", []byte("| threat | tests |\n|---|---|\n| a | `x/y.TestOne` |\n| b | `x.TestOne` |\n| c | |\n| d | [s](s.txtar) |\n\n| other |\n|---|\n| e |\n")}
	var got []string
	for _, f := range rowsWithoutTests(p, map[string]bool{"x/y.TestOne": true}) {
		got = append(got, f.String())
	}
	g.Expect(got).To(Equal([]string{
		"docs/a.md:4: x.TestOne: there is no such test in that folder",
		"docs/a.md:5: c: the row names no test as `folder.TestName` and links no script",
	}))
	missing := scripts(page{scenariosPage, []byte("\n| 1 | x | [s](../" + scriptsFolder + "1.txtar) |\n| 2 | \n")}, []page{{scriptsFolder + "1.txtar", nil}, {scriptsFolder + "2.txtar", nil}})
	g.Expect(missing).To(HaveLen(1 + 18))
	g.Expect(missing[0].subject).To(Equal("2.txtar"))
}
