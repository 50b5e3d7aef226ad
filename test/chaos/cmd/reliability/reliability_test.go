// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

// left writes what runs have left: the outputs and the counts of suites by name,
// for the others a run without tests.
func left(t *testing.T, outputs, tries map[string]string) (out string) {
	t.Helper()
	g := NewWithT(t)
	out = t.TempDir()
	c, err := json.Marshal(circumstances{Go: "go1.2", Settings: []string{"CADASTRE_TEST_EFFORT=3"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(runFile(out), c, 0o600)).To(Succeed())
	for _, s := range suites() {
		text, ok := outputs[s.name]
		if !ok {
			text = `{"Action":"pass","Package":"p"}`
		}
		g.Expect(os.WriteFile(s.output(out), []byte(text), 0o600)).To(Succeed())
		if text := tries[s.name]; text != "" {
			g.Expect(os.WriteFile(s.tries(out), []byte(text), 0o600)).To(Succeed())
		}
	}
	return out
}

// line returns the row of the page that begins with the description of a kind.
func (r *report) line(kind attack.Kind) string {
	for _, a := range attack.All() {
		for line := range strings.Lines(r.render()) {
			if a.Kind == kind && strings.HasPrefix(line, "| "+a.What+" |") {
				return strings.TrimPrefix(line, "| "+a.What+" ")
			}
		}
	}
	return ""
}

func TestTheReport(t *testing.T) {
	g := NewWithT(t)
	r, err := readReport(left(t, map[string]string{
		"chaos": `{"Action":"pass","Test":"TestSIGKILL/one"}
{"Action":"pass","Test":"TestSIGKILL/two"}
{"Action":"output","Test":"TestWipes/late","Output":"=== RUN   TestWipes/late\n"}
{"Action":"output","Test":"TestWipes/late","Output":"    wipes_test.go:12: SKIPPED: no etcd\n"}
{"Action":"skip","Test":"TestWipes/late"}
{"Action":"output","Test":"TestFlips/local/deep","Output":"    flips_test.go:3: it hangs\n"}
{"Action":"fail","Test":"TestFlips/local/deep"}
{"Action":"fail","Test":"TestFlips/local"}
{"Action":"fail","Test":"TestFlips"}
{"Action":"output","Test":"TestOther","Output":"    other_test.go:3: wrong\n"}
{"Action":"fail","Test":"TestOther"}
{"Action":"fail"}
`,
		"simulation": "no JSON\n{\"Action\":\"fail\"}\n",
	}, map[string]string{
		"chaos": `{"kind":"kill","test":"TestSIGKILL/one","outcome":"began"}
{"kind":"kill","test":"TestSIGKILL/one","outcome":"passed","count":1200}
{"kind":"kill","test":"TestSIGKILL/two","outcome":"passed","count":34,"excepted":{"released":3}}
{"kind":"wipe","test":"TestWipes/late","outcome":"skipped","count":1}
{"kind":"flip","test":"TestFlips/local","outcome":"failed","count":2}
{"kind":"clone","test":"TestClone","outcome":"began"}
`}), suites())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.line(attack.Kill)).To(Equal("| 1\u202f234 kills | 0 | 0 | 0 | 0 (20 s to serve) |\n"))
	g.Expect(r.line(attack.Flip)).To(Equal("| 2 flips | **failed** | **failed** | **failed** | **failed** |\n"))
	g.Expect(r.line(attack.Wipe)).To(HavePrefix("| **not tried** | –"))
	g.Expect(r.line(attack.Clone)).To(HavePrefix("| **not tried** | **failed**"))
	g.Expect(r.render()).To(And(
		ContainSubstring("- wipe: `TestWipes/late`: SKIPPED: no etcd\n"),
		ContainSubstring("- flip: `TestFlips/local/deep`: it hangs\n"),
		ContainSubstring("- clone: `TestClone`: its process ended before the test\n"),
		ContainSubstring("- `TestOther`: wrong\n"),
		ContainSubstring("- kill: released (3)\n"),
		ContainSubstring("- `a package`: "),
		ContainSubstring("CADASTRE_TEST_EFFORT=3")))
	g.Expect(r.problems()).To(MatchError(And(ContainSubstring("TestFlips/local/deep"), ContainSubstring("TestOther"), ContainSubstring("wipe: nothing was tried"))))
	g.Expect(r.problems()).NotTo(MatchError(ContainSubstring("kill:")))
}

func TestASuiteThatDidNotEnd(t *testing.T) {
	g := NewWithT(t)
	r, err := readReport(left(t, map[string]string{"nodes": `{"Action":"run","Test":"TestAtRandom"}`}, nil), suites())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.problems()).To(MatchError(ContainSubstring("it did not run to its end")))
}

func TestAnUnknownKind(t *testing.T) {
	g := NewWithT(t)
	_, err := readReport(left(t, nil, map[string]string{"chaos": `{"kind":"locusts","test":"TestX","outcome":"passed"}`}), suites())
	g.Expect(err).To(MatchError(ContainSubstring(`unknown kind of attack "locusts"`)))
}

func TestTheRowOfOneAttack(t *testing.T) {
	g := NewWithT(t)
	doc := filepath.Join(t.TempDir(), "page.md")
	page := func() string {
		text, err := os.ReadFile(doc)
		g.Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	old := (&report{rows: []*row{{Attack: attackOf(attack.World), count: 180}, {Attack: attackOf(attack.Kill), count: 7}}}).render()
	g.Expect(os.WriteFile(doc, []byte("<!-- results -->\n"+old+"<!-- /results -->\n"), 0o600)).To(Succeed())
	for _, n := range []int64{1200, 1300} {
		r := &report{rows: []*row{{Attack: attackOf(attack.Evidence), count: n}}}
		g.Expect(r.publishRow(doc, attack.Evidence)).To(Succeed())
		g.Expect(page()).To(And(ContainSubstring("| 180 steps |"), ContainSubstring("| 7 kills |"), ContainSubstring(thousands(n)+" steps")))
		g.Expect(strings.Count(page(), attackOf(attack.Evidence).What)).To(Equal(1))
		g.Expect(strings.Count(page(), "run of its own")).To(Equal(1))
	}
	failed := &report{rows: []*row{{Attack: attackOf(attack.Evidence), count: 1, failed: []verdict{{"TestWorlds", "lost"}}}}}
	g.Expect(failed.publishRow(doc, attack.Evidence)).To(MatchError(ContainSubstring("lost")))
	g.Expect(page()).To(ContainSubstring("**failed**"))
}

func attackOf(kind attack.Kind) attack.Attack {
	for _, a := range attack.All() {
		if a.Kind == kind {
			return a
		}
	}
	return attack.Attack{}
}
