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

// The largest sizes of what people write.
const (
	maxFileLines  = 600
	maxFuncLines  = 80
	maxParameters = 5
)

// large are those that exceed the sizes. The list may only shrink.
func large() exceptions {
	return exceptions{
		"cmd/cadastre/main.go: run":                                 "the whole surroundings of a process, so that tests can stand in for them",
		"cmd/cadastre-agent/wire.go: open":                          "wiring",
		"cmd/cadastre-agent/wire.go: assemble":                      "wiring",
		"ipam/ipam.go: NewIPAM":                                     "published",
		"operator/nodeipam/api.go: New":                             "published",
		"operator/nodeipam/api.go: NewCIDRRangeAllocator":           "published",
		"operator/nodeipam/api.go: NewController":                   "published",
		"test/guards/published_manager_test.go: managerAPI":         "a list",
		"operator/netresource/manager.go: NewNetResourceSetManager": "published",
		"test/guards/published_operator_test.go: operatorAPI":       "a list",
		"kvdb/bolt/txn_test.go: send":                               "one line of a scenario a call",
		"plugins/contivconf/validate.go: bothOrNone":                "two keys with their values, and what to say",
		"plugins/contivconf/validate_networks.go: checkOneNode":     "a network with its keys, lengths and bounds",
	}
}

// sizes finds files and functions that are too large.
func sizes(s source) []finding {
	if s.generated() {
		return nil
	}
	var found []finding
	if n := bytes.Count(s.text, []byte("\n")); n > maxFileLines {
		found = append(found, finding{s.path, 0, "file", fmt.Sprintf("%d lines, more than %d", n, maxFileLines)})
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		name, typ := "function literal", (*ast.FuncType)(nil)
		switch f := n.(type) {
		case *ast.FuncDecl:
			name, typ = f.Name.Name, f.Type
		case *ast.FuncLit:
			typ = f.Type
		default:
			return true
		}
		if lines := s.lines(n); lines > maxFuncLines {
			found = append(found, finding{s.path, s.line(n), name, fmt.Sprintf("%d lines, more than %d", lines, maxFuncLines)})
		}
		if params := typ.Params.NumFields(); params > maxParameters {
			found = append(found, finding{s.path, s.line(n), name, fmt.Sprintf("%d parameters, more than %d", params, maxParameters)})
		}
		return true
	})
	return found
}

func TestLargeOnesAreFound(t *testing.T) {
	g := NewWithT(t)
	g.Expect(subjects(t, sizes, "p/p.go", "package p"+strings.Repeat("\n", maxFileLines+1))).To(Equal([]string{"file"}))
	g.Expect(subjects(t, sizes, "p/p.go", "package p"+strings.Repeat("\n", maxFileLines))).To(BeEmpty())
	g.Expect(subjects(t, sizes, "p/p.go", "package p\nfunc f() {"+strings.Repeat("\n", maxFuncLines)+"}")).To(Equal([]string{"f"}))
	g.Expect(subjects(t, sizes, "p/p.go", "package p\nfunc f() {"+strings.Repeat("\n", maxFuncLines-1)+"}")).To(BeEmpty())
	g.Expect(subjects(t, sizes, "p/p.go", "package p\nfunc f(a, b, c int, d, e, g string) {}")).To(Equal([]string{"f"}))
	g.Expect(subjects(t, sizes, "p/p.go", "package p\nfunc f() { _ = func(int, int, int, int, int, int) {} }")).To(Equal([]string{"function literal"}))
	g.Expect(subjects(t, sizes, "p/p.go", "package p\nfunc (t T) f(a, b, c, d, e int) {}")).To(BeEmpty())
}
