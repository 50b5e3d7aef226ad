// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/witness/kernel"
)

// A path may name nothing, a file of another kind, or another namespace than at the ADD.
func TestANamespaceThatHasEnded(t *testing.T) {
	g, boot := NewWithT(t), "b"
	own := "/proc/self/ns/net"
	id, err := kernel.Identify(own, boot)
	g.Expect(err).NotTo(HaveOccurred())
	other, unknown := id, kv.NetNSID{}
	other.Inode++
	file := filepath.Join(t.TempDir(), "left behind")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	for name, c := range map[string]struct {
		path  string
		id    kv.NetNSID
		ended bool
	}{
		"it is there":           {own, id, false},
		"nothing is recorded":   {own, unknown, false},
		"another one is there":  {own, other, true},
		"no file is there":      {file + "2", id, true},
		"another file is there": {file, id, true},
		"another file, unknown": {file, unknown, true},
		"the wire is another's": {"", id, false},
	} {
		pod := &kv.PodNetwork{Wire: &kv.Wire{Netns: c.path, Namespace: c.id.Message()}}
		if c.path == "" {
			pod.Wire = nil
		}
		g.Expect(hasEnded(pod)).To(Equal(c.ended), name)
	}
}
