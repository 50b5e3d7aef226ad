// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	. "github.com/onsi/gomega"
)

// plainExceptions lists the texts that keep a banned form.
func plainExceptions() exceptions {
	return exceptions{
		"CHANGELOG.md: l" + "ending": "quotes the text of an earlier version",
	}
}

// phrase is a form that no text may have. Its pattern is written so that it does not
// match itself.
type phrase struct {
	pattern *regexp.Regexp
	allowed *regexp.Regexp // matches of pattern that are plain language; may be nil
	has     string         // a part of every match in lower case, to be quick
	why     string
	bad     []string
	good    []string
}

// phrases returns the forms that are banned in comments, strings, Markdown, YAML and
// help texts.
func phrases() []phrase {
	say := func(parts ...string) string { return strings.Join(parts, "") }
	return []phrase{
		{
			pattern: regexp.MustCompile(`(?i)\b(some|no|any|every)body\b`),
			has:     "body",
			why:     "name the actor: the agent, the operator, a caller, another node",
			bad:     []string{say("some", "body else holds it"), say("No", "body waits")},
			good:    []string{"the body of a request", "no body was sent"},
		},
		{
			pattern: regexp.MustCompile(`(?i)\bwho(soe|m?e)ver\b`),
			has:     "ever",
			why:     "name the actor: the agent, the operator, a caller, another node",
			bad:     []string{say("who", "ever calls it")},
			good:    []string{"whenever a caller waits"},
		},
		{
			pattern: regexp.MustCompile(`(?i)\bothers\s+(may|can|must|have|do|did|will|would|wait|want|see|look|take|ask|read|need)\b`),
			has:     "others",
			why:     "name the actor instead of others",
			bad:     []string{say("oth", "ers may wait for it")},
			good:    []string{"one commit and the others of its group", "other callers may wait"},
		},
		{
			pattern: regexp.MustCompile(`(?:\w+\s+)?\b(?:is|are|was|were)\s+no\s+["%\w]+`),
			has:     "no",
			allowed: regexp.MustCompile(`(?i)^there\s|\bno\s+(longer|more|less|later|such)\b`),
			why:     `write "is not a CIDR", "has no endpoint", never "is" and "no" before a noun`,
			bad:     []string{say("%q is", " no CIDR"), say("10.1.0/16 is", " no prefix"), say("it is\n", "no error")},
			good:    []string{"there is no agent", "There are no pods", "it is no longer held", "has no endpoint", "answers yes or no"},
		},
		{
			pattern: regexp.MustCompile(`(?i)\bl(end(s|ing)?|ent)\b`),
			has:     "len",
			why:     "an address is allocated",
			bad:     []string{say("the address is l", "ent"), say("it l", "ends nothing")},
			good:    []string{"the length of the list", "talent, blend"},
		},
		{
			pattern: regexp.MustCompile(`(?m)(?:^|^#+ |[.!] |\| )Who\s+[a-z]+[^\n]*`),
			has:     "who",
			allowed: regexp.MustCompile(`\?`),
			why:     "name the actor, and the thing in a title",
			bad:     []string{say("Wh", "o has lost three times chooses"), say("\n## Wh", "o was told")},
			good:    []string{"Who may read the file?", "the agent, who"},
		},
	}
}

// riddles matches the first words of a doc comment that names a thing by a question.
func riddles() *regexp.Regexp {
	return regexp.MustCompile(`^(?:(?:A|An|The)\s+)?[\w.]+(?:\s+and\s+\w+)?\s+(?:is|are)\s+(?:what|where|who|whom|whose|how|when|why|whether)\b`)
}

// privateWords returns the words that no identifier or file name may have, with the
// word of the field.
func privateWords() map[string]string {
	return map[string]string{
		"tract": "range", "tracts": "ranges",
		"realm": "addressSpace", "realms": "addressSpaces",
		"carve": "suballocate", "carved": "suballocated",
		"upkeep": "repair",
		"lapse":  "expire", "lapsed": "expired", "lapses": "expires",
		"untold": "pending",
		"shelf":  "freeList", "shelves": "freeLists",
		"barred":    "excluded",
		"amended":   "extended",
		"keeper":    "IDClaimer",
		"l" + "end": "allocate", "l" + "ends": "allocates", "l" + "ent": "allocated", "lender": "allocator",
		"exam": "suite", "exams": "suites",
		"lesson": "case", "lessons": "cases",
		"story": "scenario", "stories": "scenarios",
		"settle": "apply, reconcile, wait or confirm", "settled": "applied", "settles": "applies",
		"whose": "identity",
	}
}

// split returns the words of an identifier or file name in lower case.
func split(name string) (words []string) {
	begin := 0
	runes := []rune(name)
	add := func(end int) {
		if end > begin {
			words = append(words, strings.ToLower(string(runes[begin:end])))
		}
		begin = end
	}
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r):
			add(i)
			begin = i + 1
		case unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			add(i)
		}
	}
	add(len(runes))
	return words
}

