// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package generated

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// noted keeps what a test would fail with.
type noted struct {
	testing.TB
	errs []string
}

func (n *noted) Helper() {}

func (n *noted) Errorf(format string, args ...any) {
	n.errs = append(n.errs, fmt.Sprintf(format, args...))
}

func TestFile(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "docs", "page.md")
	t.Setenv(Env, "1")
	File(t, path, "# A\n<!-- a -->\none\n<!-- /a -->\n")
	t.Setenv(Env, "")
	n := &noted{TB: t}
	File(n, path, "# A\n<!-- a -->\none\n<!-- /a -->\n")
	Part(n, path, "<!-- a -->\n", "<!-- /a -->", "one\n")
	g.Expect(n.errs).To(BeEmpty())
	Part(n, path, "<!-- a -->\n", "<!-- /a -->", "two\n")
	g.Expect(n.errs).To(Equal([]string{path + `:3 is "one", the code makes "two": make generate writes it`}))
	t.Setenv(Env, "1")
	Part(n, path, "<!-- a -->\n", "<!-- /a -->", "two\n")
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("# A\n<!-- a -->\ntwo\n<!-- /a -->\n"))
}
