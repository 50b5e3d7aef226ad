// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// krewManifest holds the fields of a manifest of krew.googlecontainertools.github.com/v1alpha2.
type krewManifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Caveats          string         `json:"caveats"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

// krewPlatform names the archive of one platform, and the files that krew takes from it.
type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Files  []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
	Bin string `json:"bin"`
}

const krewScript = "../../dist/krew/render.sh"

// release is a folder with the archives of version 9.8.7, as make release names and fills
// them, and their checksums. The program in them is this test.
func release(g *WithT, dir string) {
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	program, err := os.ReadFile(self)
	g.Expect(err).NotTo(HaveOccurred())
	var sums strings.Builder
	for _, arch := range []string{"amd64", "arm64"} {
		stem := "cadastre_9.8.7_linux_" + arch
		var archive bytes.Buffer
		z, err := gzip.NewWriterLevel(&archive, gzip.NoCompression)
		g.Expect(err).NotTo(HaveOccurred())
		w := tar.NewWriter(z)
		for name, text := range map[string][]byte{"bin/cadastre": program, "LICENSE": []byte("a license for " + arch)} {
			g.Expect(w.WriteHeader(&tar.Header{Name: stem + "/" + name, Mode: 0o755, Size: int64(len(text))})).To(Succeed())
			_, err := w.Write(text)
			g.Expect(err).NotTo(HaveOccurred())
		}
		g.Expect(errors.Join(w.Close(), z.Close())).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, stem+".tar.gz"), archive.Bytes(), 0o600)).To(Succeed())
		fmt.Fprintf(&sums, "%x  %s.tar.gz\n", sha256.Sum256(archive.Bytes()), stem)
	}
	g.Expect(os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o600)).To(Succeed())
}

// unpack extracts an archive into dir.
func unpack(g *WithT, archive, dir string) {
	f, err := os.Open(archive)
	g.Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	z, err := gzip.NewReader(f)
	g.Expect(err).NotTo(HaveOccurred())
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		g.Expect(err).NotTo(HaveOccurred())
		to := filepath.Join(dir, h.Name)
		g.Expect(os.MkdirAll(filepath.Dir(to), 0o700)).To(Succeed())
		text, err := io.ReadAll(r)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(to, text, h.FileInfo().Mode())).To(Succeed())
	}
}

// install does with a platform what krew does, and returns the plugin's path.
func install(g *WithT, p krewPlatform, dir, to string) string {
	archive := filepath.Join(dir, path.Base(p.URI))
	content, err := os.ReadFile(archive)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.SHA256).To(Equal(fmt.Sprintf("%x", sha256.Sum256(content))))
	unpacked := filepath.Join(to, "unpacked")
	unpack(g, archive, unpacked)
	store := filepath.Join(to, "store")
	g.Expect(os.Mkdir(store, 0o700)).To(Succeed())
	for _, f := range p.Files {
		found, err := filepath.Glob(filepath.Join(unpacked, f.From))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1), f.From)
		g.Expect(os.Rename(found[0], filepath.Join(store, f.To, filepath.Base(found[0])))).To(Succeed())
	}
	link := filepath.Join(to, "kubectl-cadastre")
	g.Expect(os.Symlink(filepath.Join(store, p.Bin), link)).To(Succeed())
	return link
}

// The manifest of a release names its archives, and krew can install the plugin from them.
func TestKrewManifest(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	release(g, dir)
	text, err := exec.Command(krewScript, "9.8.7", filepath.Join(dir, "SHA256SUMS")).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(text))
	var m krewManifest
	g.Expect(yaml.UnmarshalStrict(text, &m)).To(Succeed(), string(text))
	g.Expect(m.APIVersion).To(Equal("krew.googlecontainertools.github.com/v1alpha2"))
	g.Expect(m.Kind).To(Equal("Plugin"))
	g.Expect(m.Metadata.Name).To(Equal("cadastre"))
	g.Expect(m.Spec.Version).To(Equal("v9.8.7"))
	g.Expect(len(m.Spec.ShortDescription)).To(And(BeNumerically(">", 10), BeNumerically("<=", 50)))
	g.Expect(m.Spec.ShortDescription).NotTo(HaveSuffix("."))
	g.Expect(m.Spec.Homepage).NotTo(BeEmpty())
	var arches []string
	for _, p := range m.Spec.Platforms {
		arch := p.Selector.MatchLabels["arch"]
		arches = append(arches, p.Selector.MatchLabels["os"]+"/"+arch)
		g.Expect(p.URI).To(HaveSuffix("/releases/download/v9.8.7/cadastre_9.8.7_linux_" + arch + ".tar.gz"))
		out, err := exec.Command(install(g, p, dir, t.TempDir()), "leases", "--help").CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
		g.Expect(string(out)).To(MatchRegexp(regexp.QuoteMeta("kubectl cadastre leases [flags]")))
	}
	g.Expect(arches).To(ConsistOf("linux/amd64", "linux/arm64"))
}

// A release without an archive has no manifest.
func TestKrewManifestNeedsBothArchives(t *testing.T) {
	g := NewWithT(t)
	sums := filepath.Join(t.TempDir(), "SHA256SUMS")
	g.Expect(os.WriteFile(sums, []byte("ab  cadastre_9.8.7_linux_amd64.tar.gz\n"), 0o600)).To(Succeed())
	out, err := exec.Command(krewScript, "9.8.7", sums).CombinedOutput()
	g.Expect(err).To(HaveOccurred())
	g.Expect(string(out)).To(HaveSuffix("has no line for cadastre_9.8.7_linux_arm64.tar.gz\n"))
}
