// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package pageblocks reads the fenced blocks of a page of documentation, so that a test runs
// exactly what the page shows. Every block of shell commands is either taken by the test or
// has a reason why it is not run; Rest finds the others. A Page belongs to one goroutine.
package pageblocks

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Page holds the blocks of a page that are not taken yet.
type Page struct {
	path   string
	blocks []block
	notRun map[string]string
}

// block is a fenced block.
type block struct {
	line     int
	language string
	text     string
}

// first returns the first line of a block, which names it.
func (b block) first() string {
	first, _, _ := strings.Cut(b.text, "\n")
	return first
}

// Open reads a page. notRun has the reasons why blocks are not run, by their first line.
func Open(path string, notRun map[string]string) (*Page, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the blocks of a page: %w", err)
	}
	p := &Page{path: path, notRun: notRun}
	open := false
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open:
			open = false
		case fence:
			p.blocks = append(p.blocks, block{line: number, language: language})
			open = true
		case open:
			p.blocks[len(p.blocks)-1].text += line
		}
	}
	if open {
		return nil, fmt.Errorf("%s: the block in line %d does not end", path, p.blocks[len(p.blocks)-1].line)
	}
	return p, nil
}

// Take returns the next block in a language.
func (p *Page) Take(language string) (string, error) {
	for i, b := range p.blocks {
		if _, skipped := p.notRun[b.first()]; b.language == language && !skipped {
			p.blocks = append(p.blocks[:i:i], p.blocks[i+1:]...)
			return b.text, nil
		}
	}
	return "", fmt.Errorf("%s has no further block of %s", p.path, language)
}

// Rest returns an error if a block is neither taken nor has a reason, and if a reason has no
// block. Otherwise it returns a line for each block that is not run.
func (p *Page) Rest() (notRun []string, err error) {
	used := map[string]bool{}
	for _, b := range p.blocks {
		reason, ok := p.notRun[b.first()]
		if !ok {
			err = errors.Join(err, fmt.Errorf("%s:%d: no test runs this block: %s", p.path, b.line, b.first()))
			continue
		}
		used[b.first()] = true
		notRun = append(notRun, fmt.Sprintf("NOT RUN: %s:%d: %s: %s", p.path, b.line, b.first(), reason))
	}
	for first := range p.notRun {
		if !used[first] {
			err = errors.Join(err, fmt.Errorf("%s has no block that begins with %q", p.path, first))
		}
	}
	return notRun, err
}
