// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Pages that list what a user can see.
const (
	eventsPage = "docs/events.md"
	errorsPage = "docs/errors.md"
)

// listing is a set of names in the code that a table of a page must have, and no more.
type listing struct {
	page string
	code map[string]bool
	what string
}

// column returns the names in backquotes of the first n columns of the tables with a header.
func column(doc document, n int, header ...string) map[string]int {
	names := map[string]int{}
	for _, table := range doc.tables {
		if len(table[0].cells) < len(header) || !slices.Equal(table[0].cells[:len(header)], header) {
			continue
		}
		for _, r := range table[1:] {
			for _, cell := range r.cells[:n] {
				for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
					names[m[1]] = r.line
				}
			}
		}
	}
	return names
}

// differences compares names of the code with those of a page.
func (l listing) differences(named map[string]int) []finding {
	var found []finding
	for _, name := range slices.Sorted(maps.Keys(l.code)) {
		if _, ok := named[name]; !ok {
			found = append(found, finding{l.page, 0, name, "the code has this " + l.what + ", the page does not"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !l.code[name] {
			found = append(found, finding{l.page, named[name], name, "the code has no such " + l.what})
		}
	}
	return found
}

// text returns the value of a string literal, "" if n is another node.
func text(n ast.Expr) string {
	if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if s, err := strconv.Unquote(lit.Value); err == nil {
			return s
		}
	}
	return ""
}

// loopEvents returns the names of the events of the loop: what GetName returns.
func loopEvents(s source) map[string]bool {
	names := map[string]bool{}
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil || f.Name.Name != "GetName" || f.Body == nil || len(f.Body.List) != 1 {
			continue
		}
		if r, ok := f.Body.List[0].(*ast.ReturnStmt); ok && len(r.Results) == 1 && text(r.Results[0]) != "" {
			names[text(r.Results[0])] = true
		}
	}
	return names
}

// reasons returns the words that a source uses as the reason or the type of a Kubernetes
// Event or condition: strings that are assigned to a name that ends so.
func reasons(s source) map[string]bool {
	names := map[string]bool{}
	word := regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
	take := func(name string, value ast.Expr) {
		is := strings.HasPrefix(name, "Reason") || name == "configWarning" || strings.HasSuffix(name, "Condition") || name == "ConditionProblem"
		if is && word.MatchString(text(value)) {
			names[text(value)] = true
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok {
				take(id.Name, n.Value)
			}
		case *ast.ValueSpec:
			typ, _ := n.Type.(*ast.Ident)
			for i, id := range n.Names {
				if i < len(n.Values) {
					take(id.Name, n.Values[i])
					if typ != nil && typ.Name == "Reason" {
						take("Reason", n.Values[i])
					}
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if sel, ok := to.(*ast.SelectorExpr); ok && i < len(n.Rhs) {
					take(sel.Sel.Name, n.Rhs[i])
				}
			}
		}
		return true
	})
	return names
}

// constants returns the values of the number constants whose names begin with a word.
func constants(s source, begin string) map[string]bool {
	values := map[string]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, id := range spec.Names {
			if strings.HasPrefix(id.Name, begin) && i < len(spec.Values) {
				if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.INT {
					values[lit.Value] = true
				}
			}
		}
		return true
	})
	return values
}

// fieldsOf returns the exported fields of a struct type.
func fieldsOf(s source, name string) map[string]bool {
	fields := map[string]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return true
		}
		if st, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, id := range f.Names {
					fields[id.Name] = ast.IsExported(id.Name)
				}
			}
		}
		return false
	})
	return fields
}

// actionNames returns the names that the String method of ledger.Action passes to name.
func actionNames(s source) map[string]bool {
	names := map[string]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 3 || text(call.Args[0]) != "action" {
			return true
		}
		for _, arg := range call.Args[2:] {
			if text(arg) != "" {
				names[text(arg)] = true
			}
		}
		return true
	})
	return names
}

