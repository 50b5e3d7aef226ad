// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/ast"
	"go/token"
	"testing"

	. "github.com/onsi/gomega"
)

// clocks are the places that look at the clock or wait, and why they may. All
// others are given the time, or are woken.
func clocks() exceptions {
	return exceptions{
		"controller/controller.go: time.NewTimer":         "the deadline of the first resync: waits within the loop, decides nothing that is stored",
		"controller/healing.go: time.NewTimer":            "the loop's timer of healing after errors",
		"controller/healing.go: time.NewTicker":           "the loop's timer of periodic healing",
		"controller/process.go: time.AfterFunc":           "the watchdog of an event: it reports only",
		"ledger/ledger.go: time.Now":                      "Options.Uptime where none is given",
		"ledger/ledger.go: time.Since":                    "Options.Uptime where none is given",
		"ledger/ledger.go: time.NewTimer":                 "the ledger's one timer, which no answer depends on",
		"plugins/podmanager/recover.go: time.NewTicker":   "how often the folder of waiting DELs is looked into, outside of the loop",
		"plugins/kubestate/kubestate.go: time.After":      "the pause before the store is tried again",
		"plugins/kubestate/kubestate.go: time.NewTicker":  "when the store is probed and the mirror written",
		"plugins/kubestate/mirror.go: time.After":         "how long the store may take before the mirror is used",
		"plugins/ipam/claimers.go: time.AfterFunc":        "the pause before an event is pushed again",
		"plugins/ipam/nodeset/follow.go: time.NewTimer":   "the pause before the store is read again",
		"plugins/ipam/nodeset/reporter.go: time.NewTimer": "the pause before the object is written again",
		"plugins/nodesync/idclaimer.go: time.After":       "the pause between two beats",
		"plugins/nodesync/claims/claimer.go: time.After":  "the pause between two looks at the claims",
	}
}

// clockNames returns the names of package time beside its arithmetic.
func clockNames() []string {
	return []string{"Now", "Sleep", "After", "Since", "Until", "Tick", "NewTimer", "NewTicker", "AfterFunc"}
}

// clock finds where production code of the core looks at the clock or waits.
// A default for an injected clock, "if x == nil { x = time.Now }", is allowed.
func clock(s source) []finding {
	if s.test() || !s.in("ledger", "controller", "plugins") {
		return nil
	}
	defaults := clockDefaults(s)
	var found []finding
	for _, sel := range selectors(s, "time", clockNames()...) {
		if !defaults[sel] {
			found = append(found, finding{s.path, s.line(sel), "time." + sel.Sel.Name, "take the time from an injected field, so that tests can simulate it"})
		}
	}
	return found
}

// clockDefaults are the functions in "if x == nil { x = time.Now }".
func clockDefaults(s source) map[ast.Expr]bool {
	found := map[ast.Expr]bool{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		check, ok := n.(*ast.IfStmt)
		if !ok {
			return true
		}
		cond, ok := check.Cond.(*ast.BinaryExpr)
		if !ok || cond.Op != token.EQL || !isNil(cond.Y) {
			return true
		}
		for _, stmt := range check.Body.List {
			if set, ok := stmt.(*ast.AssignStmt); ok && len(set.Lhs) == 1 && sameSelector(set.Lhs[0], cond.X) {
				found[set.Rhs[0]] = true
			}
		}
		return true
	})
	return found
}

func isNil(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "nil"
}

// sameSelector compares x and y, or x.a.b and y.c.d.
func sameSelector(x, y ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		y, ok := y.(*ast.Ident)
		return ok && x.Name == y.Name
	case *ast.SelectorExpr:
		y, ok := y.(*ast.SelectorExpr)
		return ok && x.Sel.Name == y.Sel.Name && sameSelector(x.X, y.X)
	}
	return false
}

// realTime are the folders whose tests watch real processes, which no bubble
// of simulated time can hold.
func realTime() []string { return []string{"test/chaos"} }

// sleeps finds tests that sleep where time is not simulated.
func sleeps(s source) []finding {
	if !s.test() || s.imported("testing/synctest") != "" || s.in(realTime()...) {
		return nil
	}
	var found []finding
	for _, sel := range selectors(s, "time", "Sleep") {
		found = append(found, finding{s.path, s.line(sel), "time.Sleep", "wait for what is to happen, or simulate time with testing/synctest"})
	}
	return found
}

func TestClocksAreFound(t *testing.T) {
	g := NewWithT(t)
	const bad = `package p
import "time"
func f(o struct{ Now func() time.Time; Later func() time.Time }) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Later == nil {
		o.Now = time.Now
	}
	o.Now = time.Now
	began := time.Now()
	time.Sleep(time.Since(began))
	<-time.After(time.Second)
}
`
	g.Expect(subjects(t, clock, "plugins/p/p.go", bad)).
		To(Equal([]string{"time.Now", "time.Now", "time.Now", "time.Sleep", "time.Since", "time.After"}))
	g.Expect(subjects(t, clock, "cmd/p/p.go", bad)).To(BeEmpty())
	g.Expect(subjects(t, sleeps, "cmd/p/p_test.go", bad)).To(Equal([]string{"time.Sleep"}))
	g.Expect(subjects(t, sleeps, "test/chaos/p_test.go", bad)).To(BeEmpty())
	g.Expect(subjects(t, sleeps, "cmd/p/p_test.go", "package p\nimport (\"time\"; _ \"testing/synctest\")\nfunc f() { time.Sleep(1) }")).To(BeEmpty())
}
