// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the path of the repository, seen from this folder.
const root = "../../.."

// block is a block of code of a page: fenced, or indented by four columns.
type block struct {
	page     string
	line     int
	language string // "": an indented block, or a fence without a language
	text     string
}

// blocksOf returns the blocks of a page in their order.
func blocksOf(page, text string) []block {
	var all []block
	var open *block // a fence
	indented, blank := false, true
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		code, isCode := strings.CutPrefix(line, "    ")
		switch {
		case open != nil && strings.HasPrefix(trimmed, "```"):
			all, open = append(all, *open), nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(trimmed, "```"):
			language, _, _ := strings.Cut(strings.TrimLeft(trimmed, "`"), " ")
			open, indented = &block{page: page, line: i + 1, language: language}, false
		case isCode && indented:
			all[len(all)-1].text += code + "\n"
		case isCode && blank:
			all = append(all, block{page: page, line: i + 1, text: code + "\n"})
			indented = true
		case trimmed == "" && indented:
			all[len(all)-1].text += "\n"
		default:
			indented = false
		}
		blank = trimmed == ""
	}
	return all
}

// command is one command of a block.
type command struct {
	page string
	line int
	text string // without the prompt
}

// promptLine returns the form of a line with a command in a block without a language.
func promptLine() *regexp.Regexp {
	return regexp.MustCompile(`^(?:\$ |# )?((?:[A-Z_]+=\S* (?:\.\.\. )?)*(?:cadastre|kubectl|systemctl|curl|ip|bridge|wg|nft|crictl|docker|make|mv|etcdctl|cadastre-\w+) .*|echo \$\?)$`)
}

// commands returns the commands of a block. In a fence of a shell each line is one; in an
// indented block with a prompt or with a command of Cadastre, those lines that begin so.
func (b block) commands() []command {
	var all []command
	prompt := promptLine()
	shell := b.language == "sh" || b.language == "bash" || b.language == "console"
	prompted := strings.Contains("\n"+b.text, "\n$ ") || strings.Contains("\n"+b.text, "\n# cadastre ")
	joined := strings.ReplaceAll(b.text, "\\\n", "\\\x00")
	line := b.line
	if b.language != "" {
		line++ // behind the fence
	}
	for text := range strings.Lines(joined) {
		at := line
		line += 1 + strings.Count(text, "\x00")
		text = strings.TrimSpace(strings.ReplaceAll(text, "\\\x00", " "))
		switch m := prompt.FindStringSubmatch(text); {
		case text == "":
		case shell:
			all = append(all, command{b.page, at, text})
		case b.language == "" && m != nil && (strings.HasPrefix(text, "$ ") || strings.HasPrefix(text, "# cadastre ") || !prompted):
			all = append(all, command{b.page, at, m[1]})
		}
	}
	return all
}

// markdown returns the blocks of all pages of the repository, records of decisions apart.
func markdown(t *testing.T) []block {
	t.Helper()
	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md")
	git.Dir = root
	out, err := git.Output()
	if err != nil {
		t.Fatalf("list the pages: %v", err)
	}
	var all []block
	for page := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if strings.HasPrefix(page, "docs/adr/") || page == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, blocksOf(page, string(text))...)
	}
	return all
}