// plainText finds banned phrases in a text that begins at a line of a file.
func plainText(phrases []phrase, file string, line int, text string) (found []finding) {
	lower := strings.ToLower(text)
	for _, p := range phrases {
		if !strings.Contains(lower, p.has) {
			continue
		}
		for _, at := range p.pattern.FindAllStringIndex(text, -1) {
			match := text[at[0]:at[1]]
			if p.allowed != nil && p.allowed.MatchString(match) {
				continue
			}
			words := strings.Join(strings.Fields(match), " ")
			found = append(found, finding{file, line + strings.Count(text[:at[0]], "\n"), words, p.why})
		}
	}
	return found
}

// plainGo finds banned phrases in comments and strings, doc comments that are riddles,
// and private words in declared names.
func plainGo(s source) (found []finding) {
	if s.generated() {
		return nil
	}
	phrases, riddles := phrases(), riddles()
	for _, c := range s.file.Comments {
		found = append(found, plainText(phrases, s.path, s.line(c), c.Text())...)
		if riddle := riddles.FindString(c.Text()); riddle != "" {
			found = append(found, finding{s.path, s.line(c), riddle, "say what it does or holds"})
		}
	}
	words := privateWords()
	name := func(line int, name string) {
		for _, word := range split(name) {
			if better := words[word]; better != "" {
				found = append(found, finding{s.path, line, name, "the field's word for " + word + " is " + better})
				return
			}
		}
	}
	name(0, strings.TrimSuffix(path.Base(s.path), ".go"))
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				found = append(found, plainText(phrases, s.path, s.line(n), text)...)
			}
		}
		for _, id := range declares(n) {
			name(s.line(id), id.Name)
		}
		return true
	})
	return found
}

// declares returns the names that a node declares.
func declares(n ast.Node) []*ast.Ident {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.ValueSpec:
		return n.Names
	case *ast.Field:
		return n.Names
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return nil
		}
		var ids []*ast.Ident
		for _, e := range n.Lhs {
			if id, ok := e.(*ast.Ident); ok {
				ids = append(ids, id)
			}
		}
		return ids
	}
	return nil
}

// plainPages finds banned phrases in Markdown, YAML and the help texts of make.
func plainPages(all []page) (found []finding) {
	phrases := phrases()
	for _, p := range all {
		switch {
		case slices.Contains([]string{".md", ".yaml", ".yml"}, path.Ext(p.path)), path.Base(p.path) == "Makefile":
			found = append(found, plainText(phrases, p.path, 1, string(p.text))...)
		}
	}
	return found
}

func TestPlainLanguage(t *testing.T) {
	found := append(each(sources(t), plainGo), plainPages(pages(t))...)
	expectClean(t, found, plainExceptions())
}

func TestPhrasesAreFound(t *testing.T) {
	for _, p := range phrases() {
		g := NewWithT(t)
		for _, bad := range p.bad {
			g.Expect(plainText(phrases(), "a.md", 1, bad)).To(HaveLen(1), bad)
			found := plainPages([]page{{"a.yaml", []byte("fine\n\n" + bad)}})
			g.Expect(found).To(HaveLen(1), bad)
			g.Expect(found[0].line).To(BeNumerically(">", 2), bad)
			comment := "package p\n\n// F returns x. " + strings.ReplaceAll(strings.TrimLeft(bad, "\n# "), "\n", "\n// ") + "\nfunc F() {}\n"
			g.Expect(subjects(t, plainGo, "p/p.go", comment)).To(HaveLen(1), comment)
			g.Expect(subjects(t, plainGo, "p/p.go", "package p\nconst x = "+strconv.Quote(bad))).To(HaveLen(1), bad)
		}
		for _, good := range p.good {
			g.Expect(plainText(phrases(), "a.md", 1, good)).To(BeEmpty(), good)
		}
	}
}

func TestRiddlesAndPrivateWordsAreFound(t *testing.T) {
	g := NewWithT(t)
	const bad = `package p

// Stats is what the blocks hold.
func Stats() {}

// The shop is where
// they are.
type letShop struct{ upkeepTime int }

// Fine returns what the blocks hold.
func Fine(realmName int) { lenderAddress := 1; _ = lenderAddress }

var examples, silent, IDKeeper = 1, 2, 3
`
	g.Expect(subjects(t, plainGo, "p/carve_test.go", bad)).To(ConsistOf(
		"Stats is what", "The shop is where", "carve_test", "upkeepTime", "realmName", "lenderAddress", "IDKeeper"))
	g.Expect(split("parseHTTPRequest_v2x")).To(Equal([]string{"parse", "http", "request", "v", "x"}))
}
