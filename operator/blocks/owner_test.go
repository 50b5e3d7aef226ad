// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestOwnersDifferByUID(t *testing.T) {
	g := NewWithT(t)
	seen := map[ID]string{}
	for _, uid := range []string{
		"3f2a7c1e-0b9d-4d5e-8f6a-000000000001", "3f2a7c1e-0b9d-4d5e-8f6a-000000000002",
		"3F2A7C1E-0B9D-4D5E-8F6A-000000000001", "a", "0", "00000000-0000-0000-0000-000000000000",
	} {
		id := NewOwner("a", uid).ID
		g.Expect(seen).NotTo(HaveKey(id), uid)
		seen[id] = uid
		g.Expect(NewOwner("b", uid).ID).NotTo(Equal(id), "another node, whatever its UID")
	}
	g.Expect(NewOwner("a", "").ID).NotTo(Equal(NewOwner("b", "").ID), "without a UID the name decides")
	g.Expect(NewOwner("a", "").ID).To(Equal(NewOwner("a", "").ID))
}

func TestConflictsAreInTheOrderOfNames(t *testing.T) {
	g, s := NewWithT(t), setOf(t, "10.0.0.0/24", 24)
	for _, name := range []string{"d", "b", "a", "c", "e"} {
		_ = s.Occupy(NewOwner(name, ""), pfx("10.0.0.0/24"), epoch())
	}
	for range 20 {
		g.Expect(s.Occupy(NewOwner("d", ""), pfx("10.0.0.0/24"), epoch())).To(MatchError(ContainSubstring(`of node "a"`)))
		var names []string
		for _, c := range s.Conflicts(NewOwner("c", "")) {
			names = append(names, c.Holder.Name)
		}
		g.Expect(names).To(Equal([]string{"a", "b", "d", "e"}))
	}
}
