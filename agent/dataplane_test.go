// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
)

// memory is a disk.
type memory struct {
	values map[string]string
	fault  error
}

func (m *memory) Local(name string) (string, error) { return m.values[name], nil }
func (m *memory) SetLocal(name, value string) error {
	if m.fault == nil {
		m.values[name] = value
	}
	return m.fault
}

// The pair is that of RFC 7748, section 6.1.
func TestTheTunnelKeyOfANode(t *testing.T) {
	g := NewWithT(t)
	disk := &memory{values: map[string]string{}}
	first, err := openTunnelKey(disk, rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.private).NotTo(Equal(first.public))
	g.Expect(openTunnelKey(disk, bytes.NewReader(nil))).To(Equal(first), "a restart keeps it")

	disk.values[tunnelKeyName] = base64.StdEncoding.EncodeToString([]byte{
		0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
		0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
	})
	known, err := openTunnelKey(disk, rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(known.public).To(Equal("hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="))
	g.Expect(known.private).To(Equal(disk.values[tunnelKeyName]))

	for _, bad := range []string{"nonsense", "AAAA"} {
		disk.values[tunnelKeyName] = bad
		_, err := openTunnelKey(disk, rand.Reader)
		g.Expect(err).To(MatchError(errBadTunnelKey))
		g.Expect(err.Error()).NotTo(ContainSubstring(bad), "an error does not show a key")
	}
	_, err = openTunnelKey(&memory{values: map[string]string{}, fault: errors.New("disk full")}, rand.Reader)
	g.Expect(err).To(MatchError(ContainSubstring("disk full")))
}
