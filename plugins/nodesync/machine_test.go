// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

func TestMachinesAreToldApart(t *testing.T) {
	machine := func(uuid, boot string) nodesync.Machine {
		return nodesync.Machine{ProductUUID: uuid, BootID: boot}
	}
	for name, c := range map[string]struct {
		a, b nodesync.Machine
		same bool
	}{
		"one boot":                         {machine("u", "b"), machine("u", "b"), true},
		"a reboot":                         {machine("u", "b"), machine("u", "c"), true},
		"another machine":                  {machine("u", "b"), machine("v", "c"), false},
		"a resumed snapshot elsewhere":     {machine("u", "b"), machine("v", "b"), false},
		"one boot, no UUID":                {machine("", "b"), machine("", "b"), true},
		"a reboot or another, no UUID":     {machine("", "b"), machine("", "c"), false},
		"the UUID became readable":         {machine("", "b"), machine("u", "b"), true},
		"it did so, and it is another one": {machine("", "b"), machine("u", "c"), false},
		"nothing is known":                 {machine("", ""), machine("", ""), false},
	} {
		g := NewWithT(t)
		g.Expect(c.a.Same(c.b)).To(Equal(c.same), name)
		g.Expect(c.b.Same(c.a)).To(Equal(c.same), name)
	}
}

func TestProductUUIDs(t *testing.T) {
	for text, want := range map[string]string{
		"4C4C4544-0051-3510-8052-B4C04F4A4D31\n": "4c4c4544-0051-3510-8052-b4c04f4a4d31",
		"4c4c4544-0051-3510-8052-b4c04f4a4d31":   "4c4c4544-0051-3510-8052-b4c04f4a4d31",
		"":                                       "",
		"Not Settable\n":                         "",
		"To Be Filled By O.E.M.":                 "",
		"00000000-0000-0000-0000-000000000000":   "",
		"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF":   "",
		"03000200-0400-0500-0006-000700080009":   "",
		"4c4c4544-0051-3510-8052-b4c04f4a4d3g":   "",
		"4c4c454400513510-8052-b4c04f4a4d31":     "",
	} {
		NewWithT(t).Expect(nodesync.ParseProductUUID(text)).To(Equal(want), "%q", text)
	}
}
