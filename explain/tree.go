// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"strings"
)

// Tree is the explanation of one subject.
type Tree struct {
	Subject string   `json:"subject"`       // "pod default/web"
	Answer  string   `json:"answer"`        // one sentence without a full stop
	Because []Branch `json:"because"`       // in the order of the decisions
	Fix     []Fix    `json:"fix,omitempty"` // the nearest one first
	// Unknown is set if there is no answer: nothing here knows the subject, or what is recorded
	// does not reach back so far.
	Unknown bool `json:"unknown,omitempty"`
	// Ask names another node, whose agent knows more; "": none is known to.
	Ask string `json:"ask,omitempty"`
}

// Branch is one statement with its details.
type Branch struct {
	Text    string   `json:"text"`
	Because []Branch `json:"because,omitempty"`
}

// Fix is a command that changes the answer, or that shows what to change.
type Fix struct {
	Command string `json:"command"`
	Text    string `json:"text"` // what the command does
}

// because appends a statement.
func (b *Branch) because(format string, args ...any) *Branch {
	b.Because = append(b.Because, Branch{Text: fmt.Sprintf(format, args...)})
	return &b.Because[len(b.Because)-1]
}

// because appends a statement.
func (t *Tree) because(format string, args ...any) *Branch {
	t.Because = append(t.Because, Branch{Text: fmt.Sprintf(format, args...)})
	return &t.Because[len(t.Because)-1]
}

// fix appends a fix, unless the tree has its command.
func (t *Tree) fix(command, format string, args ...any) {
	for _, f := range t.Fix {
		if f.Command == command {
			return
		}
	}
	t.Fix = append(t.Fix, Fix{command, fmt.Sprintf(format, args...)})
}

// Finding is a difference between the ledger and the world that is about the subject.
type Finding struct {
	Number string // such as C204; docs/findings.md
	Text   string
	Fix    string // what a person does
}

// Conclude ends the tree with findings about its subject. A lease that is not as the witnesses
// show it is the first thing to know, whatever the ledger says.
func (t *Tree) Conclude(found []Finding) {
	for i, f := range found {
		if i == shownAtMost {
			t.because("%d further findings: cadastre check lists them", len(found)-i)
			break
		}
		t.because("finding %s: %s", f.Number, f.Text).because("fix: %s", f.Fix)
	}
	if len(found) > 0 {
		t.fix("cadastre check", "has the findings with their evidence")
	}
}

// Uncompared ends a tree whose subject could not be compared with the world.
func (t *Tree) Uncompared(why string) {
	t.because("not compared with the kernel, the runtime and the cluster: %s", why)
}

// Text returns the tree for people, with a line for each statement.
func (t *Tree) Text() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s\n", t.Subject, line(t.Answer))
	draw(&s, t.Because, "")
	for i, f := range t.Fix {
		if i == 0 {
			s.WriteString("\nfix:\n")
		}
		fmt.Fprintf(&s, "  %s\n      %s\n", f.Command, line(f.Text))
	}
	return s.String()
}

func draw(s *strings.Builder, all []Branch, indent string) {
	for i, b := range all {
		fork, below := "├─ ", "│  "
		if i == len(all)-1 {
			fork, below = "└─ ", "   "
		}
		s.WriteString(indent + fork + line(b.Text) + "\n")
		draw(s, b.Because, indent+below)
	}
}

// line returns a text without line breaks.
func line(s string) string { return strings.Join(strings.Fields(s), " ") }

// because returns a reason after a colon.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
