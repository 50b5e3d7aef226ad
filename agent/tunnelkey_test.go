// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTheTunnelKeyOfANode(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	path := filepath.Join(dir, tunnelKeyFile)
	first, err := openTunnelKey(dir, rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.private).NotTo(Equal(first.public))
	g.Expect(openTunnelKey(dir, bytes.NewReader(nil))).To(Equal(first), "a restart keeps it")
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode()).To(Equal(os.FileMode(0o600)))

	// The keys of Alice in RFC 7748, section 6.1.
	private := base64.StdEncoding.EncodeToString([]byte{
		0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
		0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
	})
	write := func(text string) { g.Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed()) }
	write(private)
	known, err := openTunnelKey(dir, rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(known).To(Equal(tunnelKey{private, "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="}))

	for _, bad := range []string{"nonsense", "AAAA"} {
		write(bad)
		_, err := openTunnelKey(dir, rand.Reader)
		g.Expect(err).To(MatchError(ContainSubstring("does not hold 32 bytes in base64")))
		g.Expect(err.Error()).NotTo(ContainSubstring(bad), "an error does not show a key")
	}
	g.Expect(os.Chmod(path, 0o644)).To(Succeed())
	_, err = openTunnelKey(dir, rand.Reader)
	g.Expect(err).To(MatchError(ContainSubstring("want a regular file of mode 0600")))
	_, err = openTunnelKey(filepath.Join(dir, "missing"), rand.Reader)
	g.Expect(err).To(MatchError(ContainSubstring("make the WireGuard key")))
}
