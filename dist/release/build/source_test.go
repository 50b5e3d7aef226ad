// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/internal/version"
)

// tree is a repository with one commit of the second 1600000000.
type tree struct {
	*WithT
	t   *testing.T
	dir string
}

func newTree(t *testing.T) tree {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT RUN: git is missing")
	}
	tr := tree{NewWithT(t), t, t.TempDir()}
	tr.put("a")
	tr.git("init", "--quiet")
	tr.git("add", "--all")
	tr.git("commit", "--quiet", "--message", "a")
	return tr
}

func (tr tree) put(name string) {
	tr.Expect(os.WriteFile(filepath.Join(tr.dir, name), nil, 0o600)).To(Succeed())
}

func (tr tree) git(args ...string) {
	cmd := exec.CommandContext(tr.t.Context(), "git", append([]string{"-C", tr.dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.c", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b.c", "GIT_AUTHOR_DATE=1500000000 +0000", "GIT_COMMITTER_DATE=1600000000 +0000")
	out, err := cmd.CombinedOutput()
	tr.Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// read reads the tree with a wanted version and a value of SOURCE_DATE_EPOCH.
func (tr tree) read(wanted, epoch string) (build.Source, error) {
	return build.Read(tr.t.Context(), tr.dir, wanted, func(name string) string {
		tr.Expect(name).To(Equal("SOURCE_DATE_EPOCH"))
		return epoch
	})
}

func TestVersionAndTime(t *testing.T) {
	tr := newTree(t)
	s, err := tr.read("", "")
	tr.Expect(err).NotTo(HaveOccurred())
	tr.Expect(s.Version).To(Equal(version.Next), "there is no tag")
	tr.Expect(s.Time.Unix()).To(Equal(int64(1600000000)), "of the commit, not of its author")
	tr.Expect(s.Commit).To(HaveLen(40))
	tr.Expect([]bool{s.Modified, s.Final()}).To(Equal([]bool{false, false}))

	tr.git("tag", "v1.2.3")
	tr.git("tag", "other")
	s, err = tr.read("", "1700000000")
	tr.Expect(err).NotTo(HaveOccurred())
	tr.Expect(s.Version).To(Equal("1.2.3"))
	tr.Expect(s.Final()).To(BeTrue())
	tr.Expect(s.Time.Unix()).To(Equal(int64(1700000000)))
	s, err = tr.read("v2.0.0-rc.1", "")
	tr.Expect(err).NotTo(HaveOccurred())
	tr.Expect(s.Version).To(Equal("2.0.0-rc.1"), "the wanted one comes before the tag")

	tr.git("tag", "v1.3.0")
	_, err = tr.read("", "")
	tr.Expect(err).To(MatchError(ContainSubstring("v1.2.3, v1.3.0: choose one")))
}

// TestChanges: a version for users is a commit, and nothing else.
func TestChanges(t *testing.T) {
	tr := newTree(t)
	tr.put("b")
	_, err := tr.read("1.2.3", "")
	tr.Expect(err).To(MatchError(ContainSubstring("changes that are not committed")))
	s, err := tr.read("1.2.3-dev", "")
	tr.Expect(err).NotTo(HaveOccurred())
	tr.Expect(s.Modified).To(BeTrue())
}

func TestRefusedSources(t *testing.T) {
	tr := newTree(t)
	for _, bad := range []string{"1.2", "latest", "1.2.3+x", "../1.2.3", "1.2.3-", "1.2.3-A_b", "1.2.3 "} {
		_, err := tr.read(bad, "")
		tr.Expect(err).To(MatchError(ContainSubstring("want MAJOR.MINOR.PATCH")), bad)
	}
	for _, bad := range []string{"today", "-1", "1.5"} {
		_, err := tr.read("1.2.3", bad)
		tr.Expect(err).To(MatchError(ContainSubstring("want seconds since 1970")), bad)
	}
	plain := tree{tr.WithT, t, t.TempDir()}
	_, err := plain.read("1.2.3", "")
	tr.Expect(err).To(MatchError(ContainSubstring("set SOURCE_DATE_EPOCH")))
	s, err := plain.read("1.2.3", "5")
	tr.Expect(err).NotTo(HaveOccurred())
	tr.Expect(s.Commit).To(BeEmpty())
	_, err = build.Groups(plain.dir)
	tr.Expect(err).To(MatchError(ContainSubstring("has no programs")))
	_, err = build.Select([]build.Group{{Name: "main"}}, []string{"man"})
	tr.Expect(err).To(MatchError(`the group "man" is not known: there are main`))
}