// statuses returns the HTTP statuses of errors that a source writes.
func statuses(s source) map[string]bool {
	numbers := map[string]string{
		"BadRequest": "400", "Unauthorized": "401", "Forbidden": "403", "NotFound": "404", "MethodNotAllowed": "405", "Conflict": "409",
		"Gone": "410", "TooManyRequests": "429", "InternalServerError": "500", "NotImplemented": "501", "BadGateway": "502",
		"ServiceUnavailable": "503", "GatewayTimeout": "504",
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bhttp\.Status([A-Z]\w+)`).FindAllSubmatch(s.text, -1) {
		if n := numbers[string(m[1])]; n != "" {
			used[n] = true
		}
	}
	return used
}

// gather joins what a rule finds in the sources of folders, tests apart.
func gather(all []source, rule func(source) map[string]bool, folders ...string) map[string]bool {
	joined := map[string]bool{}
	for _, s := range all {
		inside := s.in(folders...) || slices.Contains(folders, s.path)
		if inside && !s.test() && !s.generated() && !strings.Contains(s.path, "test/") {
			maps.Copy(joined, rule(s))
		}
	}
	return joined
}

func TestPagesOfEventsAndErrorsListTheCode(t *testing.T) {
	all := sources(t)
	docs := map[string]document{}
	for _, p := range pages(t) {
		if p.path == eventsPage || p.path == errorsPage {
			docs[p.path] = markdown(p)
		}
	}
	g := NewWithT(t)
	g.Expect(docs).To(HaveLen(2))
	fields := func(name string) func(source) map[string]bool {
		return func(s source) map[string]bool { return fieldsOf(s, name) }
	}
	var found []finding
	for _, l := range []struct {
		listing
		named map[string]int
	}{
		{
			listing{page: eventsPage, what: "event of the loop", code: gather(all, loopEvents, "controller", "plugins")},
			column(docs[eventsPage], 1, "event", "method"),
		},
		{
			listing{page: eventsPage, what: "field of a record", code: gather(all, fields("Record"), "controller")},
			column(docs[eventsPage], 1, "field", "content"),
		},
		{
			listing{page: eventsPage, what: "action of the history", code: gather(all, actionNames, "ledger/history.go")},
			column(docs[eventsPage], 1, "action", "meaning"),
		},
		{
			listing{
				page: eventsPage, what: "reason or condition",
				code: gather(all, reasons, "agent", "plugins/podmanager", "operator/nodeipam", "operator/netresource", "operator/runner"),
			},
			joinLines(column(docs[eventsPage], 1, "reason", "on"), column(docs[eventsPage], 2, "condition of a Node", "reason")),
		},
		{
			listing{page: errorsPage, what: "status", code: gather(all, statuses, "plugins/restapi")},
			column(docs[errorsPage], 1, "status", "cause"),
		},
	} {
		g.Expect(l.code).NotTo(BeEmpty(), l.what)
		found = append(found, l.differences(l.named)...)
	}
	// The example of a reason and the condition of Kubernetes are not names of the code.
	expectClean(t, found, exceptions{
		eventsPage + ": BlockOnTwoNodes":    "an example of the name of a finding",
		eventsPage + ": NetworkUnavailable": "a condition of Kubernetes",
	})
}

// joinLines joins maps of names to lines.
func joinLines(all ...map[string]int) map[string]int {
	joined := map[string]int{}
	for _, m := range all {
		maps.Copy(joined, m)
	}
	return joined
}

// codeRows returns the rows of the tables with a column "code": the program and the code.
func codeRows(doc document) map[string]int {
	names := map[string]int{}
	for _, table := range doc.tables {
		at := slices.Index(table[0].cells, "code")
		switch {
		case at == 0 || strings.HasPrefix(table[0].cells[0], "code of "):
			for _, r := range table[1:] {
				names["cni "+strings.Trim(r.cells[0], "`")] = r.line
			}
		case at == 1:
			for _, r := range table[1:] {
				for code := range strings.SplitSeq(r.cells[1], ", ") {
					names[strings.Trim(r.cells[0], "`")+" "+code] = r.line
				}
			}
		}
	}
	return names
}

