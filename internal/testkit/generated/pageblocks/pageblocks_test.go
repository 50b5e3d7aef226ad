// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package pageblocks_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated/pageblocks"
)

const text = "# A\n```sh\none\nmore\n```\n```yaml\na: 1\n```\n```sh\ntwo\n```\n"

func page(t *testing.T, text string, notRun map[string]string) (*pageblocks.Page, error) {
	path := filepath.Join(t.TempDir(), "page.md")
	NewWithT(t).Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	return pageblocks.Open(path, notRun)
}

func TestEveryBlockIsRunOrHasAReason(t *testing.T) {
	g := NewWithT(t)
	p, err := page(t, text, map[string]string{"two": "it needs two"})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = p.Rest()
	g.Expect(err).To(MatchError(And(ContainSubstring("page.md:2: no test runs this block: one"), ContainSubstring("page.md:6: "))))
	g.Expect(p.Take("sh")).To(Equal("one\nmore\n"))
	g.Expect(p.Take("yaml")).To(Equal("a: 1\n"))
	_, err = p.Take("sh")
	g.Expect(err).To(MatchError(ContainSubstring("has no further block of sh")))
	rest, err := p.Rest()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rest).To(ConsistOf(HaveSuffix("page.md:9: two: it needs two")))
}

func TestAReasonWithoutABlock(t *testing.T) {
	g := NewWithT(t)
	p, err := page(t, text, map[string]string{"one": "a", "two": "b", "a: 1": "c", "three": "d"})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = p.Rest()
	g.Expect(err).To(MatchError(ContainSubstring(`no block that begins with "three"`)))
	_, err = page(t, "```sh\none\n", nil)
	g.Expect(err).To(MatchError(ContainSubstring("the block in line 1 does not end")))
}
