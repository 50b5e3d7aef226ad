// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

// The markers around the diagram in ARCHITECTURE.md. The text between them is
// written by make generate.
const (
	diagramBegin = "<!-- imports -->\n"
	diagramEnd   = "<!-- /imports -->"
)

// roomOf returns the room of a package of the main module: a folder that a
// reader looks for. It is "" for packages that only tests use, and for
// internal/backoff, which every room may use.
func roomOf(importPath string) string {
	rel, ours := strings.CutPrefix(importPath, module+"/")
	parts := strings.Split(rel, "/")
	switch {
	case slices.Contains(append(shared(), "./plugins/contivconf/yamldoc", "./api/watermark"), "./"+rel):
		return rel // pure packages, which rooms import that their parents import
	case slices.Contains(suites(), "./"+rel):
		return "" // a suite, or what a test needs of the room
	case !ours, parts[0] == "test", parts[0] == "internal", parts[0] == "docker", parts[0] == "dist":
		return ""
	case strings.HasPrefix(rel, "ipam/"), strings.HasPrefix(rel, "ledger/"),
		parts[0] == "cmd", parts[0] == "plugins", parts[0] == "operator":
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	return parts[0]
}

// roomImports returns, for each room, the rooms that its packages import.
func roomImports(all map[string]pkg) map[string]map[string]bool {
	rooms := map[string]map[string]bool{}
	for _, p := range all {
		from := roomOf(p.ImportPath)
		if from == "" {
			continue
		}
		if rooms[from] == nil {
			rooms[from] = map[string]bool{}
		}
		for _, i := range p.Imports {
			if to := roomOf(i); to != "" && to != from {
				rooms[from][to] = true
			}
		}
	}
	return rooms
}

// reaches reports whether a room imports another one, directly or not.
func reaches(rooms map[string]map[string]bool, from, to string) bool {
	seen := map[string]bool{}
	var visit func(room string) bool
	visit = func(room string) bool {
		if seen[room] {
			return false
		}
		seen[room] = true
		for next := range rooms[room] {
			if next == to || visit(next) {
				return true
			}
		}
		return false
	}
	return visit(from)
}

// diagram returns the imports between rooms as Mermaid. An import that follows
// from two others is left out. It fails if rooms import each other.
func diagram(rooms map[string]map[string]bool) (string, error) {
	var text strings.Builder
	text.WriteString("```mermaid\nflowchart TD\n")
	for _, from := range slices.Sorted(maps.Keys(rooms)) {
		for _, to := range slices.Sorted(maps.Keys(rooms[from])) {
			if reaches(rooms, to, from) {
				return "", fmt.Errorf("%s and %s import each other", from, to)
			}
			implied := false
			for between := range rooms[from] {
				implied = implied || between != to && reaches(rooms, between, to)
			}
			if !implied {
				fmt.Fprintf(&text, "  %s --> %s\n", from, to)
			}
		}
	}
	text.WriteString("```\n")
	return text.String(), nil
}

func TestImportDiagram(t *testing.T) {
	g := NewWithT(t)
	want, err := diagram(roomImports(goList(t, "-json=ImportPath,Imports", "./...")))
	g.Expect(err).NotTo(HaveOccurred())
	generated.Part(t, filepath.Join(root, "ARCHITECTURE.md"), diagramBegin, diagramEnd, want)
}

func TestDiagramLeavesOutImpliedImports(t *testing.T) {
	g := NewWithT(t)
	chains := graph([]string{"./agent", "./ledger", "./kvdb/bolt"}, []string{"./agent", "./kvdb"}, []string{"./agent", "./test/x", "./api"})
	text, err := diagram(roomImports(chains))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(Equal("```mermaid\nflowchart TD\n  agent --> ledger\n  ledger --> kvdb\n```\n"))
	_, err = diagram(roomImports(graph([]string{"./agent", "./ledger", "./agent"})))
	g.Expect(err).To(MatchError("agent and ledger import each other"))
}