func TestPageOfErrorsHasEveryCode(t *testing.T) {
	g := NewWithT(t)
	all := sources(t)
	var doc document
	for _, p := range pages(t) {
		if p.path == errorsPage {
			doc = markdown(p)
		}
	}
	code := map[string]bool{"all 0": true}
	add := func(program, folder, begin string) {
		codes := gather(all, func(s source) map[string]bool { return constants(s, begin) }, folder)
		g.Expect(codes).NotTo(BeEmpty(), folder)
		for c := range codes {
			code[program+" "+c] = true
		}
	}
	add("cni", "plugins/podmanager/cni/errors.go", "Code")
	add("cadastre", "cmd/cadastre", "exit")
	add("cadastre-operator", "operator/run.go", "exit")
	for _, returned := range []struct{ program, file string }{
		{"cadastre-agent", "agent/program.go"},
		{"cadastre-docker-plugin", "cmd/cadastre-docker-plugin/run.go"},
		{"cadastre-cni", "cmd/cadastre-cni/run.go"},
	} {
		codes := gather(all, exitCodes, returned.file)
		g.Expect(codes).NotTo(BeEmpty(), returned.file)
		for c := range codes {
			code[returned.program+" "+c] = true
		}
	}
	expectClean(t, listing{page: errorsPage, what: "code", code: code}.differences(codeRows(doc)), nil)
}

// exitCodes returns the numbers above 0 that a source returns from functions with one int as
// their result, or passes to the second field of a result.
func exitCodes(s source) map[string]bool {
	codes := map[string]bool{}
	take := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.INT && lit.Value != "0" {
			codes[lit.Value] = true
		}
	}
	for _, d := range s.file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Type.Results == nil || len(f.Type.Results.List) != 1 || fmt.Sprint(f.Type.Results.List[0].Type) != "int" {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
				take(r.Results[0])
			}
			return true
		})
	}
	return codes
}

func TestListsOfUserPagesFindDifferences(t *testing.T) {
	g := NewWithT(t)
	doc := markdown(page{"a.md", []byte("| event | method |\n|---|---|\n| `One` | x |\n| `Gone` | x |\n\n| code | cause |\n|---|---|\n| 7 | x |\n\n| program | code |\n|---|---|\n| `p` | 1, 2 |\n")})
	s := parse(t, "p/p.go", `package p
func (*E) GetName() string { return "One" }
func (*F) GetName() string { return "New" }
const ReasonX, other = "Full", "No"
const (
	exitFailed = 1
	NoAddress Reason = "NoAddress"
	someCondition = "Held"
)
type Record struct { Name, hidden string }
func main() int { c.OK, c.Reason = false, "Differs"; use(x{Reason: "Equal", Text: "Other"}); name("action", a, "", "claimed"); if x { return 3 }; return 0 }
var _ = http.StatusConflict
`)
	var got []string
	for _, f := range (listing{page: "a.md", what: "event", code: loopEvents(s)}).differences(column(doc, 1, "event", "method")) {
		got = append(got, f.String())
	}
	g.Expect(got).To(Equal([]string{"a.md: New: the code has this event, the page does not", "a.md:4: Gone: the code has no such event"}))
	g.Expect(reasons(s)).To(Equal(map[string]bool{"Full": true, "NoAddress": true, "Held": true, "Differs": true, "Equal": true}))
	g.Expect(constants(s, "exit")).To(Equal(map[string]bool{"1": true}))
	g.Expect(fieldsOf(s, "Record")).To(Equal(map[string]bool{"Name": true, "hidden": false}))
	g.Expect(actionNames(s)).To(Equal(map[string]bool{"claimed": true}))
	g.Expect(statuses(s)).To(Equal(map[string]bool{"409": true}))
	g.Expect(exitCodes(s)).To(Equal(map[string]bool{"3": true}))
	g.Expect(codeRows(doc)).To(Equal(map[string]int{"cni 7": 8, "p 1": 12, "p 2": 12}))
}
