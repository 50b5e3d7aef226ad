// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// mutation is one change of a source file.
type mutation struct {
	file   string
	in     string // the function, "(*Ledger).Claim"
	line   int
	begin  int // offsets of the text that is replaced
	end    int
	before string
	after  string
}

// String says what changes: "if x == nil -> if !(x == nil)".
func (m mutation) String() string {
	if m.after == "" {
		return "without " + oneLine(m.before)
	}
	return oneLine(m.before) + " -> " + oneLine(m.after)
}

func oneLine(text string) string {
	const most = 90
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}

// apply returns the source with the change.
func (m mutation) apply(source []byte) []byte {
	return []byte(string(source[:m.begin]) + m.after + string(source[m.end:]))
}

// opposites returns the operators that take the place of others.
func opposites() map[token.Token]token.Token {
	return map[token.Token]token.Token{
		token.EQL: token.NEQ, token.NEQ: token.EQL,
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
		token.LAND: token.LOR, token.LOR: token.LAND,
		token.ADD: token.SUB, token.SUB: token.ADD,
	}
}

// mutationsOf returns all changes of a source file, in the order of their places.
func mutationsOf(file string, source []byte) (all []mutation, err error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	if ast.IsGenerated(parsed) {
		return nil, nil
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	for _, d := range parsed.Decls {
		f, is := d.(*ast.FuncDecl)
		if !is || f.Body == nil {
			continue
		}
		name := nameOf(f)
		add := func(from, to token.Pos, after string) {
			begin, end := offset(from), offset(to)
			all = append(
				all,
				mutation{file, name, fset.Position(from).Line, begin, end, string(source[begin:end]), after},
			)
		}
		text := func(n ast.Node) string { return string(source[offset(n.Pos()):offset(n.End())]) }
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				add(n.Cond.Pos(), n.Cond.End(), "!("+text(n.Cond)+")")
			case *ast.BinaryExpr:
				if other, ok := opposites()[n.Op]; ok {
					add(n.Pos(), n.End(), text(n.X)+" "+other.String()+" "+text(n.Y))
				}
			case *ast.ExprStmt:
				add(n.Pos(), n.End(), "")
			case *ast.AssignStmt:
				if n.Tok == token.ASSIGN {
					add(n.Pos(), n.End(), "")
				}
			case *ast.IncDecStmt:
				add(n.Pos(), n.End(), "")
			case *ast.Ident:
				switch n.Name {
				case "true":
					add(n.Pos(), n.End(), "false")
				case "false":
					add(n.Pos(), n.End(), "true")
				}
			}
			return true
		})
	}
	return all, nil
}

// nameOf returns "Claim", or "(*Ledger).Claim" of a method.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	switch t := f.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if id, is := t.X.(*ast.Ident); is {
			return "(*" + id.Name + ")." + f.Name.Name
		}
	case *ast.Ident:
		return t.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
