// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// ruleRows returns a row for each rule: its name, its comment and the message that its file in
// testdata/bad gets.
func ruleRows(g Gomega) string {
	var rows strings.Builder
	rows.WriteString("\n| rule | a value that is refused | example |\n|---|---|---|\n")
	for _, path := range []string{"yamldoc/problems.go", "rules.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		g.Expect(err).NotTo(HaveOccurred())
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Type == nil {
				return true
			}
			rule, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			g.Expect(err).NotTo(HaveOccurred())
			data, err := os.ReadFile("testdata/bad/" + rule + ".conf")
			g.Expect(err).NotTo(HaveOccurred())
			_, _, refused := contivconf.Parse(data)
			g.Expect(refused).To(HaveOccurred())
			message, _, _ := strings.Cut(refused.Error(), "\n")
			message = strings.NewReplacer("|", `\|`, "`", "'").Replace(message)
			fmt.Fprintf(&rows, "| %s | %s | `%s` |\n", rule, strings.TrimSpace(spec.Comment.Text()), message)
			return true
		})
	}
	return rows.String() + "\n"
}

func TestErrorsPageHasEveryRule(t *testing.T) {
	g := NewWithT(t)
	const page, begin, end = "../../docs/errors.md", "<!-- rules -->\n", "<!-- /rules -->"
	generated.Part(t, page, begin, end, ruleRows(g))
}
