// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package handshake_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
)

func TestKeys(t *testing.T) {
	g := NewWithT(t)
	for _, key := range []string{"10.9.0.7", "10.9.0.0/28", "fd00::7", "fd00::/112", "0.0.0.0/0"} {
		p, err := handshake.ParseKey(key)
		g.Expect(err).NotTo(HaveOccurred(), key)
		g.Expect(handshake.Key(p)).To(Equal(key))
	}
	p, err := handshake.ParseKey("10.9.0.7/32")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(handshake.Key(p)).To(Equal("10.9.0.7"), "there is one name for each")
	for key, why := range map[string]string{
		"here": "neither", "": "neither", "10.9.0.0/33": "neither", "fe80::1%eth0": "neither", "::ffff:10.9.0.1": "neither", "::ffff:10.9.0.0/124": "neither",
		"10.9.1.1/28": "10.9.1.0/28 would be right",
	} {
		_, err := handshake.ParseKey(key)
		g.Expect(err).To(MatchError(ContainSubstring(why)), key)
	}
}
