// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A DEL with an ipam section that went bad must still go to the agent that the
// section names: at another one it would succeed, and free nothing.
func TestADelWithABadIPAMSectionFindsItsAgent(t *testing.T) {
	for name, ipam := range map[string]string{
		"an unknown key":         `, "gateway": "10.1.5.1", "socket": "/run/a.sock"`,
		"a pool of another type": `, "pool": 5, "socket": "/run/a.sock"`,
		"bad routes":             `, "routes": "x", "socket": "/run/a.sock"`,
	} {
		g := NewWithT(t)
		c, err := cni.ParseConfig([]byte(config("1.1.0", ipam, "")), "DEL")
		g.Expect(err).To(BeNil(), name)
		g.Expect(c.Socket).To(Equal("/run/a.sock"), name)
	}
}
