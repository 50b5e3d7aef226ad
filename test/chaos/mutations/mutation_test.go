// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
)

const example = `package p

func (l *Ledger) Free(n int) bool {
	if n > 0 && l.open {
		l.free = n + 1
		l.note()
		return true
	}
	return false
}
`

// The changes are those that a person could make by mistake.
func TestMutations(t *testing.T) {
	g := NewWithT(t)
	all, err := mutationsOf("p.go", []byte(example))
	g.Expect(err).NotTo(HaveOccurred())
	var texts []string
	for _, m := range all {
		g.Expect(m.in).To(Equal("(*Ledger).Free"))
		texts = append(texts, m.String())
	}
	g.Expect(texts).To(Equal([]string{
		"n > 0 && l.open -> !(n > 0 && l.open)",
		"n > 0 && l.open -> n > 0 || l.open",
		"n > 0 -> n >= 0",
		"without l.free = n + 1",
		"n + 1 -> n - 1",
		"without l.note()",
		"true -> false",
		"false -> true",
	}))
	g.Expect(string(all[5].apply([]byte(example)))).To(And(ContainSubstring("l.free = n + 1\n\t\t\n"), Not(ContainSubstring("note"))))
}

func TestFirstFailure(t *testing.T) {
	g := NewWithT(t)
	g.Expect(firstFailure([]byte(`{"Action":"run","Package":"x/ledger","Test":"TestA"}
{"Action":"fail","Package":"x/ledger","Test":"TestA"}
{"Action":"fail","Package":"x/ledger"}
`))).To(Equal("ledger.TestA"))
	g.Expect(firstFailure([]byte(`{"Action":"fail","Package":"x/ledger"}`))).To(Equal("a crash or hang of ledger"))
	g.Expect(firstFailure(nil)).To(Equal("the tests of a package do not end"))
}

func TestAnUnknownRoomIsRefused(t *testing.T) {
	g := NewWithT(t)
	var out, errs bytes.Buffer
	g.Expect(run(t.Context(), []string{"-rooms", "cellar", "-out", t.TempDir()}, &out, &errs)).To(Equal(1))
	g.Expect(errs.String()).To(ContainSubstring(`room "cellar" is not known: want one of kvdb, ledger,`))
}

// Each folder of a room is there and has sources.
func TestRoomsExist(t *testing.T) {
	t.Chdir("../../..")
	for name, folders := range rooms() {
		for _, folder := range folders {
			all, err := mutationsIn([]string{folder})
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(all).NotTo(BeEmpty(), name+": "+folder)
		}
	}
}
