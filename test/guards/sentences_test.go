// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// mostWords limits the words of a sentence in a comment or on a page.
const mostWords = 30

// unit is a text that has whole sentences: a paragraph, an item of a list, a cell of a table.
type unit struct {
	line int
	text string
}

// longSentences finds the sentences of units that have too many words. What stands in
// backquotes counts as one word, and so does the target of a link.
func longSentences(file string, units []unit) (found []finding) {
	code, link := regexp.MustCompile("`[^`]*`"), regexp.MustCompile(`\]\([^)]*\)`)
	end := regexp.MustCompile(`[.!?][)"*]*(\s+|$)`)
	for _, u := range units {
		text := link.ReplaceAllString(code.ReplaceAllString(u.text, "code"), "]")
		for _, s := range end.Split(text, -1) {
			if words := strings.Fields(s); len(words) > mostWords {
				why := fmt.Sprintf("the sentence has %d words, more than %d: make two of it", len(words), mostWords)
				found = append(found, finding{file, u.line, strings.Join(words[:6], " ") + " ...", why})
			}
		}
	}
	return found
}

// split appends the lines of a text to units. begins reports whether a line begins a unit;
// a line without text ends one.
func split(line int, lines []string, begins func(line string) bool) (units []unit) {
	inside := false
	for i, text := range lines {
		switch {
		case strings.TrimSpace(text) == "":
			inside = false
			continue
		case !inside || begins(text):
			units = append(units, unit{line: line + i})
		}
		inside = true
		units[len(units)-1].text += " " + strings.TrimSpace(text)
	}
	return units
}

// isItem reports whether a line begins an item of a list.
func isItem(line string) bool {
	return regexp.MustCompile(`^\s*([-*]|\d+\.)\s`).MatchString(line)
}

// commentSentences finds the long sentences of comments. Text that is indented is not one,
// nor is a marker for a generator, such as +kubebuilder, nor the output of an example.
func commentSentences(s source) (found []finding) {
	if s.generated() {
		return nil
	}
	output := regexp.MustCompile(`(?i)^(unordered )?output:`)
	for _, c := range s.file.Comments {
		if output.MatchString(c.Text()) {
			continue
		}
		lines := strings.Split(c.Text(), "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "+") {
				lines[i] = ""
			}
		}
		found = append(found, longSentences(s.path, split(s.line(c), lines, isItem))...)
	}
	return found
}

// pageSentences finds the long sentences of Markdown: not of blocks of code.
func pageSentences(p page) []finding {
	if path.Ext(p.path) != ".md" {
		return nil
	}
	var units []unit
	fenced := false
	lines := strings.Split(string(p.text), "\n")
	for i, line := range lines {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
			lines[i] = ""
		case fenced, strings.HasPrefix(line, "    "), strings.HasPrefix(line, "#"):
			lines[i] = ""
		case strings.HasPrefix(line, "|"):
			lines[i] = ""
			for cell := range strings.SplitSeq(line, "|") {
				units = append(units, unit{i + 1, cell})
			}
		}
	}
	return longSentences(p.path, append(units, split(1, lines, isItem)...))
}

func TestSentencesAreShort(t *testing.T) {
	found := each(sources(t), commentSentences)
	for _, p := range pages(t) {
		found = append(found, pageSentences(p)...)
	}
	expectClean(t, found, longResults())
}

// longResults lists the long sentences on pages that a run of hours writes.
func longResults() exceptions {
	const bench, why = "docs/results/benchmarks.md: ", "the next run of make bench writes it anew"
	return exceptions{
		"docs/reliability.md: - cluster simulation: code: step 59: ...": "the output of a test that failed",
		bench + "The event loop, the socket, node ...":                  why,
		bench + "It is given a whole lease ...":                         why,
		bench + "\"full\" is a call that must ...":                      why,
		bench + "ADD and DEL, a process each, ...":                      why,
		bench + "A process for each call, as ...":                       why,
	}
}

func TestLongSentencesAreFound(t *testing.T) {
	g := NewWithT(t)
	words := func(n int) string { return strings.TrimSpace(strings.Repeat("word ", n)) }
	long, short := words(mostWords+1)+".", words(mostWords)+"."
	for text, want := range map[string]int{
		short + " " + short:                        0,
		long:                                       1,
		words(20) + "\n" + words(11):               1,
		words(20) + "\n\n" + words(11):             0,
		"- " + words(20) + "\n- " + words(11):      0,
		"| " + words(20) + " | " + words(11):       0,
		"| " + long + " | " + long + " |":          2,
		"    " + long:                              0,
		"```\n" + long + "\n```\n":                 0,
		words(28) + " `a b c d` [x](a b c d).":     0,
		words(20) + " (" + words(5) + ".) " + long: 1,
	} {
		g.Expect(pageSentences(page{"a.md", []byte(text)})).To(HaveLen(want), text)
	}
	g.Expect(pageSentences(page{"a.yaml", []byte(long)})).To(BeEmpty())
	comment := func(text string) []string {
		return subjects(t, commentSentences, "p/p.go", "package p\n\n// "+strings.ReplaceAll(text, "\n", "\n// ")+"\nfunc F() {}\n")
	}
	g.Expect(comment("F. " + short)).To(BeEmpty())
	g.Expect(comment("F. " + long)).To(HaveLen(1))
	g.Expect(comment("F.\n\n\t" + long)).To(BeEmpty())
	g.Expect(comment("Output: " + long)).To(BeEmpty())
}
