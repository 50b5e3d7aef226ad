// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/engines/containerd"
)

// TestArchive: the archive has what its parts say of each other.
func TestArchive(t *testing.T) {
	g := NewWithT(t)
	program := filepath.Join(t.TempDir(), "x")
	g.Expect(os.WriteFile(program, []byte("a program"), 0o600)).To(Succeed())
	data, err := containerd.Archive([]containerd.Image{
		{Names: []string{"image:1", "pause:1"}, Programs: map[string]string{"bin/busybox": program}, Entrypoint: []string{"/bin/busybox"}},
		{Names: []string{"other:1"}, Programs: map[string]string{"b": program, "a": program}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	files := untar(g, data)
	for i := range 2 {
		config, layer := files[fmt.Sprintf("config-%d.json", i)], files[fmt.Sprintf("layer-%d.tar", i)]
		g.Expect(config).To(ContainSubstring(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(layer)))))
	}
	g.Expect(files["manifest.json"]).To(And(ContainSubstring("image:1"), ContainSubstring("pause:1"), ContainSubstring("other:1")))
	g.Expect(untar(g, []byte(files["layer-0.tar"]))).To(Equal(map[string]string{"bin/busybox": "a program"}))
	g.Expect(untar(g, []byte(files["layer-1.tar"]))).To(Equal(map[string]string{"a": "a program", "b": "a program"}))
	_, err = containerd.Archive([]containerd.Image{{Programs: map[string]string{"x": program + "-not"}}})
	g.Expect(err).To(HaveOccurred())
}

func untar(g *WithT, data []byte) map[string]string {
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		g.Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(r)
		g.Expect(err).NotTo(HaveOccurred())
		files[h.Name] = string(text)
	}
}
