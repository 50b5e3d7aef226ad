// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// comments returns the texts behind a marker in the leading comments of a file.
func comments(data []byte, marker string) []string {
	var all []string
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, marker); ok {
			all = append(all, strings.TrimSpace(text))
		}
	}
	return all
}

func files(t *testing.T, pattern string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	all := map[string][]byte{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = data
	}
	return all
}

// problemsOf returns the problems in err.
func problemsOf(err error) yamldoc.Problems {
	var all yamldoc.Problems
	errors.As(err, &all)
	return all
}

func TestGoodFiles(t *testing.T) {
	for path, data := range files(t, "testdata/good/*.conf") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			g := NewWithT(t)
			cfg, unused, err := contivconf.Load(path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cfg.Validate()).To(Succeed())
			want := comments(data, "# not used:")
			g.Expect(want).To(HaveLen(1))
			g.Expect(strings.Join(unused, " ")).To(Equal(want[0]))
			_, err = cfg.IPAM.Cluster.Node(max(1, cfg.Cadastre.NodeID))
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

// Each bad file breaks the rule that it is named after and has exactly the problems
// in its comments. Parse reports them in the same words every time.
func TestBadFiles(t *testing.T) {
	for path, data := range files(t, "testdata/bad/*.conf") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			g := NewWithT(t)
			rule, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".conf"), "--")
			_, _, err := contivconf.Parse(data)
			g.Expect(err).To(HaveOccurred())
			want, found := comments(data, "# error:"), problemsOf(err)
			g.Expect(found).To(HaveLen(len(want)), err.Error())
			for i, e := range found {
				g.Expect(e.Error()).To(ContainSubstring(want[i]))
				g.Expect(e.Rule).To(Equal(contivconf.Rule(rule)))
				g.Expect(e.Field).NotTo(BeEmpty())
				g.Expect(e.Text).NotTo(ContainSubstring("%!"))
			}
			_, _, again := contivconf.Parse(data)
			g.Expect(again.Error()).To(Equal(err.Error()))
		})
	}
}

func TestEachRuleHasABadFile(t *testing.T) {
	g := NewWithT(t)
	var rules []string
	inspect := func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Rule" {
				rule, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				g.Expect(err).NotTo(HaveOccurred())
				rules = append(rules, rule)
			}
		}
		return true
	}
	for _, path := range []string{"rules.go", "yamldoc/problems.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		g.Expect(err).NotTo(HaveOccurred())
		ast.Inspect(file, inspect)
	}
	g.Expect(len(rules)).To(BeNumerically(">", 20))
	for _, rule := range rules {
		g.Expect("testdata/bad/" + rule + ".conf").To(BeAnExistingFile())
	}
}
