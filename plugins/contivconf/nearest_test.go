// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"testing"

	"github.com/onsi/gomega"
)

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
