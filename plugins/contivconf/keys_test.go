// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"testing"

	"github.com/onsi/gomega"
)

func TestDocuments(t *testing.T) {
	for text, second := range map[string]bool{
		"":                           false,
		"a: 1\n":                     false,
		"---\na: 1\n":                false,
		"# c\n---\na: 1\n...\n":      false,
		"a: |\n  ---\n  ...\nb: 1\n": false,
		"a: 1\n---":                  true,
		"--- # c\na: 1\n--- \nb: 1":  true,
		"--- {a: 1}\n---\n":          true,
		"a: 1\n...\nb: 2\n":          true,
		"a: 1\n...\n# c\n":           false,
		"a: 1\n...\n---\n":           true,
		"\ufeff---\r\na: 1\r\n":      false,
		"a: 1\r\n---\r\nb: 1\r\n":    true,
		"----: 1\n---x: 1\n":         false,
	} {
		gomega.NewWithT(t).Expect(hasSecondDocument([]byte(text))).To(gomega.Equal(second), "%q", text)
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct{ parent, key, want string }{
		{"ipamConfig", "podSubnetCIRD", "ipamConfig.podSubnetCIDR"},
		{"", "ipamConf", "ipamConfig"},
		{"", "coolDown", "cadastre.coolDown"},
		{"", "PODSUBNETCIDR", "ipamConfig.podSubnetCIDR"},
		{"cadastre", "logs", "cadastre.log"},
		{"cadastre.kvdb", "cret", "cadastre.kvdb.cert"},
		{"cadastre.rest", "cret", "cadastre.rest.cert"},
		{"ipamConfig", "podVppSubnetCIDRs", "ipamConfig.podVPPSubnetCIDR"},
	} {
		gomega.NewWithT(t).Expect(nearest(c.parent, c.key)).To(gomega.Equal(c.want))
	}
	g := gomega.NewWithT(t)
	g.Expect(editDistance("kitten", "sitting")).To(gomega.Equal(3))
	g.Expect(editDistance("", "abc")).To(gomega.Equal(3))
	g.Expect(editDistance("abc", "")).To(gomega.Equal(3))
}
