// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// TestChartsHaveCopies makes the copies of charts/sync.sh anew: those in charts/ are the
// same. charts/test compares the rest of the charts with these manifests.
func TestChartsHaveCopies(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	for _, folder := range []string{"k8s", "charts"} {
		g.Expect(os.CopyFS(filepath.Join(root, folder), os.DirFS(filepath.Join("..", folder)))).To(Succeed())
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "charts", "sync.sh")).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	for _, folder := range []string{"cadastre/files", "cadastre/files/rbac", "cadastre/files/policy", "cadastre/files/modes", "cadastre-crds/files"} {
		made, err := os.ReadDir(filepath.Join(root, "charts", folder))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(made).NotTo(BeEmpty())
		for _, file := range made {
			if file.IsDir() {
				continue
			}
			want, err := os.ReadFile(filepath.Join(root, "charts", folder, file.Name()))
			g.Expect(err).NotTo(HaveOccurred())
			have, err := os.ReadFile(filepath.Join("..", "charts", folder, file.Name()))
			g.Expect(err).NotTo(HaveOccurred(), "run charts/sync.sh")
			g.Expect(string(have)).To(Equal(string(want)), "charts/%s/%s: run charts/sync.sh", folder, file.Name())
		}
	}
}
