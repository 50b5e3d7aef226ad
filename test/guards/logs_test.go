// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// logLine is one message of a log in the code.
type logLine struct {
	folder, level, message string
	keys                   []string
}

// logLines finds the messages that production code logs, with their keys.
func logLines(all []source) (lines []logLine, found []finding) {
	attributes := map[string][]string{} // by folder and function
	for _, s := range all {
		if s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.EqualFold(f.Name.Name, "attributes") {
				if keys := keysIn(f); len(keys) > 0 {
					attributes[s.dir()+" "+f.Name.Name] = keys
				}
			}
		}
	}
	for _, s := range all {
		if s.test() || s.in("test", "internal/testkit") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			level, args := logCall(call)
			if level == "" {
				return true
			}
			l := logLine{folder: s.dir(), level: level, message: messageOf(args[0])}
			if l.message == "" {
				found = append(found, finding{s.path, s.line(call), level, "the message has no text of its own: write one, and its variable part as a value"})
				return true
			}
			for i := 1; i < len(args); i += 2 {
				key := messageOf(args[i])
				switch {
				case call.Ellipsis.IsValid() && i == len(args)-1:
					keys, ok := attributes[s.dir()+" "+calledIn(args[i])]
					if !ok {
						keys, ok = attributes["ledger Attributes"], strings.EqualFold(calledIn(args[i]), "attributes")
					}
					if !ok {
						found = append(found, finding{s.path, s.line(call), l.message, "its keys come from elsewhere: write them, or a function attributes that returns them"})
					}
					l.keys = append(append(l.keys, keys...), appended(args[i])...)
				case key == "":
					found = append(found, finding{s.path, s.line(call), l.message, "a key is not a literal"})
				default:
					l.keys = append(l.keys, key)
				}
			}
			lines = append(lines, l)
			return true
		})
	}
	return lines, found
}

// logCall returns the level of a call of a logger, "" for another call, and its arguments from
// the message on.
func logCall(call *ast.CallExpr) (level string, args []ast.Expr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log"}, sel.Sel.Name) || len(call.Args) == 0 {
		return "", nil
	}
	name := ""
	switch x := sel.X.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	if name != "log" && name != "Log" && name != "logger" {
		return "", nil
	}
	if sel.Sel.Name == "Log" {
		if len(call.Args) < 3 {
			return "", nil
		}
		return "error or debug", call.Args[2:]
	}
	return strings.ToLower(sel.Sel.Name), call.Args
}

// messageOf returns the text of an expression, with "..." for its variable parts; "" if it
// begins with one.
func messageOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		left, right := messageOf(e.X), messageOf(e.Y)
		if left != "" && right == "" {
			right = "..."
		}
		if left != "" {
			return left + right
		}
	}
	return ""
}

// calledIn returns the name of the function that an expression calls, or passes to append.
func calledIn(e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		if f.Name == "append" && len(call.Args) > 0 {
			return calledIn(call.Args[0])
		}
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// appended returns the keys that an expression has behind those of its function attributes.
func appended(e ast.Expr) (keys []string) {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return nil
	}
	for i := 1; i < len(call.Args); i += 2 {
		if key := messageOf(call.Args[i]); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// keysIn returns the keys in the []any of a function.
func keysIn(f *ast.FuncDecl) (keys []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		list, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		for i := 0; i < len(list.Elts); i += 2 {
			if key := messageOf(list.Elts[i]); key != "" {
				keys = append(keys, key)
			}
		}
		return false
	})
	return keys
}

// unnamed are the messages without a text of their own.
func unnamed() exceptions {
	return exceptions{
		"plugins/ipam/differences.go: info": "the difference that is resolved, in words",
		"plugins/ipam/differences.go: warn": "a difference between the configuration and the cluster, in words",
	}
}

// logsPage is the page that lists the keys and the messages.
const logsPage = "docs/logs.md"

// table returns the messages as docs/logs.md has them.
func table(lines []logLine) string {
	rows := []string{}
	for _, l := range lines {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", l.folder, l.level, strings.ReplaceAll(l.message, "|", "\\|"), strings.Join(l.keys, ", ")))
	}
	slices.Sort(rows)
	return "| folder | level | message | keys |\n|---|---|---|---|\n" + strings.Join(slices.Compact(rows), "\n") + "\n"
}

// TestLogs compares the log's messages and keys with docs/logs.md. UPDATE_LOGS=1 writes the
// messages; the keys are written by hand.
func TestLogs(t *testing.T) {
	g := NewWithT(t)
	lines, found := logLines(sources(t))
	expectClean(t, found, unnamed())
	path := filepath.Join(root, logsPage)
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	const begin = "<!-- messages: UPDATE_LOGS=1 go test ./test/guards -run TestLogs writes them -->\n"
	head, have, ok := strings.Cut(string(text), begin)
	g.Expect(ok).To(BeTrue(), "%s has no line %s", logsPage, begin)
	want := table(lines)
	if os.Getenv("UPDATE_LOGS") != "" {
		g.Expect(os.WriteFile(path, []byte(head+begin+want), 0o644)).To(Succeed())
		have = want
	}
	g.Expect(have).To(Equal(want), "UPDATE_LOGS=1 go test ./test/guards -run TestLogs writes the messages")

	used := map[string]bool{}
	for _, l := range lines {
		for _, k := range l.keys {
			used[k] = true
		}
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(head, -1) {
		g.Expect(listed).NotTo(HaveKey(m[1]), "a key is listed twice")
		listed[m[1]] = true
	}
	for _, k := range slices.Sorted(maps.Keys(used)) {
		g.Expect(listed).To(HaveKey(k), "a key without a meaning: write it into %s, or use one that is there", logsPage)
		g.Expect(k).To(MatchRegexp("^[a-z][A-Za-z]*$"), "a key is one word")
	}
	for _, k := range slices.Sorted(maps.Keys(listed)) {
		g.Expect(used).To(HaveKey(k), "no message has this key")
	}
}

func TestLogLinesAreFound(t *testing.T) {
	g := NewWithT(t)
	const text = `package p
func attributes() []any { return []any{"pool", 1, "pod", 2} }
func f(log, other *Logger) {
	log.Info("a"+what+"b", "x", 1, "y", 2)
	p.opt.Log.Warn("given", attributes()...)
	log.Log(ctx, level, "any", "z", 1)
	other.Info("no log", "k", 1)
	log.Error(what)
	log.Debug("bad", key, 1)
}
`
	lines, found := logLines([]source{parse(t, "p/p.go", text)})
	g.Expect(lines).To(Equal([]logLine{
		{"p", "info", "a...b", []string{"x", "y"}}, {"p", "warn", "given", []string{"pool", "pod"}},
		{"p", "error or debug", "any", []string{"z"}}, {"p", "debug", "bad", nil},
	}))
	g.Expect(found).To(HaveLen(2))
}
